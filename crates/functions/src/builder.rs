//! From a source to a checked image: the order of steps, and the compiler's arguments.
//!
//! ```text
//! source::check -> proto::module -> libraries (once) -> sandbox: rustc (function, -F unsafe_code),
//!                                                                rustc (shim, linked) -> verify::image
//!                                                          ^                              |
//!                     another layout or level, up to 8 times, if bytes are forbidden -----'
//! ```
//!
//! The function is a crate of its own, compiled without `unsafe`. The shim is ours: it has the entry, the
//! heap and the panic handler, and is linked with the function into one object without any library. The first
//! try has constants behind the code if all of it is on one page then, as the linker's script finds. The
//! compiler is a host's own, as is its `core` and `alloc`; its version is in the image's digest. So are the
//! crates that the function names ([`crate::crates`]).

mod libraries;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_bytes::ByteBuf;
use sha2::{Digest as _, Sha256};

use crate::crates;
use crate::image::{COMPACT_BYTES, Image};
use crate::proto::{self, GENERATOR, ProtoError};
use crate::sandbox::{self, BUILD, Job, Limits, Outcome, SandboxError, TOOLCHAIN};
use crate::source::{self, File, SourceError};
use crate::verify::{self, VerifyError};
use libraries::{Libraries, Linked};

/// The target of all functions.
const TARGET: &str = "x86_64-unknown-linux-gnu";
/// How often a function is built, at most, until its bytes pass.
pub const TRIES: u32 = 8;
/// The file that a function begins in.
pub const ROOT: &str = "main.rs";

/// What is behind the last line of the function's root: what the shim calls.
const ENTRY: &str = "extern crate alloc;\n\
     #[doc(hidden)] pub fn partywall_handle(request: partywall_fn::Request<'_>) -> partywall_fn::Reply \
     { self::handle(request) }\n";
const SHIM: &str = include_str!("builder/shim.rs");
const LAYOUT: &str = include_str!("builder/layout.ld");

/// The crate that functions are written against.
const CRATE: [(&str, &str); 9] = [
    ("lib.rs", include_str!("../../fn/src/lib.rs")),
    ("clock.rs", include_str!("../../fn/src/clock.rs")),
    ("error.rs", include_str!("../../fn/src/error.rs")),
    ("cell.rs", include_str!("../../fn/src/cell.rs")),
    ("log.rs", include_str!("../../fn/src/log.rs")),
    ("random.rs", include_str!("../../fn/src/random.rs")),
    ("request.rs", include_str!("../../fn/src/request.rs")),
    ("rt.rs", include_str!("../../fn/src/rt.rs")),
    ("service.rs", include_str!("../../fn/src/service.rs")),
];

