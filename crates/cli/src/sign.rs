//! `partywall sign` and `partywall verify`: signatures of programs and of container images.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use partywall_abi::name::ServiceName;
use partywall_coordinator::place::Kind;
use partywall_coordinator::signatures::{self, Found, Signatures};
use partywall_trust::{Program, SigningKey};

use crate::files::{self, Over};

pub(crate) const SIGN_HELP: &str = "\
Examples:
  partywall sign --new-key builder.key         a key, and its public half builder.pub
  partywall sign target/release/web --service web --key builder.key
  partywall sign web --service web --register web --register web-admin --key builder.key --expires 90d
  partywall sign --image sha256:5a2f...5e6f --service web --key builder.key -o web.image.sig

The signature goes into EXECUTABLE.sig: a DSSE envelope with an in-toto statement. Whoever starts the program looks
for it there. A key that a function host has made (builder.key) can be used as well.";

pub(crate) const VERIFY_HELP: &str = "\
Examples:
  partywall verify target/release/web --service web --trusted builder.pub
  partywall verify web --trusted old.pub --trusted new.pub --revoked /etc/partywall/revoked

Exit status: 0 and a line of what was verified; 1 and the reason, which begins with one of `unsigned`, `altered`,
`untrusted key`, `revoked`, `wrong name`, `expired`, `too early`, `no signature`; 2 for wrong arguments.";

/// How long a signature counts, unless it is said.
const LIFE: &str = "365d";
/// How long it may count at most.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// The most bytes of a private key.
const LARGEST: u64 = 64 << 10;

/// What is to be signed.
#[derive(clap::Args)]
pub(crate) struct Sign {
    /// The program.
    #[arg(value_name = "EXECUTABLE", required_unless_present_any = ["image", "new_key"])]
    executable: Option<PathBuf>,
    /// A container image instead, by its id, as `docker image inspect --format '{{.Id}}'` has it.
    #[arg(
        long,
        value_name = "sha256:DIGITS",
        value_parser = image,
        conflicts_with = "executable",
        requires = "output"
    )]
    image: Option<Image>,
    /// The service that it is: the name under which it is started.
    #[arg(long, value_name = "NAME", value_parser = name, required_unless_present = "new_key")]
    service: Option<String>,
    /// A name that it may serve; may be given several times. Unless given, that of the service.
    #[arg(long, value_name = "NAME", value_parser = name)]
    register: Vec<String>,
    /// The private key.
    #[arg(long, value_name = "KEY", required_unless_present = "new_key")]
    key: Option<PathBuf>,
    /// How long the signature counts, such as `90d` or `12h`; at most ten years.
    #[arg(long, value_name = "DURATION", value_parser = life, default_value = LIFE)]
    expires: Duration,
    /// Where the signature goes, instead of EXECUTABLE.sig.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Make a private key in this file, and its public half beside it, which ends with `.pub`; sign nothing.
    #[arg(
        long,
        value_name = "KEY",
        conflicts_with_all = ["executable", "image", "service", "register", "key", "expires", "output"]
    )]
    new_key: Option<PathBuf>,
}

/// What is to be verified.
#[derive(clap::Args)]
pub(crate) struct Verify {
    /// The program.
    #[arg(value_name = "EXECUTABLE", required_unless_present = "image")]
    executable: Option<PathBuf>,
    /// A container image instead, by its id.
    #[arg(
        long,
        value_name = "sha256:DIGITS",
        value_parser = image,
        conflicts_with = "executable",
        requires = "signature"
    )]
    image: Option<Image>,
    /// The service that it has to be; unless given, any.
    #[arg(long, value_name = "NAME", value_parser = name)]
    service: Option<String>,
    /// The file of a public key whose signatures count; may be given several times.
    #[arg(long, value_name = "KEY.pub", required = true)]
    trusted: Vec<PathBuf>,
    /// The file with the signature, instead of EXECUTABLE.sig.
    #[arg(long, value_name = "FILE")]
    signature: Option<PathBuf>,
    /// A list of what counts no more: SHA-256 of a program, or the id of a key, on each line.
    #[arg(long, value_name = "FILE")]
    revoked: Option<PathBuf>,
}

/// The id of an image.
#[derive(Clone)]
struct Image {
    text: String,
    digest: [u8; 32],
}

