//! A worker of functions, which `partywall fn serve` and `fn test` start.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    let argument = std::env::args().next_back().unwrap_or_default();
    eprintln!("{}", partywall_functions::worker::main(&argument));
    ExitCode::FAILURE
}
