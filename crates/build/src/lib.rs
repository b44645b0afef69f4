//! Stubs for `.proto` files: those of tonic, whose unary calls take a shorter way where the client's channel
//! is a `partywall::Channel` and the server a `partywall::Server`.
//!
//! In `build.rs`, in place of tonic-prost-build:
//!
//! ```no_run
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     partywall_build::compile_protos("proto/greeter.proto")?;
//!     Ok(())
//! }
//! ```
//!
//! ```toml
//! [dependencies]
//! partywall = { path = "../partywall/crates/partywall" }
//! prost = "0.14"
//! tonic = "0.14"
//! tonic-prost = "0.14"
//!
//! [build-dependencies]
//! partywall-build = { path = "../partywall/crates/build", features = ["blocking"] }
//! ```
//!
//! The crate that includes the stubs depends on `partywall`, `tonic`, `prost` and `tonic-prost`. Modules,
//! types, traits and signatures are those of tonic-prost-build: services and callers compile as they are. The
//! stubs work over other transports as tonic's do, and streams, interceptors, layers and compression go
//! tonic's way on all of them. `.proto` files are compiled by protox: there is no protoc.
//!
//! # Without a runtime
//!
//! With the feature `blocking` there is also a client for each service that calls its unary methods by plain
//! functions on a `partywall::blocking::Channel`:
//!
//! ```text
//! let channel = partywall::blocking::Channel::connect("partywall:///greeter")?;
//! let mut client = greeter_blocking::GreeterClient::new(channel);
//! let reply = client.say_hello(HelloRequest { name: "you".into() })?;
//! ```
//!
//! A deadline is that of the request ([`tonic::Request::set_timeout`]), metadata are as in tonic.
//!
//! [`tonic::Request::set_timeout`]: https://docs.rs/tonic/latest/tonic/struct.Request.html#method.set_timeout
//!
//! # What a `.proto` file demands
//!
//! A file can say what the calls of a service or a method need of the link that they travel over:
//!
//! ```proto
//! import "partywall/security.proto";
//!
//! service Billing {
//!   option (partywall.security) = { seal: REQUIRED evidence: STARTED };
//!   rpc Show(ShowRequest) returns (ShowReply);
//!   rpc Charge(ChargeRequest) returns (ChargeReply) {
//!     option (partywall.method_security).sign = REQUIRED;
//!   }
//! }
//! ```
//!
//! The import is built in, and needs no directory. Another compiler has it by [`write_imports`], or from
//! `proto/partywall/security.proto` of this crate. Of a method and its service the stricter one counts, field
//! by field: a method adds to what its service demands, and takes nothing away.
//!
//! | field | values | demands of the link |
//! | --- | --- | --- |
//! | `seal` | `OFF`, `REQUIRED` | it is sealed |
//! | `sign` | `OFF`, `REQUIRED` | messages are signed |
//! | `evidence` | `OBSERVED`, `STARTED` | how the identities of its ends are known |
//!
//! The client checks the link that a call takes, before anything of it is sent; the service checks it before
//! the handler is called. Each does so by itself. A call that needs more than its link has fails with
//! FAILED_PRECONDITION. The text says what is required, by what, and what to do. A client over a channel that
//! is not `partywall::Channel` does not know what protects its calls, so that all calls with a demand fail. A
//! method without a demand costs nothing: its stubs are as they were. The module `partywall::stubs::demand`
//! has how it is checked.
//!
//! Descriptors that prost has decoded have lost these options: files with the import are refused by
//! [`Builder::compile_fds`]. [`Builder::service_generator`] cannot see them.
//!
//! # What differs
//!
//! - The well-known types of [`Builder::compile_well_known_types`] are those of protox, without comments,
//!   unless a directory of imports has them. It has no `google/protobuf/go_features.proto`.
//! - Files with an `edition` are not compiled.
//! - Of what is wrong in a file the first is told alone.
//! - [`Builder::compile_fds`] writes [`Builder::file_descriptor_set_path`] as well.
//! - A setting of the builder that is no Rust is an error, not a panic.
//! - A `file_descriptor_set_path` of prost's [`Config`] is refused, but where descriptors are read from it:
//!   see [`Builder::compile_with_config`].
//!
//! # How
//!
//! tonic-prost-build generates. What it has made is changed in five places, for methods without streams and
//! with prost's codec, and in two more where a method of any kind has a demand:
//!
//! ```text
//! a client's field    tonic::client::Grpc<T>     ->  partywall::stubs::Grpc<T>
//! a client's method   self.inner.unary(..)       ->  self.inner.call(&mut Unary::new(&METHOD, ..))
//! a server's call                                +   partywall::stubs::offer(&req, self)
//! a server's arm      tonic::server::Grpc        ->  partywall::stubs::ordinary, which many methods share
//! a server            impl Service for ..Server  ->  partywall::stubs::Generated, its table of methods
//!
//! with a demand
//! a client's method   self.inner.streaming(..)   ->  self.inner.demanding(&DEMAND).streaming(..)
//! a server's arm                                 +   partywall::stubs::refused(&DEMAND, &req)
//! its table           request.decode()           ->  request.demand(&DEMAND)?.decode()
//! ```

