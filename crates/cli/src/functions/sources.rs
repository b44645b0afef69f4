//! The files of a function, and what else is given for it.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use partywall_fn_host::checks;
use partywall_functions::builder::ROOT;
use partywall_functions::source::File;
use serde_bytes::ByteBuf;

/// What a function begins as.
const TEMPLATE: &str = "\
//! Answers with the request in capital letters.
//!
//!     partywall fn test NAME.rs --request hello
//!     partywall fn deploy NAME.rs
//!     echo hello | partywall fn invoke NAME

pub fn handle(request: Request<'_>) -> Reply {
    let text = request.text()?;
    log!(\"a request with {} bytes\", text.len());
    Ok(text.to_uppercase().into_bytes())
}
";

/// A new function.
#[derive(clap::Args)]
pub(crate) struct New {
    /// Its name; the file is NAME.rs.
    #[arg(value_parser = new_name)]
    name: String,
}

impl New {
    pub(super) fn run(&self) -> Result<ExitCode, Box<dyn Error>> {
        let path = PathBuf::from(format!("{}.rs", self.name));
        let mut options = fs::OpenOptions::new();
        let file = options.write(true).create_new(true).open(&path);
        let written = file
            .and_then(|mut file| file.write_all(TEMPLATE.replace("NAME", &self.name).as_bytes()));
        written.map_err(|error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => {
                format!("{}: there is such a file already; choose another name", path.display())
            }
            _ => format!("{}: {error}", path.display()),
        })?;
        crate::say(&format!(
            "{}: try it with `partywall fn test {} --request hello`\n",
            path.display(),
            path.display()
        ))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// A name of a function.
pub(super) fn name(text: &str) -> Result<String, String> {
    checks::name(text).map(|()| text.to_owned()).map_err(|status| status.message().to_owned())
}

/// The name of a new function; who gives its file means that.
fn new_name(text: &str) -> Result<String, String> {
    name(text.strip_suffix(".rs").unwrap_or(text))
}

/// A time, such as `500us`, `20ms` or `1s`.
pub(super) fn time(text: &str) -> Result<Duration, String> {
    let at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let unit_ns = match unit {
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => 0.0,
    };
    let nanoseconds = number.trim().parse::<f64>().ok().map(|number| number * unit_ns);
    nanoseconds
        .filter(|ns| (1.0..1e15).contains(ns))
        .map(|ns| Duration::from_nanos(ns as u64))
        .ok_or_else(|| "write a time such as `500us`, `20ms` or `1s`".to_owned())
}

/// What a function is made of.
#[derive(clap::Args)]
pub(crate) struct Sources {
    /// Its file, or the directory with its main.rs.
    #[arg(value_name = "FILE")]
    path: PathBuf,
}

impl Sources {
    /// Its name, unless another one is given: that of the file or directory.
    pub(super) fn name(&self) -> Result<String, Box<dyn Error>> {
        let real = fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone());
        let part = if real.is_dir() { real.file_name() } else { real.file_stem() };
        let part = part.unwrap_or_default().to_string_lossy().into_owned();
        checks::name(&part).map_err(|status| {
            format!("{}: {}; or give one with --name", self.path.display(), status.message())
        })?;
        Ok(part)
    }

    /// Its files.
    pub(super) fn files(&self) -> Result<Vec<File>, Box<dyn Error>> {
        let found = fs::metadata(&self.path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => format!(
                "{}: there is no such file; name that of a function, or a directory with its {ROOT}; \
                 `partywall fn new NAME` writes NAME.rs",
                self.path.display()
            ),
            _ => format!("{}: {error}", self.path.display()),
        })?;
        if !found.is_dir() {
            return Ok(vec![File { path: ROOT.into(), text: read(&self.path)? }]);
        }
        if !self.path.join(ROOT).is_file() {
            return Err(format!(
                "{}: there is no {ROOT} in it; a function in a directory begins there",
                self.path.display()
            )
            .into());
        }
        let mut files = Vec::new();
        collect(&self.path, "", &mut files)?;
        Ok(files)
    }
}

