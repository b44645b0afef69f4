//! `partywall fn test`: builds a function on this machine, and calls it.

use std::error::Error;
use std::io::{IsTerminal as _, Read as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use partywall_fn_host::{checks, reply};
use partywall_functions::builder::{Builder, Toolchain};
use partywall_functions::clock::Exactness;
use partywall_functions::dispatcher::{Number, Preemption, Registration, Share, Workers};
use partywall_functions::isolation::Wanted;
use partywall_functions::runtime::{Runtime, ServiceCall, Services, Settings};
use partywall_functions::sandbox::Limits as BuildLimits;
use partywall_functions::schedule::Limits;
use partywall_functions::signed::{Made, Signed};
use partywall_trust::SigningKey;

use super::sources::{Sources, Values};

/// A function that is tried.
#[derive(clap::Args)]
pub(crate) struct Test {
    #[command(flatten)]
    sources: Sources,
    /// Call it once with this text. Without it the request is standard input, unless that is a terminal.
    #[arg(long, value_name = "TEXT")]
    request: Option<String>,
    #[command(flatten)]
    values: Values,
    /// What the call may use of a CPU.
    #[arg(long, value_name = "TIME", value_parser = super::sources::time, default_value = "10ms")]
    budget: Duration,
    /// The compiler.
    #[arg(long, value_name = "PATH", default_value = super::RUSTC)]
    rustc: PathBuf,
}

impl Test {
    pub(super) fn run(&self) -> Result<ExitCode, Box<dyn Error>> {
        let files = self.sources.files()?;
        let [parameters, secrets] = self.values.read()?;
        let block =
            checks::values(&parameters, &secrets).map_err(|status| status.message().to_owned())?;
        let toolchain = Toolchain::of(&self.rustc)?;
        let compiler = toolchain.version().to_owned();
        let sandbox = super::this_program(super::SANDBOX)?;
        let built = Builder::new(toolchain, sandbox, BuildLimits::default()).build(&files)?;
        let (made, tries) = (Made::of(&built, &compiler), built.tries);
        // Of nobody's trust: this key signs for this one run.
        let signed = Signed::new("test", built.image, made, &SigningKey::generate());
        crate::remark(&format!(
            "built in {tries} {}: {} bytes",
            if tries == 1 { "try" } else { "tries" },
            signed.to_bytes().len()
        ));
        let Some(request) = self.request()? else { return Ok(ExitCode::SUCCESS) };
        self.call(signed, block, request)
    }

    /// What it is called with; none where it is not.
    fn request(&self) -> Result<Option<Vec<u8>>, Box<dyn Error>> {
        if let Some(text) = &self.request {
            return Ok(Some(text.clone().into_bytes()));
        }
        let mut input = std::io::stdin().lock();
        if input.is_terminal() {
            return Ok(None);
        }
        let mut request = Vec::new();
        input.read_to_end(&mut request).map_err(|error| format!("standard input: {error}"))?;
        Ok(Some(request))
    }

    fn call(
        &self,
        image: Signed,
        parameters: Vec<u8>,
        request: Vec<u8>,
    ) -> Result<ExitCode, Box<dyn Error>> {
        let workers = Workers {
            program: super::worker()?,
            cpus: vec![None],
            exactness: Exactness::Exact,
            preemption: Preemption::Timer(Duration::from_micros(100)),
            resident: 64 << 20,
            recycle: u32::MAX,
            processes: 1,
            isolation: Wanted::Prefer,
            archive: std::env::temp_dir(),
        };
        let settings = Settings { cpu: None, blocks: 1, workers };
        let runtime = Runtime::start(settings, Box::new(NoServices))?;
        let owner = runtime.add_owner(Limits::default())?;
        let callee = runtime.register(
            &owner,
            Registration {
                owner: owner.number(),
                image: Arc::new(image),
                parameters,
                budget: self.budget,
                idempotent: false,
                share: Share::All,
                strikes: 1,
            },
        )??;
        let (done, is_done) = channel();
        runtime.call(&callee, request, None, move |finished| {
            // The command waits for it.
            let _waits = done.send(finished);
        });
        let finished = is_done.recv().map_err(|_| "the dispatcher of functions has ended")?;
        for line in finished.lines() {
            crate::remark(&format!("log: {}", String::from_utf8_lossy(line)));
        }
        crate::remark(&format!("used {} us of a CPU", finished.cpu.as_micros()));
        let status = match reply::reply(finished) {
            Ok(reply) => {
                super::show::write(&reply)?;
                return Ok(ExitCode::SUCCESS);
            }
            Err(status) => status,
        };
        Err(super::show::failed("fn test", status))
    }
}

/// A function that is tried alone has no services.
struct NoServices;

impl Services for NoServices {
    fn call(&mut self, call: ServiceCall) {
        let text = format!("{}: `fn test` has no services; deploy the function", call.service);
        call.answer.give(Err((tonic::Code::Unavailable as u32, text)));
    }

    fn unwanted(&mut self, _: Number) {}
}