use std::io;
use std::path::{Path, PathBuf};

use prost::Message as _;
use prost_build::ServiceGenerator;
use syn::parse::Parser as _;
pub use tonic_prost_build::{
    Config, FileDescriptorSet, TonicAttributes, TonicMethod, TonicService, manual,
};

mod config;
mod demand;
mod error;
mod native;

use demand::Demands;
pub use demand::{Demand, Evidence, compiler, demands, write_imports};

/// Compiles one file with its directory as where imports are looked for.
///
/// # Errors
/// As [`Builder::compile_protos`].
pub fn compile_protos(proto: impl AsRef<Path>) -> io::Result<()> {
    let proto = proto.as_ref();
    let directory = proto.parent().filter(|directory| !directory.as_os_str().is_empty());
    configure().compile_protos(&[proto], &[directory.unwrap_or(Path::new("."))])
}

/// Generates from descriptors.
///
/// # Errors
/// As [`Builder::compile_fds`].
pub fn compile_fds(fds: FileDescriptorSet) -> io::Result<()> {
    configure().compile_fds(fds)
}

/// Settings, which are those of tonic-prost-build.
pub fn configure() -> Builder {
    Builder {
        tonic: tonic_prost_build::configure(),
        client: true,
        server: true,
        own_codec: false,
        descriptors: None,
        out_dir: None,
        compiles: true,
        watches: false,
        demands: Demands::default(),
        wrong: None,
    }
}

/// Generates stubs. Its settings mean what they mean in [`tonic_prost_build::Builder`].
#[derive(Clone, Debug)]
pub struct Builder {
    tonic: tonic_prost_build::Builder,
    client: bool,
    server: bool,
    /// Another codec than prost's.
    own_codec: bool,
    descriptors: Option<PathBuf>,
    out_dir: Option<PathBuf>,
    /// Files are compiled, not read as descriptors.
    compiles: bool,
    /// Cargo is told of the files.
    watches: bool,
    /// Of the files, once they are compiled or read.
    demands: Demands,
    /// What is said of the first setting that is no Rust.
    wrong: Option<String>,
}

/// Settings that are handed on as they are.
macro_rules! handed_on {
    ($(
        $(#[$doc:meta])*
        $name:ident $(<$($generic:ident: $bound:path),*>)? ($($argument:ident: $type:ty),*);
    )*) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $name $(<$($generic: $bound),*>)? (mut self, $($argument: $type),*) -> Self {
            self.tonic = self.tonic.$name($($argument),*);
            self
        }
    )*};
}

/// Settings that are handed on when they have been found to be attributes of Rust.
macro_rules! attributes {
    ($(
        $(#[$doc:meta])*
        $name:ident<P: AsRef<str>, A: AsRef<str>>(path: P, attribute: A);
    )*) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $name<P: AsRef<str>, A: AsRef<str>>(mut self, path: P, attribute: A) -> Self {
            let parsed = syn::Attribute::parse_outer.parse_str(attribute.as_ref());
            self.check(stringify!($name), attribute.as_ref(), parsed);
            self.tonic = self.tonic.$name(path, attribute);
            self
        }
    )*};
}

