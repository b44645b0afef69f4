//! What a function host is asked.

use std::error::Error;
use std::io::{IsTerminal as _, Read as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use partywall::{Channel, Endpoint};
use partywall_fn_host::proto::functions_client::FunctionsClient;
use partywall_fn_host::proto::{self, deploy_request};
use partywall_functions::dispatcher::MESSAGE;
use tonic::{Request, Response, Status};

use super::show;
use super::sources::{Sources, Values};
use crate::socket::Socket;

/// The longest message.
const LONGEST: usize = MESSAGE + (64 << 10);
/// How long `logs --follow` waits between two questions.
const ASKED: Duration = Duration::from_millis(500);

/// The function host that is asked.
#[derive(clap::Args)]
pub(crate) struct Host {
    /// The host: NAME, partywall:///NAME, http://HOST:PORT or unix:/PATH.
    #[arg(long, value_name = "TARGET", default_value = super::serve::NAME)]
    host: String,
    #[command(flatten)]
    socket: Socket,
}

type Client = FunctionsClient<Channel>;

impl Host {
    /// Connects, and asks.
    fn ask<T, F>(&self, what: &str, question: impl FnOnce(Client) -> F) -> Result<T, Box<dyn Error>>
    where
        F: Future<Output = Result<T, Box<dyn Error>>>,
    {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let target = match self.host.contains(':') {
            true => self.host.clone(),
            false => format!("partywall:{}", self.host),
        };
        let channel = self.socket.ask(|socket| {
            let mut endpoint = Endpoint::new(target)?;
            if let Some(socket) = socket {
                endpoint = endpoint.coordinator(socket);
            }
            runtime.block_on(endpoint.connect())
        })?;
        let client = FunctionsClient::new(channel);
        let client = client.max_decoding_message_size(LONGEST).max_encoding_message_size(LONGEST);
        let done = runtime.block_on(question(client));
        runtime.shutdown_background();
        done.map_err(|error| match error.downcast::<Status>() {
            Ok(status) => show::failed(what, *status),
            Err(other) => other,
        })
    }
}

/// A new version of a function.
#[derive(clap::Args)]
pub(crate) struct Deploy {
    #[command(flatten)]
    sources: Sources,
    /// Its name, unless it is that of its file.
    #[arg(long, value_parser = super::sources::name)]
    name: Option<String>,
    #[command(flatten)]
    terms: Terms,
    #[command(flatten)]
    host: Host,
}

/// What is deployed beside the code.
#[derive(clap::Args)]
struct Terms {
    /// Whose it is, where one is several owners by the host's policy.
    #[arg(long, default_value = "", hide_default_value = true)]
    owner: String,
    /// What a call may use of a CPU, such as `500us`; the policy has a default.
    #[arg(long, value_name = "TIME", value_parser = super::sources::time)]
    budget: Option<Duration>,
    /// It may run twice for one call, when its worker has ended within the first one.
    #[arg(long)]
    idempotent: bool,
    #[command(flatten)]
    values: Values,
}

impl Terms {
    fn request(
        &self,
        function: String,
        code: deploy_request::Code,
    ) -> Result<proto::DeployRequest, Box<dyn Error>> {
        let [parameters, secrets] = self.values.read()?.map(|values| {
            values.into_iter().map(|(name, value)| (name, value.into_vec().into())).collect()
        });
        Ok(proto::DeployRequest {
            function,
            owner: self.owner.clone(),
            code: Some(code),
            budget_us: self.budget.map_or(0, |budget| budget.as_micros().max(1) as u64),
            idempotent: self.idempotent,
            parameters,
            secrets,
        })
    }
}

impl Deploy {
    pub(super) fn run(&self) -> Result<ExitCode, Box<dyn Error>> {
        let name = self.name.clone().map_or_else(|| self.sources.name(), Ok)?;
        let files = self.sources.files()?.into_iter();
        let files = files.map(|file| proto::SourceFile { path: file.path, text: file.text });
        let sources = proto::Sources { files: files.collect() };
        let request = self.terms.request(name, deploy_request::Code::Sources(sources))?;
        deploy("fn deploy", &self.host, request)
    }
}

fn deploy(
    what: &str,
    host: &Host,
    request: proto::DeployRequest,
) -> Result<ExitCode, Box<dyn Error>> {
    let version =
        host.ask(what, |mut client| async move { Ok(client.deploy(request).await?.into_inner()) })?;
    say_version(&version)
}

fn say_version(version: &proto::Version) -> Result<ExitCode, Box<dyn Error>> {
    let tries = match version.tries {
        0 | 1 => String::new(),
        tries => format!(", built in {tries} tries"),
    };
    crate::say(&format!(
        "{} version {} of {}: {} bytes, budget {} us{tries}\n",
        version.function, version.number, version.owner, version.image_bytes, version.budget_us
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// A call.
#[derive(clap::Args)]
pub(crate) struct Invoke {
    /// The function.
    #[arg(value_parser = super::sources::name)]
    name: String,
    /// The request, instead of standard input.
    #[arg(long, value_name = "TEXT")]
    request: Option<String>,
    /// By when it must be done, such as `500ms`.
    #[arg(long, value_name = "TIME", value_parser = super::sources::time)]
    timeout: Option<Duration>,
    /// Tell on standard error the number of the call, which `fn logs --call` takes, and the time.
    #[arg(long)]
    verbose: bool,
    #[command(flatten)]
    host: Host,
}

impl Invoke {
    pub(super) fn run(&self) -> Result<ExitCode, Box<dyn Error>> {
        let body = self.body()?;
        let mut request =
            Request::new(proto::InvokeRequest { function: self.name.clone(), body: body.into() });
        if let Some(timeout) = self.timeout {
            request.set_timeout(timeout);
        }
        let (response, taken) = self.host.ask(&self.name, |mut client| async move {
            let begin = Instant::now();
            let response: Response<proto::InvokeReply> = client.invoke(request).await?;
            Ok((response, begin.elapsed()))
        })?;
        if self.verbose {
            let call = response.metadata().get(partywall_fn_host::reply::CALL);
            let call = call.and_then(|call| call.to_str().ok()).unwrap_or("?");
            crate::remark(&format!("call: {call}\ntime: {taken:?}"));
        }
        show::write(&response.into_inner().body)?;
        Ok(ExitCode::SUCCESS)
    }

    fn body(&self) -> Result<Vec<u8>, Box<dyn Error>> {
        if let Some(text) = &self.request {
            return Ok(text.clone().into_bytes());
        }
        let mut input = std::io::stdin().lock();
        if input.is_terminal() {
            crate::remark("the request is what you type; Ctrl-D ends it");
        }
        let mut body = Vec::new();
        let read = (&mut input).take(MESSAGE as u64 + 1).read_to_end(&mut body);
        read.map_err(|error| format!("standard input: {error}"))?;
        if body.len() > MESSAGE {
            return Err(format!("standard input: a request has at most {MESSAGE} bytes").into());
        }
        Ok(body)
    }
}

/// What is listed.
#[derive(clap::Args)]
pub(crate) struct List {
    /// Also the versions that are kept, a line each.
    #[arg(long)]
    versions: bool,
    #[command(flatten)]
    host: Host,
}

impl List {
    pub(super) fn run(&self) -> Result<ExitCode, Box<dyn Error>> {
        let functions = self.host.ask("fn ls", |mut client| async move {
            let mut request = proto::ListRequest { versions: self.versions, ..Default::default() };
            let mut functions = Vec::new();
            loop {
                let page = client.list(request.clone()).await?.into_inner();
                functions.extend(page.functions);
                if page.next_page_token.is_empty() {
                    return Ok(functions);
                }
                request.page_token = page.next_page_token;
            }
        })?;
        let text = match self.versions {
            false => {
                let rows: Vec<_> = functions.iter().map(show::row).collect();
                show::table(&show::COLUMNS, &rows)
            }
            true => show::table(&show::VERSION_COLUMNS, &show::version_rows(&functions)),
        };
        crate::say(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Which lines are wanted.
#[derive(clap::Args)]
pub(crate) struct Logs {
    /// The function.
    #[arg(value_parser = super::sources::name)]
    name: String,
    /// The last so many lines; 0 is all that are kept.
    #[arg(long, default_value_t = 100)]
    lines: u32,
    /// Only those of this call.
    #[arg(long, value_name = "NUMBER", default_value_t = 0, hide_default_value = true)]
    call: u64,
    /// Show lines as they come, until Ctrl-C.
    #[arg(long)]
    follow: bool,
    #[command(flatten)]
    host: Host,
}

impl Logs {
    pub(super) fn run(&self) -> Result<ExitCode, Box<dyn Error>> {
        self.host.ask("fn logs", |mut client| async move {
            let (mut lines, mut after) = (self.lines, 0);
            let mut is_first = true;
            loop {
                let function = self.name.clone();
                let request = proto::LogsRequest { function, lines, call: self.call, after };
                let reply = client.logs(request).await?.into_inner();
                for line in &reply.lines {
                    after = after.max(line.number);
                    crate::say(&show::log_line(line))?;
                }
                if is_first && reply.lines.is_empty() {
                    crate::remark(&self.nothing());
                }
                is_first = false;
                if !self.follow {
                    return Ok(ExitCode::SUCCESS);
                }
                lines = 0;
                tokio::time::sleep(ASKED).await;
            }
        })
    }
}

impl Logs {
    /// What is said where there are no lines.
    fn nothing(&self) -> String {
        let (name, call) = (&self.name, self.call);
        let of = if call == 0 { "" } else { " of this call" };
        format!(
            "there are no lines of `{name}`{of}: a function writes them with `log!`; they come when a call is \
             over, and are gone with the host, or when their owner has 1 MiB of newer ones"
        )
    }
}

/// A function by its name.
#[derive(clap::Args)]
pub(crate) struct Named {
    /// The function.
    #[arg(value_parser = super::sources::name)]
    name: String,
    #[command(flatten)]
    host: Host,
}

impl Named {
    pub(super) fn remove(&self) -> Result<ExitCode, Box<dyn Error>> {
        let request = proto::RemoveRequest { function: self.name.clone() };
        self.host.ask("fn rm", |mut client| async move { Ok(client.remove(request).await?) })?;
        self.say("is removed")
    }

    pub(super) fn preload(&self) -> Result<ExitCode, Box<dyn Error>> {
        let request = proto::PreloadRequest { function: self.name.clone() };
        self.host
            .ask("fn preload", |mut client| async move { Ok(client.preload(request).await?) })?;
        self.say("is loaded")
    }

    pub(super) fn ban(&self, banned: bool) -> Result<ExitCode, Box<dyn Error>> {
        let request = proto::BanRequest { function: self.name.clone(), banned };
        let what = if banned { "fn ban" } else { "fn unban" };
        self.host.ask(what, |mut client| async move { Ok(client.ban(request).await?) })?;
        self.say(if banned { "is banned: nobody can call it" } else { "can be called" })
    }

    fn say(&self, what: &str) -> Result<ExitCode, Box<dyn Error>> {
        crate::say(&format!("{} {what}\n", self.name))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Which version is to be called.
#[derive(clap::Args)]
pub(crate) struct Rollback {
    /// The function.
    #[arg(value_parser = super::sources::name)]
    name: String,
    /// The version; unless given, the one before the one that is called. It may be a newer one as well.
    #[arg(default_value_t = 0, hide_default_value = true)]
    version: u32,
    #[command(flatten)]
    host: Host,
}

impl Rollback {
    pub(super) fn run(&self) -> Result<ExitCode, Box<dyn Error>> {
        let request = proto::RollbackRequest { function: self.name.clone(), version: self.version };
        let version = self.host.ask("fn rollback", |mut client| async move {
            Ok(client.rollback(request).await?.into_inner())
        })?;
        say_version(&version)
    }
}

/// A signed image.
#[derive(clap::Args)]
pub(crate) struct Push {
    /// The file that `fn pull` has written.
    file: PathBuf,
    /// The function that it was signed as.
    #[arg(long, value_parser = super::sources::name)]
    name: Option<String>,
    #[command(flatten)]
    terms: Terms,
    #[command(flatten)]
    host: Host,
}

impl Push {
    pub(super) fn run(&self) -> Result<ExitCode, Box<dyn Error>> {
        let shown = self.file.display();
        let image = std::fs::read(&self.file).map_err(|error| format!("{shown}: {error}"))?;
        let stem = || {
            let stem = self.file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            super::sources::name(&stem)
        };
        let name = self.name.clone().map_or_else(stem, Ok);
        let name = name.map_err(|why| format!("{shown}: {why}; or give one with --name"))?;
        let request = self.terms.request(name, deploy_request::Code::Image(image.into()))?;
        deploy("fn push", &self.host, request)
    }
}

/// Which image is wanted.
#[derive(clap::Args)]
pub(crate) struct Pull {
    /// The function.
    #[arg(value_parser = super::sources::name)]
    name: String,
    /// The version; unless given, the one that is called.
    #[arg(long, value_name = "NUMBER", default_value_t = 0, hide_default_value = true)]
    version: u32,
    /// Where it is written, instead of standard output.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    host: Host,
}

impl Pull {
    pub(super) fn run(&self) -> Result<ExitCode, Box<dyn Error>> {
        if self.output.is_none() && std::io::stdout().is_terminal() {
            return Err("an image is no text; write it to a file with --output FILE".into());
        }
        let request = proto::FetchRequest { function: self.name.clone(), version: self.version };
        let image = self.host.ask("fn pull", |mut client| async move {
            Ok(client.fetch(request).await?.into_inner().image)
        })?;
        match &self.output {
            None => show::write(&image)?,
            Some(path) => {
                let written = std::fs::File::create(path).and_then(|mut to| to.write_all(&image));
                written.map_err(|error| format!("{}: {error}", path.display()))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