/// Why a function is not built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// Its tokens.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// Its `.proto` files.
    #[error(transparent)]
    Proto(#[from] ProtoError),
    /// There is no file to begin with.
    #[error("a function begins in `{ROOT}`, which is not among its files")]
    NoRoot,
    /// There is nothing to call.
    #[error("`{ROOT}` has no function to call: `pub fn handle(request: Request<'_>) -> Reply`")]
    NoHandle,
    /// A step of the builder's own, which no source should make fail.
    #[error("the builder cannot link the function: {0}")]
    Linker(String),
    /// A crate that the function names, which is ours to compile.
    #[error("the builder cannot compile the crate `{name}`: {why}")]
    Library {
        /// Which.
        name: String,
        /// What the compiler says.
        why: String,
    },
    /// The compiler's errors, with places in the function's own files.
    #[error("{0}")]
    Compiler(String),
    /// The build has used up something.
    #[error("building takes {0}, which is the most; a constant or a type may be too large")]
    Limit(String),
    /// The object is no function's.
    #[error("{0}")]
    Verify(#[from] VerifyError),
    /// The bytes of each try have an instruction that no function has.
    #[error(
        "{0}; {TRIES} layouts have such bytes: is there a constant with them in that function?"
    )]
    Forbidden(VerifyError),
    /// The builder, not the function.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// There is no compiler.
    #[error("the compiler `{}`: {why}", .rustc.display())]
    Toolchain {
        /// Which.
        rustc: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

/// A compiler of this host.
#[derive(Debug, Clone)]
pub struct Toolchain {
    directory: PathBuf,
    libraries: Vec<PathBuf>,
    version: String,
}

impl Toolchain {
    /// The compiler that this program is or stands for.
    ///
    /// # Errors
    /// [`BuildError::Toolchain`] when it does not run, or has no library for functions.
    pub fn of(rustc: &Path) -> Result<Self, BuildError> {
        let bad = |why: String| BuildError::Toolchain { rustc: rustc.into(), why };
        let ask = |arguments: &[&str]| {
            let out = Command::new(rustc).args(arguments).output().map_err(|error| {
                bad(format!("{error}; install Rust, or name the path of a compiler"))
            })?;
            let said = String::from_utf8_lossy(if out.status.success() {
                &out.stdout
            } else {
                &out.stderr
            });
            if out.status.success() { Ok(said.trim().to_owned()) } else { Err(bad(said.into())) }
        };
        let directory = PathBuf::from(ask(&["--print", "sysroot"])?);
        let version = ask(&["--version", "--verbose"])?;
        let target = directory.join("lib/rustlib").join(TARGET);
        for part in ["lib", "bin/rust-lld"] {
            if !target.join(part).exists() {
                let path = target.join(part);
                return Err(bad(format!("there is no `{}`", path.display())));
            }
        }
        let program = directory.join("bin/rustc");
        let mut libraries = needed(&program).map_err(&bad)?;
        libraries.retain(|library| !library.starts_with(&directory));
        Ok(Self { directory, libraries, version })
    }

    /// What the compiler says of itself.
    pub fn version(&self) -> &str {
        &self.version
    }
}

/// The shared libraries of a trusted program, as its loader finds them (ld.so(8), `LD_TRACE_LOADED_OBJECTS`).
fn needed(program: &Path) -> Result<Vec<PathBuf>, String> {
    let out = Command::new(program).env("LD_TRACE_LOADED_OBJECTS", "1").output();
    let out = out.map_err(|e| format!("{}: {e}", program.display()))?;
    let text = String::from_utf8_lossy(&out.stdout);
    let path = |line: &str| {
        let found = line.split_whitespace().find(|word| word.starts_with('/'));
        found.map(PathBuf::from)
    };
    Ok(text.lines().filter_map(path).collect())
}

/// A builder of functions.
#[derive(Debug)]
pub struct Builder {
    toolchain: Toolchain,
    sandbox: Vec<String>,
    limits: Limits,
    /// `partywall-fn` and the crates that functions name, compiled once.
    libraries: Libraries,
    /// What a test leaves out; else nothing.
    without: Vec<Layer>,
}

/// A layer that a test of those behind it leaves out.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layer {
    /// The tokens ([`source::check`]).
    Lexer,
    /// `-F unsafe_code`.
    Lint,
    /// The object ([`verify::image`]).
    Verifier,
}

/// What has been built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Built {
    /// The image.
    pub image: Image,
    /// The name of what it is made of: SHA-256 over sources, compiler and crates.
    pub digest: [u8; 32],
    /// How many tries it has taken.
    pub tries: u32,
    /// Why the tries before the last were none.
    pub refused: Vec<VerifyError>,
}

/// A variant of the same build.
struct Try {
    level: &'static str,
    seed: u32,
    /// The most bytes of an image whose constants are behind its code.
    compact: u32,
}

impl Try {
    fn of(number: u32) -> Self {
        let level = ["3", "3", "3", "s", "s", "2", "1", "z"][number as usize % 8];
        // Bytes that are forbidden in code may be those of a constant.
        Self { level, seed: number, compact: if number == 0 { COMPACT_BYTES } else { 0 } }
    }
}

