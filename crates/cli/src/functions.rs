//! `partywall fn`: functions are written, built, deployed, called and served.
//!
//! `new`, `test`, `policy` and `budget` ask nobody. `serve` is a function host. All others ask one, by the
//! name that it serves or at an address.

mod budget;
mod local;
pub(crate) mod needs;
mod policy;
mod remote;
mod serve;
mod show;
mod sources;

use std::error::Error;
use std::process::ExitCode;

pub(crate) const HELP: &str = "\
Examples:
  partywall fn new shout                       writes shout.rs
  partywall fn test shout.rs --request hello   builds it here, and calls it once
  partywall fn serve --http 127.0.0.1:8080     a function host, beside a coordinator that runs
  partywall fn deploy shout.rs
  echo hello | partywall fn invoke shout
  partywall fn ls
  partywall fn logs shout
  partywall fn rollback shout                  the version before is called again
  partywall fn policy check policy.toml        whether `fn serve --policy` takes it
  partywall fn pull shout > shout.pwfn         its signed image, for `fn push shout.pwfn` on another host
  partywall fn budget --cores 14 --latency 8us --percentile 99

A function is a Rust file with `pub fn handle(request: Request<'_>) -> Reply`, or a directory with such a
main.rs. It has no standard library and no `unsafe`. `fn deploy` sends its sources; the host builds them in a
sandbox and signs what it has built.

The coordinator's policy has to let the host serve its name (`register`), and its callers call methods of
partywall.functions.v1.Functions. Who may deploy, call, read logs and ban is said by the host's own policy
(`fn serve --policy`); without one only the host's user may.

Exit status: 0; 64 and the code of the status when a call failed, as 69 for NOT_FOUND (5); 1 when there was no
call; 2 for wrong arguments.";

/// What is to be done with functions.
#[derive(clap::Subcommand)]
pub(crate) enum Order {
    /// Write a function to begin with, as NAME.rs.
    New(sources::New),
    /// Build a function here, as a host does, and call it once where there is a request.
    Test(local::Test),
    /// Send a function's sources to a host, which builds them; it is called from then on.
    Deploy(remote::Deploy),
    /// Call a function: the request is standard input, the reply standard output.
    Invoke(remote::Invoke),
    /// Show the functions that one may see.
    Ls(remote::List),
    /// Show the last lines of a function's log.
    Logs(remote::Logs),
    /// Remove a function with all its versions.
    Rm(remote::Named),
    /// Have an older version called.
    Rollback(remote::Rollback),
    /// Load a function's image before it is called.
    Preload(remote::Named),
    /// Have a function called by nobody.
    Ban(remote::Named),
    /// Take a ban back.
    Unban(remote::Named),
    /// Deploy a signed image, which `pull` has written.
    Push(remote::Push),
    /// Write a function's signed image to standard output, for `push` at another host.
    Pull(remote::Pull),
    /// Be a function host until it is stopped.
    Serve(serve::Serve),
    /// Check the policy of a function host.
    Policy {
        #[command(subcommand)]
        order: policy::Order,
    },
    /// How long functions may run so that most calls begin in time.
    Budget(budget::Budget),
}

/// Does it.
pub(crate) fn run(order: &Order) -> Result<ExitCode, Box<dyn Error>> {
    done(order).or_else(|error| {
        let failed = error.downcast::<show::Failed>()?;
        crate::remark(&format!("partywall: {failed}"));
        Ok(failed.exit_code())
    })
}

fn done(order: &Order) -> Result<ExitCode, Box<dyn Error>> {
    match order {
        Order::New(new) => new.run(),
        Order::Test(test) => test.run(),
        Order::Deploy(deploy) => deploy.run(),
        Order::Invoke(invoke) => invoke.run(),
        Order::Ls(list) => list.run(),
        Order::Logs(logs) => logs.run(),
        Order::Rm(named) => named.remove(),
        Order::Rollback(rollback) => rollback.run(),
        Order::Preload(named) => named.preload(),
        Order::Ban(named) => named.ban(true),
        Order::Unban(named) => named.ban(false),
        Order::Push(push) => push.run(),
        Order::Pull(pull) => pull.run(),
        Order::Serve(serve) => serve.run(),
        Order::Policy { order } => order.run(),
        Order::Budget(budget) => budget.run(),
    }
}

/// The program that this is, for what it starts of itself.
fn this_program(role: &str) -> Result<Vec<String>, Box<dyn Error>> {
    let own = std::env::current_exe().map_err(|error| format!("/proc/self/exe: {error}"))?;
    let own = own.into_os_string().into_string();
    let own = own.map_err(|path| format!("{}: its path is no UTF-8", path.display()))?;
    Ok(vec![own, role.to_owned()])
}

/// The compiler, unless another one is named.
const RUSTC: &str = "rustc";
/// The hidden command that the builder starts.
pub(crate) const SANDBOX: &str = "fn-sandbox";
/// The program of workers, which is beside this one. It is small, for all of its code is looked through for
/// what changes protection keys, which the code of domains does.
const WORKER: &str = "partywall-worker";

/// The program that a dispatcher starts.
fn worker() -> Result<Vec<String>, Box<dyn Error>> {
    let own = this_program("")?.swap_remove(0);
    let path = std::path::Path::new(&own).with_file_name(WORKER);
    if !path.is_file() {
        return Err(format!(
            "{}: the program of workers is not there; it is installed with this one, by `cargo install --locked \
             --path crates/cli`",
            path.display()
        )
        .into());
    }
    Ok(vec![path.display().to_string()])
}