impl Builder {
    handed_on! {
        /// Whether clients have `connect`, over tonic's own transport.
        build_transport(enable: bool);
        /// Boxes a field.
        boxed<P: AsRef<str>>(path: P);
        /// Makes a map a `BTreeMap`.
        btree_map<P: AsRef<str>>(path: P);
        /// Makes a field of bytes a `Bytes`.
        bytes<P: AsRef<str>>(path: P);
        /// Compiles Google's well-known types, instead of taking those of prost-types. They have no comments
        /// unless a directory of imports has them: those that the compiler brings along have none.
        compile_well_known_types(enable: bool);
        /// Takes Rust's own types for the wrappers among the well-known types.
        with_extended_rust_types(enable: bool);
        /// Has no effect, as in tonic-prost-build 0.14: the names of packages are part of paths.
        emit_package(enable: bool);
        /// Writes a file that includes all others.
        include_file(path: impl AsRef<Path>);
        /// Methods of a service take `Arc<Self>`.
        use_arc_self(enable: bool);
        /// Methods of a service have bodies that answer UNIMPLEMENTED.
        generate_default_stubs(enable: bool);
    }

    attributes! {
        /// An attribute of fields.
        field_attribute<P: AsRef<str>, A: AsRef<str>>(path: P, attribute: A);
        /// An attribute of messages.
        message_attribute<P: AsRef<str>, A: AsRef<str>>(path: P, attribute: A);
        /// An attribute of enumerations.
        enum_attribute<P: AsRef<str>, A: AsRef<str>>(path: P, attribute: A);
        /// An attribute of messages, enumerations and one-ofs.
        type_attribute<P: AsRef<str>, A: AsRef<str>>(path: P, attribute: A);
        /// An attribute of the module of a server.
        server_mod_attribute<P: AsRef<str>, A: AsRef<str>>(path: P, attribute: A);
        /// An attribute of a server.
        server_attribute<P: AsRef<str>, A: AsRef<str>>(path: P, attribute: A);
        /// An attribute of the trait of a service.
        trait_attribute<P: AsRef<str>, A: AsRef<str>>(path: P, attribute: A);
        /// An attribute of the module of a client.
        client_mod_attribute<P: AsRef<str>, A: AsRef<str>>(path: P, attribute: A);
        /// An attribute of a client.
        client_attribute<P: AsRef<str>, A: AsRef<str>>(path: P, attribute: A);
    }

    /// Takes the types of a package from elsewhere.
    #[must_use]
    pub fn extern_path(mut self, proto_path: impl AsRef<str>, rust_path: impl AsRef<str>) -> Self {
        let path = rust_path.as_ref();
        self.check("extern_path", path, syn::parse_str::<syn::Type>(path));
        self.tonic = self.tonic.extern_path(proto_path, rust_path);
        self
    }

    /// Where the messages are, as the modules of the stubs see it.
    #[must_use]
    pub fn proto_path(mut self, proto_path: impl AsRef<str>) -> Self {
        let path = proto_path.as_ref();
        self.check("proto_path", path, syn::parse_str::<syn::Path>(&format!("{path}::Message")));
        self.tonic = self.tonic.proto_path(proto_path);
        self
    }

    /// Whether there are clients.
    #[must_use]
    pub fn build_client(mut self, enable: bool) -> Self {
        self.client = enable;
        self
    }

    /// Whether there are servers.
    #[must_use]
    pub fn build_server(mut self, enable: bool) -> Self {
        self.server = enable;
        self
    }

    /// Where what is generated goes: `OUT_DIR` unless set.
    #[must_use]
    pub fn out_dir(mut self, out_dir: impl AsRef<Path>) -> Self {
        self.out_dir = Some(out_dir.as_ref().to_owned());
        self.tonic = self.tonic.out_dir(out_dir);
        self
    }

    /// Writes the descriptors of the files, for reflection, or those that [`Builder::compile_fds`] is given.
    #[must_use]
    pub fn file_descriptor_set_path(mut self, path: impl AsRef<Path>) -> Self {
        self.descriptors = Some(path.as_ref().to_owned());
        self
    }

    /// Reads the descriptors at [`Builder::file_descriptor_set_path`] instead of compiling files.
    #[must_use]
    pub fn skip_protoc_run(mut self) -> Self {
        self.compiles = false;
        self
    }

