//! A worker of functions, which `partywall fn serve` and `fn test` start.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    eprintln!("{}", partywall_functions::worker::main());
    ExitCode::FAILURE
}