fn collect(directory: &Path, below: &str, files: &mut Vec<File>) -> Result<(), Box<dyn Error>> {
    let failed = |error| format!("{}: {error}", directory.display());
    let mut entries: Vec<_> =
        fs::read_dir(directory).map_err(failed)?.collect::<Result<_, _>>().map_err(failed)?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name().to_string_lossy().into_owned();
        let (path, kind) = (entry.path(), entry.file_type().map_err(failed)?);
        let is_source = path.extension().is_some_and(|end| end == "rs" || end == "proto");
        if name.starts_with('.') || name == "target" {
            continue;
        } else if kind.is_dir() {
            collect(&path, &format!("{below}{name}/"), files)?;
        } else if is_source {
            files.push(File { path: format!("{below}{name}"), text: read(&path)? });
        }
        if files.len() > checks::FILES {
            let text = format!(
                "{}: over {} files; is this a function?",
                directory.display(),
                checks::FILES
            );
            return Err(text.into());
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<String, String> {
    let named = |why: String| format!("{}: {why}", path.display());
    let bytes = fs::metadata(path).map_err(|error| named(error.to_string()))?;
    if !bytes.is_file() || bytes.len() > checks::SOURCES as u64 {
        let most = checks::SOURCES;
        return Err(named(format!("a source is a regular file of at most {most} bytes")));
    }
    let text = fs::read(path).map_err(|error| named(error.to_string()))?;
    String::from_utf8(text).map_err(|_| named("it is no UTF-8; save it as that".into()))
}

/// Parameters and secrets.
#[derive(clap::Args)]
pub(crate) struct Values {
    /// A parameter: NAME=TEXT, or NAME=@FILE. `request.parameter("NAME")` has it.
    #[arg(long, value_name = "NAME=VALUE")]
    param: Vec<String>,
    /// A secret, which is a parameter that nobody is shown: NAME=@FILE; a text would be seen by `ps`.
    #[arg(long, value_name = "NAME=@FILE")]
    secret: Vec<String>,
}

pub(super) type Map = BTreeMap<String, ByteBuf>;

impl Values {
    /// Parameters and secrets by their names.
    pub(super) fn read(&self) -> Result<[Map; 2], Box<dyn Error>> {
        let parameters = map(&self.param, "--param")?;
        if let Some(open) = self.secret.iter().find(|text| !text.contains("=@")) {
            let name = open.split('=').next().unwrap_or_default();
            return Err(format!(
                "--secret {name}: a secret is read from a file: --secret {name}=@FILE, or \
                 {name}=@/dev/stdin"
            )
            .into());
        }
        Ok([parameters, map(&self.secret, "--secret")?])
    }
}

fn map(texts: &[String], flag: &str) -> Result<Map, Box<dyn Error>> {
    let mut map = Map::new();
    for text in texts {
        let (name, value) =
            text.split_once('=').ok_or_else(|| format!("{flag} {text}: write NAME=VALUE"))?;
        let value = match value.strip_prefix('@') {
            Some(file) => fs::read(file).map_err(|e| format!("{flag} {name}: {file}: {e}"))?,
            None => value.as_bytes().to_vec(),
        };
        if map.insert(name.to_owned(), ByteBuf::from(value)).is_some() {
            return Err(format!("{flag} {name}: it is given twice").into());
        }
    }
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        for (text, ns) in [("500us", 500_000), ("1.5ms", 1_500_000), ("2s", 2_000_000_000)] {
            assert_eq!(time(text), Ok(Duration::from_nanos(ns)), "{text}");
        }
        for bad in ["", "5", "us", "-1us", "0us", "1h", "1e30s", "NaNus"] {
            assert!(time(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_directory_has_its_sources_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("Words");
        fs::create_dir_all(tree.join("shapes")).unwrap();
        fs::create_dir_all(tree.join("target")).unwrap();
        let sources = Sources { path: tree.clone() };
        assert!(sources.files().unwrap_err().to_string().contains("there is no main.rs"));
        for (file, text) in [
            ("main.rs", "a"),
            ("shapes/circle.rs", "b"),
            ("types.proto", "c"),
            ("notes.txt", "x"),
            (".hidden.rs", "x"),
            ("target/x.rs", "x"),
        ] {
            fs::write(tree.join(file), text).unwrap();
        }
        let files = sources.files().unwrap();
        let paths: Vec<_> = files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, ["main.rs", "shapes/circle.rs", "types.proto"]);
        // Another file's name would be the same in small letters.
        assert!(sources.name().unwrap_err().to_string().contains("or give one with --name"));
        fs::write(tree.join("latin.rs"), b"\xe9").unwrap();
        assert!(sources.files().unwrap_err().to_string().contains("latin.rs: it is no UTF-8"));
    }

    #[test]
    fn secrets_are_read_from_files_only() {
        let values = |param: &[&str], secret: &[&str]| {
            let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
            Values { param: texts(param), secret: texts(secret) }.read().map_err(|e| e.to_string())
        };
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("key");
        fs::write(&file, b"\xff\0").unwrap();
        let at = format!("key=@{}", file.display());
        let [parameters, secrets] = values(&["a=1", "b=x=y"], &[&at]).unwrap();
        assert_eq!(parameters["b"], b"x=y"[..]);
        assert_eq!(secrets["key"], b"\xff\0"[..]);
        assert!(values(&[], &["key=open"]).unwrap_err().contains("--secret key=@FILE"));
        assert!(values(&["a"], &[]).unwrap_err().contains("write NAME=VALUE"));
        assert!(values(&["a=1", "a=2"], &[]).unwrap_err().contains("given twice"));
    }
}