impl Builder {
    /// One that starts the program `sandbox` for its sandbox ([`sandbox::main`]).
    pub fn new(toolchain: Toolchain, sandbox: Vec<String>, limits: Limits) -> Self {
        Self { toolchain, sandbox, limits, libraries: Libraries::default(), without: Vec::new() }
    }

    /// The same without some layers: only for tests of those behind them.
    #[doc(hidden)]
    pub fn without_for_tests(mut self, layers: &[Layer]) -> Self {
        self.without = layers.to_vec();
        self
    }

    /// The object of the first try, with constants apart or not, before it is verified: only for tests.
    ///
    /// # Errors
    /// [`BuildError`].
    #[doc(hidden)]
    pub fn object_for_tests(&self, files: &[File], apart: bool) -> Result<Vec<u8>, BuildError> {
        let (files, linked) = self.prepared(files)?;
        let mut variant = Try::of(0);
        variant.compact = if apart { 0 } else { variant.compact };
        self.object(&files, &linked, &variant)
    }

    /// The digest that the image of these files has.
    pub fn digest(&self, files: &[File]) -> [u8; 32] {
        let mut digest = Sha256::new();
        let mut part = |bytes: &[u8]| {
            digest.update((bytes.len() as u64).to_le_bytes());
            digest.update(bytes);
        };
        part(b"partywall function 1");
        part(self.toolchain.version.as_bytes());
        for (path, text) in CRATE.iter().chain(&[("shim", SHIM), ("layout", LAYOUT)]) {
            part(path.as_bytes());
            part(text.as_bytes());
        }
        for (name, reviewed) in crates::digests(&names(files)) {
            part(name.as_bytes());
            part(reviewed.as_bytes());
        }
        if files.iter().any(|file| file.path.ends_with(".proto")) {
            part(GENERATOR.as_bytes());
        }
        let mut files: Vec<_> = files.iter().map(|file| (&file.path, &file.text)).collect();
        files.sort_unstable();
        for (path, text) in files {
            part(path.as_bytes());
            part(text.as_bytes());
        }
        digest.finalize().into()
    }

    /// Builds a function.
    ///
    /// # Errors
    /// [`BuildError`]: what the author can mend has its place in the author's files.
    pub fn build(&self, files: &[File]) -> Result<Built, BuildError> {
        let (whole, linked) = self.prepared(files)?;
        let digest = self.digest(files);
        let verify = match self.without.contains(&Layer::Verifier) {
            true => verify::unchecked_for_tests,
            false => verify::image,
        };
        let (mut number, mut refused) = (0, Vec::new());
        loop {
            let object = self.object(&whole, &linked, &Try::of(number))?;
            number += 1;
            match verify(&object) {
                Ok(image) => return Ok(Built { image, digest, tries: number, refused }),
                Err(why) if why.is_chance() && number < TRIES => refused.push(why),
                Err(why) if why.is_chance() => return Err(BuildError::Forbidden(why)),
                Err(why) => return Err(why.into()),
            }
        }
    }

    /// All files, with those that are made of others, and what is linked with them.
    fn prepared(&self, files: &[File]) -> Result<(Vec<File>, Linked), BuildError> {
        if !self.without.contains(&Layer::Lexer) {
            source::check(files)?;
        }
        if !files.iter().any(|file| file.path == ROOT) {
            return Err(BuildError::NoRoot);
        }
        let names = names(files);
        let sources = files.iter().filter(|file| file.path.ends_with(".rs")).cloned();
        let files: Vec<_> = sources.chain(self.module(files)?).collect();
        if !self.without.contains(&Layer::Lexer) {
            source::check_made(&files)?;
        }
        let linked = self.libraries.linked(&names, |job| self.outcome(job))?;
        Ok((files, linked))
    }