    /// Whether cargo is told to run the script again when one of the files, or what they import, has changed.
    ///
    /// Unless set cargo is told nothing, and so runs the script again whenever any file of the package has
    /// changed. In tonic-prost-build 0.14 this has no effect.
    #[must_use]
    pub fn emit_rerun_if_changed(mut self, enable: bool) -> Self {
        self.watches = enable;
        self
    }

    /// Another codec than prost's. Its calls all go the ordinary way.
    #[must_use]
    pub fn codec_path(mut self, path: impl AsRef<str>) -> Self {
        self.own_codec = true;
        self.check("codec_path", path.as_ref(), syn::parse_str::<syn::Path>(path.as_ref()));
        self.tonic = self.tonic.codec_path(path);
        self
    }

    /// Leaves out comments of services and methods.
    #[must_use]
    pub fn disable_comments<I, S>(mut self, path: I) -> Self
    where
        I: IntoIterator<Item = S>,
        S: AsRef<str>,
    {
        self.tonic = self.tonic.disable_comments(path);
        self
    }

    /// Leaves out `Debug` of messages.
    #[must_use]
    pub fn skip_debug<I, S>(mut self, paths: I) -> Self
    where
        I: IntoIterator<Item = S>,
        S: AsRef<str>,
    {
        self.tonic = self.tonic.skip_debug(paths);
        self
    }

    /// Has no effect: the files are compiled by protox.
    #[must_use]
    pub fn protoc_arg<A: AsRef<str>>(self, arg: A) -> Self {
        println!("cargo:warning=partywall-build uses no protoc: `{}` has no effect", arg.as_ref());
        self
    }

    /// Compiles these files, whose imports are looked for in these directories.
    ///
    /// Of what is wrong in a file the first is told alone.
    ///
    /// # Errors
    /// With the file, the line and the reason when one cannot be compiled; with the setting when one is no
    /// Rust; with the option of a demand that is not known; when nothing can be written.
    pub fn compile_protos<P>(self, protos: &[P], includes: &[P]) -> io::Result<()>
    where
        P: AsRef<Path>,
    {
        self.compile(Config::new(), protos, includes)
    }

    /// As [`Builder::compile_protos`], with settings of prost's own.
    ///
    /// Where prost's config is to write descriptors cannot be asked of it. Set
    /// [`Builder::file_descriptor_set_path`] in place of [`Config::file_descriptor_set_path`]. The latter is
    /// refused, but with [`Config::skip_protoc_run`]: descriptors are read from there.
    ///
    /// # Errors
    /// As [`Builder::compile_protos`]; when the config has a path to write descriptors to.
    pub fn compile_with_config<P>(
        self,
        mut config: Config,
        protos: &[P],
        includes: &[P],
    ) -> io::Result<()>
    where
        P: AsRef<Path>,
    {
        if let Some(path) = &self.descriptors {
            config.file_descriptor_set_path(path);
        }
        if !self.compiles {
            config.skip_protoc_run();
        }
        if let Some(files) = config::read_descriptors(&mut config)? {
            return match self.descriptors.clone() {
                Some(path) => self.generate_at(config, &path),
                // Where they are prost alone knows.
                None => Demands::check_none(&files).and_then(|()| self.generate(config)),
            };
        }
        if self.descriptors.is_none() && config::has_a_path(&mut config) {
            return Err(error::unknown_path());
        }
        self.compile(config, protos, includes)
    }

    /// Generates from descriptors.
    ///
    /// # Errors
    /// When a setting is no Rust; when nothing can be written; when a file imports
    /// `partywall/security.proto`, whose options prost has dropped.
    pub fn compile_fds(self, fds: FileDescriptorSet) -> io::Result<()> {
        self.compile_fds_with_config(fds, Config::new())
    }

    /// As [`Builder::compile_fds`], with settings of prost's own.
    ///
    /// Its `file_descriptor_set_path` is not written, as in tonic-prost-build.
    ///
    /// # Errors
    /// As [`Builder::compile_fds`].
    pub fn compile_fds_with_config(self, fds: FileDescriptorSet, config: Config) -> io::Result<()> {
        Demands::check_none(&fds)?;
        self.generate_from(config, &fds.encode_to_vec())
    }

