//! A worker of functions, which `partywall fn serve` and `fn test` start.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    // In one write(2): other workers write there as well.
    let said = partywall_functions::worker::main() + "\n";
    eprint!("{said}");
    ExitCode::FAILURE
}