    /// The module of the messages of all `.proto` files, if there are some.
    fn module(&self, files: &[File]) -> Result<Option<File>, BuildError> {
        let Some(protos) = proto::sources(files)? else { return Ok(None) };
        let protos = protos.into_iter().map(|(path, text)| (path, ByteBuf::from(text)));
        let mut job = Job::new(protos.collect(), Vec::new(), proto::MODULE, self.limits);
        job.has_messages = true;
        let text = match self.outcome(job)? {
            Outcome::Output(text) => String::from_utf8_lossy(&text).into_owned(),
            Outcome::Failed(_, why) => return Err(ProtoError::Messages(why).into()),
            Outcome::Limit(what) => return Err(BuildError::Limit(what)),
        };
        Ok(Some(File { path: proto::MODULE.into(), text }))
    }

    fn object(
        &self,
        files: &[File],
        linked: &Linked,
        variant: &Try,
    ) -> Result<Vec<u8>, BuildError> {
        let file = |File { path, text }: &File| {
            let text = text.strip_prefix('\u{feff}').unwrap_or(text);
            // On the author's first line and behind the last: lines keep their numbers.
            let (begin, end) = if path == ROOT { ("#![no_std] ", ENTRY) } else { ("", "") };
            let prelude = "#[allow(unused_imports)]\nuse partywall_fn::prelude::*;\n";
            (format!("function/{path}"), ByteBuf::from(format!("{begin}{text}\n{prelude}{end}")))
        };
        let mut all = linked.files.clone();
        all.extend(files.iter().map(file));
        all.insert("shim.rs".into(), ByteBuf::from(SHIM));
        let layout = LAYOUT.replace("COMPACT", &variant.compact.to_string());
        all.insert("layout.ld".into(), ByteBuf::from(layout));
        let words = |text: &str| text.split_whitespace().map(String::from).collect::<Vec<_>>();
        let mut function = rustc(variant.level, "2024");
        let lint = if self.without.contains(&Layer::Lint) { "" } else { "-F unsafe_code" };
        function.extend(words(&format!(
            "--crate-type rlib --crate-name function {lint} --remap-path-prefix function/= \
             function/{ROOT} -o libfunction.rlib"
        )));
        function.extend(linked.arguments.iter().cloned());
        let mut shim = rustc(variant.level, "2024");
        let lld = format!("{TOOLCHAIN}/lib/rustlib/{TARGET}/bin/rust-lld");
        shim.extend(words(&format!(
            "--crate-type cdylib --crate-name shim --cap-lints allow -C lto=fat -C strip=none \
             --extern partywall_fn=libpartywall_fn.rlib --extern function=libfunction.rlib \
             -L dependency={BUILD} -C linker={lld} -C linker-flavor=ld.lld \
             -C link-arg=-Tlayout.ld -C link-arg=--entry=partywall_entry -C link-arg=-Bsymbolic \
             -C link-arg=--hash-style=sysv -C link-arg=--build-id=none -C link-arg=-znorelro \
             shim.rs -o function.so"
        )));
        if variant.seed != 0 {
            let mut seed = String::new();
            let _infallible = write!(seed, "-Clink-arg=--shuffle-sections=.text*={}", variant.seed);
            shim.push(seed);
        }
        self.run(all, vec![function, shim], "function.so")
    }

    fn run(
        &self,
        files: BTreeMap<String, ByteBuf>,
        commands: Vec<Vec<String>>,
        output: &str,
    ) -> Result<Vec<u8>, BuildError> {
        let job = Job::new(files, commands, output, self.limits);
        match self.outcome(job)? {
            Outcome::Output(bytes) => Ok(bytes.into_vec()),
            Outcome::Failed(0, said) if said.contains("cannot find function `handle`") => {
                Err(BuildError::NoHandle)
            }
            Outcome::Failed(0, said) => Err(BuildError::Compiler(scrubbed(&said) + &hint(&said))),
            Outcome::Failed(_, said) => Err(BuildError::Linker(said)),
            Outcome::Limit(what) => Err(BuildError::Limit(what)),
        }
    }

