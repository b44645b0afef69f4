//! A camera, a program that processes its frames, and a page that shows what it sees: README.md.

use std::process::ExitCode;

use camera::{film, process, view};
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(
    about = "A camera in one process, image processing in another, and a page that shows both"
)]
struct Arguments {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Makes frames and sends each to the processor, until Ctrl-C or SIGTERM
    Film(film::Options),
    /// Processes frames, until Ctrl-C or SIGTERM
    Process(process::Options),
    /// Serves a page that shows what the processor sees, until Ctrl-C or SIGTERM
    View(view::Options),
}

#[tokio::main]
async fn main() -> ExitCode {
    let done = match Arguments::parse().role {
        Role::Film(options) => film::run(options).await,
        Role::Process(options) => process::run(options).await,
        Role::View(options) => view::run(options).await,
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("camera: {error}");
            ExitCode::FAILURE
        }
    }
}