fn image(text: &str) -> Result<Image, String> {
    let digits = text.strip_prefix("sha256:").filter(|digits| digits.len() == 64);
    let digit = |at: usize| u8::from_str_radix(digits?.get(2 * at..2 * at + 2)?, 16).ok();
    let hex = digits.is_some_and(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
    let mut digest = [0; 32];
    for (at, byte) in digest.iter_mut().enumerate() {
        *byte = digit(at)
            .filter(|_| hex)
            .ok_or("write an image's id, whole: sha256: and 64 hexadecimal digits")?;
    }
    Ok(Image { text: text.into(), digest })
}

fn name(text: &str) -> Result<String, String> {
    ServiceName::new(text).map(|name| name.as_str().to_owned()).map_err(|e| e.to_string())
}

fn life(text: &str) -> Result<Duration, String> {
    let life =
        humantime::parse_duration(text).map_err(|_| "write a duration such as `90d` or `12h`")?;
    match (1..=LONGEST.as_secs()).contains(&life.as_secs()) {
        true => Ok(life),
        false => Err("a signature counts for 1 s to 10 years (3650d)".into()),
    }
}

impl Sign {
    /// Does it.
    pub(crate) fn run(&self) -> Result<ExitCode, Box<dyn Error>> {
        if let Some(path) = &self.new_key {
            crate::say(&new_key(path)?)?;
            return Ok(ExitCode::SUCCESS);
        }
        let (Some(service), Some(key_file)) = (&self.service, &self.key) else {
            return Err("--service and --key are missing".into());
        };
        let key = private_key(key_file)?;
        let (what, digest, subject) = subject(self.executable.as_deref(), self.image.as_ref())?;
        let said = Program::new(service, self.register.clone(), SystemTime::now(), self.expires);
        let output = match (&self.output, &self.executable) {
            (Some(output), _) => within(output, self.image.as_ref()),
            (None, Some(executable)) => signatures::beside(executable),
            (None, None) => return Err("--output is missing".into()),
        };
        let mut envelope = said.sign(&subject, digest, &key);
        envelope.push(b'\n');
        let written = files::write(&output, &envelope, 0o644, Over::Replace);
        written
            .map_err(|e| format!("{}: {e}; remedy: name another file by -o", output.display()))?;
        let by = key.public().id();
        crate::say(&format!("{}: {what} is signed {}\n", output.display(), described(&said, &by)))?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Verify {
    /// Does it.
    pub(crate) fn run(&self) -> Result<ExitCode, Box<dyn Error>> {
        let trusted = Signatures::load(&self.trusted, self.revoked.as_deref())?;
        let (what, digest, _) = subject(self.executable.as_deref(), self.image.as_ref())?;
        let found = match (&self.signature, &self.executable) {
            (Some(file), _) => Found::at(&within(file, self.image.as_ref())),
            (None, Some(executable)) => Found::beside(executable),
            (None, None) => return Err("--signature is missing".into()),
        };
        let service = self.service.as_deref();
        let (said, key) =
            trusted.check(&found, digest, service, SystemTime::now()).map_err(|e| {
                let image = self.image.as_ref().map(|image| &*image.text);
                let sign = signatures::command(image, service.unwrap_or("NAME"));
                format!("{what}: {e}; remedy: {}", e.remedy(&sign))
            })?;
        crate::say(&format!("{what}: signed {}\n", described(&said, &key)))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The file of an image's signature where a directory of those is named, as a policy names one.
fn within(path: &Path, image: Option<&Image>) -> PathBuf {
    match image.filter(|_| path.is_dir()) {
        Some(image) => signatures::of_image(path, &image.text),
        None => path.to_owned(),
    }
}

/// A statement in words.
fn described(said: &Program, key: &str) -> String {
    let until = SystemTime::UNIX_EPOCH + Duration::from_secs(said.expires);
    format!(
        "for service `{}`, which may serve {}, until {}, by key {key}",
        said.service,
        said.register.join(", "),
        files::date(until)
    )
}

/// What is signed or verified: as it is called, its digest, and its name in a statement.
fn subject(
    executable: Option<&Path>,
    image: Option<&Image>,
) -> Result<(String, [u8; 32], String), Box<dyn Error>> {
    match (executable, image) {
        (Some(path), _) => {
            let shown = path.display().to_string();
            let digest = signatures::digest_of(path)
                .map_err(|e| format!("{shown}: {e}; remedy: name the program's file"))?;
            let name = path.file_name().unwrap_or(path.as_os_str());
            Ok((shown, digest, name.to_string_lossy().into_owned()))
        }
        (None, Some(Image { text, digest })) => Ok((text.clone(), *digest, text.clone())),
        (None, None) => Err("EXECUTABLE is missing".into()),
    }
}

fn private_key(path: &Path) -> Result<SigningKey, String> {
    let remedy = "make one by `partywall sign --new-key KEY`";
    let text = Kind::Signer.read_secret(path, LARGEST);
    let text = text.map_err(|why| format!("{}: {}", path.display(), why.said(remedy)))?;
    SigningKey::from_pem(&text).map_err(|e| format!("{}: {e}; remedy: {remedy}", path.display()))
}

/// Makes a key; the public half is there first, so that a private key is never without it.
fn new_key(path: &Path) -> Result<String, String> {
    let public = path.with_extension("pub");
    if public == path {
        return Err(format!(
            "{}: this is the name of a public key; remedy: name the private key's file, as `builder.key`",
            path.display()
        ));
    }
    let key = SigningKey::generate();
    let failed = |path: &Path, e: std::io::Error| match e.kind() {
        std::io::ErrorKind::AlreadyExists => format!(
            "{}: there is such a file already, which stays as it is; remedy: name another one",
            path.display()
        ),
        _ => format!("{}: {e}; remedy: name a file that can be written", path.display()),
    };
    if path.exists() {
        return Err(failed(path, std::io::ErrorKind::AlreadyExists.into()));
    }
    files::write(&public, key.public().to_pem().as_bytes(), 0o644, Over::Refuse)
        .map_err(|e| failed(&public, e))?;
    files::write(path, key.to_pem().as_bytes(), 0o600, Over::Refuse)
        .map_err(|e| failed(path, e))?;
    Ok(format!(
        "{}: a private key; keep it where programs are built\n{}: its public half, for [signatures] keys and \
         for `partywall verify`; its id is {}\n",
        path.display(),
        public.display(),
        key.public().id()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_duration_name_or_image_is_refused() {
        assert_eq!(life("90d"), Ok(Duration::from_secs(90 * 24 * 3600)));
        assert_eq!(life(LIFE), Ok(Duration::from_secs(365 * 24 * 3600)));
        for bad in ["", "0s", "10ms", "3651d", "x", "-1d"] {
            assert!(life(bad).is_err(), "{bad}");
        }
        let id = format!("sha256:{}", "0a".repeat(32));
        assert_eq!(image(&id).unwrap_or_else(|e| panic!("{e}")).digest, [10; 32]);
        for bad in ["", "web:1", &id[7..], &id[..70], &format!("sha256:+{}", "0".repeat(63))] {
            assert!(image(bad).is_err(), "{bad}");
        }
        assert!(name("web").is_ok() && name("Web").is_err());
    }
}