    /// The generator of services alone, for [`Config::service_generator`].
    ///
    /// Prost does not tell it of options: what it generates takes no notice of
    /// [demands](crate#what-a-proto-file-demands). Where there are some, compile by this builder.
    pub fn service_generator(self) -> Box<dyn ServiceGenerator> {
        let tonic = self.tonic.build_client(self.client).build_server(self.server);
        let (services, is_native) = (tonic.service_generator(), !self.own_codec);
        match is_native || self.demands.is_imported {
            false => services,
            true => {
                let demands = self.demands.of_methods;
                Box::new(native::Generator { services, is_native, demands })
            }
        }
    }

    /// Keeps what is wrong with a setting, which nothing could be generated with.
    fn check<T>(&mut self, setting: &str, text: &str, parsed: syn::Result<T>) {
        if let Err(error) = parsed {
            self.wrong.get_or_insert_with(|| error::not_rust(setting, text, &error));
        }
    }

    /// Compiles files, unless descriptors are to be read.
    fn compile<P>(self, mut config: Config, protos: &[P], includes: &[P]) -> io::Result<()>
    where
        P: AsRef<Path>,
    {
        if !self.compiles {
            let descriptors = self.descriptors.clone().ok_or_else(error::no_descriptors)?;
            config.file_descriptor_set_path(&descriptors);
            return self.generate_at(config, &descriptors);
        }
        let compiler = compiled(protos, includes)?;
        if self.watches {
            for path in compiler.files().filter_map(|file| file.path()) {
                println!("cargo:rerun-if-changed={}", path.display());
            }
        }
        self.generate_from(config, &compiler.encode_file_descriptor_set())
    }

    /// Generates from descriptors in memory, which are also written where they are wanted.
    fn generate_from(self, mut config: Config, descriptors: &[u8]) -> io::Result<()> {
        let scratch = tempfile::tempdir()?;
        let path = self.descriptors.clone();
        let path = path.unwrap_or_else(|| scratch.path().join("descriptors.bin"));
        std::fs::write(&path, descriptors).map_err(|error| error::not_written(&error, &path))?;
        config.file_descriptor_set_path(&path);
        self.generate_at(config, &path)
    }

    /// Generates from the descriptors at this path, which is the config's.
    fn generate_at(mut self, config: Config, path: &Path) -> io::Result<()> {
        // Of a file that cannot be read prost tells.
        if let Ok(descriptors) = std::fs::read(path) {
            self.demands = Demands::of(&descriptors)?;
        }
        self.generate(config)
    }

    /// Generates from the descriptors at the config's path.
    fn generate(self, mut config: Config) -> io::Result<()> {
        if let Some(wrong) = self.wrong {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, wrong));
        }
        if self.demands.is_imported {
            // Nothing is generated for a type that is elsewhere.
            config.extern_path(demand::MESSAGE, "::core::convert::Infallible");
        }
        let out_dir =
            self.out_dir.clone().or_else(|| std::env::var_os("OUT_DIR").map(PathBuf::from));
        let out_dir = out_dir.ok_or_else(error::no_out_dir)?;
        if !out_dir.is_dir() {
            return Err(error::not_a_directory(&out_dir));
        }
        if self.client || self.server {
            config.service_generator(self.clone().service_generator());
        }
        // tonic's builder sets no generator of its own then.
        let tonic = self.tonic.build_client(false).build_server(false);
        tonic.skip_protoc_run().compile_with_config::<&Path>(config, &[], &[])
    }
}

/// A compiler that has these files, whose imports are looked for in these directories.
fn compiled<P: AsRef<Path>>(protos: &[P], includes: &[P]) -> io::Result<protox::Compiler> {
    if protos.is_empty() {
        return Err(error::no_files());
    }
    let mut compiler = compiler(includes).map_err(io::Error::other)?;
    compiler.include_source_info(true).include_imports(true);
    for proto in protos {
        let opened = compiler.open_file(proto);
        opened.map_err(|error| error::not_compiled(&error, proto.as_ref(), includes))?;
    }
    Ok(compiler)
}
