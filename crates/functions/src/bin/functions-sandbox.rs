//! The program of the builder's sandbox, for tests.

use std::process::ExitCode;

fn main() -> ExitCode {
    let role = std::env::args().next_back().unwrap_or_default();
    ExitCode::from(partywall_functions::sandbox::main(&role))
}