    /// Runs a job with this builder's compiler.
    fn outcome(&self, mut job: Job) -> Result<Outcome, BuildError> {
        job.toolchain.clone_from(&self.toolchain.directory);
        job.libraries.clone_from(&self.toolchain.libraries);
        Ok(sandbox::run(&self.sandbox, &job)?)
    }
}

/// The crates that these files name.
fn names(files: &[File]) -> BTreeSet<&'static str> {
    let mut names = crates::named(files);
    if files.iter().any(|file| file.path.ends_with(".proto")) {
        names.insert("prost");
    }
    names
}

/// The compiler, with what all its calls have in common.
fn rustc(level: &str, edition: &str) -> Vec<String> {
    let arguments = format!(
        "{TOOLCHAIN}/bin/rustc --sysroot {TOOLCHAIN} --target {TARGET} --edition {edition} \
         --color never --diagnostic-width 100 -C panic=abort -C codegen-units=1 -C embed-bitcode=yes \
         -C relocation-model=pic -C debuginfo=0 -C opt-level={level}"
    );
    arguments.split_whitespace().map(String::from).collect()
}

/// Macros of the standard library that write somewhere.
const OUTPUT: [&str; 5] = ["println", "print", "eprintln", "eprint", "dbg"];
/// Methods of floats that only the standard library has.
const MATHEMATICS: [&str; 24] = [
    "acos", "asin", "atan", "atan2", "cbrt", "ceil", "cos", "exp", "exp2", "floor", "fract",
    "hypot", "ln", "log", "log10", "log2", "mul_add", "powf", "powi", "round", "sin", "sqrt",
    "tan", "trunc",
];

/// What the compiler cannot know: what there is in place of what is not there, and how a function is called.
fn hint(said: &str) -> String {
    let after = |mark: &str| said.split_once(mark)?.1.split('`').next();
    let name = after("unresolved module or unlinked crate `").or(after("no external crate `"));
    let known = crates::ALLOWED.join("`, `");
    let mut hints = Vec::new();
    match name {
        None => {}
        Some("std") => hints.push(
            "a function has no standard library; much of it is in `core` and `alloc`, maps are \
             `alloc::collections::BTreeMap`, and the time is in `partywall_fn::clock`"
                .into(),
        ),
        Some(name) => hints.push(format!(
            "there is no crate `{name}` for functions; they may use `{known}`, `core` and `alloc`"
        )),
    }
    if after("cannot find macro `").is_some_and(|name| OUTPUT.contains(&name)) {
        hints.push("a function has no standard output; `log!` writes a line of its log".into());
    }
    let is_of_floats =
        ["`f32`", "`f64`"].iter().any(|kind| said.contains(&format!(" found for type {kind}")));
    if is_of_floats && after("no method named `").is_some_and(|name| MATHEMATICS.contains(&name)) {
        hints.push(
            "a function has no mathematics of floating point beyond `core`, and no crate for it: what it needs \
             is to be in its source"
                .into(),
        );
    }
    if said.contains("self::handle(request)") {
        hints.push("it is called as `pub fn handle(request: Request<'_>) -> Reply`".into());
    }
    hints.iter().map(|hint| format!("\n\n{hint}")).collect()
}

/// What the author sees: without paths of the sandbox, and without hints for who calls the compiler.
fn scrubbed(said: &str) -> String {
    let mut text = said.replace("/build/", "").replace("function/", "");
    while let Some(at) = text.find("/toolchain/") {
        let end = text[at..].find(char::is_whitespace).map_or(text.len(), |end| at + end);
        text.replace_range(at..end, "the toolchain");
    }
    let is_hint = |line: &&str| {
        !line.starts_with("For more information about")
            && !line.starts_with("Some errors have detailed")
    };
    let lines: Vec<_> = text.lines().filter(is_hint).collect();
    lines.join("\n").trim_end().to_owned()
}
