//! A worker of functions, for tests. With `--places FILE` it writes there where it has what functions cannot
//! reach; with `--without-filter` it has no filter of system calls.

use std::process::ExitCode;

use partywall_functions::worker::{self, Places};

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().collect();
    let file = arguments.iter().skip_while(|argument| *argument != "--places").nth(1);
    let has_filter = !arguments.iter().any(|argument| argument == "--without-filter");
    let tell = |places: &Places| {
        let Places { ring, running, stack, window, handler, gates } = places;
        let all = [ring, running, stack, window, handler].into_iter().chain(gates);
        let text: Vec<_> = all.map(u64::to_string).collect();
        if let Some(file) = file {
            std::fs::write(file, text.join(" ")).expect("the file can be written");
        }
    };
    // In one write(2): other workers write there as well, and the tests.
    let said = worker::main_telling(has_filter, tell) + "\n";
    eprint!("{said}");
    ExitCode::FAILURE
}
