//! A function host: what is deployed, and its calls.
//!
//! ```text
//! deploy   -> policy -> build, or check of a signed image -> registry (one commit) -> dispatcher
//! invoke   -> policy -> dispatcher -> end -> log
//! start    -> registry -> functions that are known, and registered at their first call or by `register_all`
//! ```
//!
//! A deployment is whole at its commit: before it, calls have the version before; behind it, those that come
//! have the new one, and those that have begun go on with theirs. Changes of what is deployed come one after
//! the other; builds go on beside them, one of each owner and as many as there are CPUs in all.
//!
//! A caller may go away at any time. A change that has begun goes on to its end, and a build has its owner's
//! place and a CPU until its compiler has ended; what was built for nobody is not deployed.
//!
//! When the host dies, what was committed is there for the next one; calls are not, nor are log lines.
//!
//! Who may not see a function is told that there is none.

mod list;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use partywall_functions::builder::{Builder, Toolchain};
use partywall_functions::dispatcher::{MESSAGE, Registration, Share, WorkerProcess};
use partywall_functions::isolation::InForce;
use partywall_functions::runtime::{self, Callee, OwnerHandle, Runtime, Ticket};
use partywall_functions::sandbox::Limits as BuildLimits;
use partywall_functions::signed::{Made, Signed};
use partywall_functions::source::{File, check_size};
use tokio::sync::{OnceCell, Semaphore};
use tonic::Status;

pub use self::list::Listed;
use crate::checks::{self, Values};
use crate::logs::{Line, Logs, Wanted, now_ms};
use crate::outward::{Known, Outwards};
use crate::policy::{Caller, Policy, Right, Rules};
use crate::registry::{Deployed, Record, Registry, RegistryError};
use crate::reply::{Reply, blocking, end, ended, of_build, of_registry, of_signed};

/// So many strikes ban a function.
const STRIKES: u32 = 100;

/// What a host is started with.
#[derive(Debug)]
pub struct Settings {
    /// Where its registry is.
    pub directory: PathBuf,
    /// Who may do what.
    pub policy: Policy,
    /// The dispatcher and its workers.
    pub runtime: runtime::Settings,
    /// The compiler; without one only signed images are deployed.
    pub rustc: PathBuf,
    /// A program that calls [`partywall_functions::sandbox::main`] with its last argument.
    pub sandbox: Vec<String>,
    /// Where the coordinator is whose services functions call; looked for unless given.
    pub coordinator: Option<PathBuf>,
}

/// Why a host does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Its registry.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The dispatcher.
    #[error("the dispatcher of functions: {0}")]
    Dispatcher(#[from] std::io::Error),
}

/// What is deployed.
#[derive(Debug)]
pub struct Deployment {
    /// The function's name.
    pub name: String,
    /// Whose it is to be, where the caller is several owners; else empty.
    pub owner: String,
    /// Its code.
    pub code: Code,
    /// Microseconds of a CPU for each call; 0 is the owner's default.
    pub budget_us: u64,
    /// It may run twice for one call.
    pub idempotent: bool,
    /// Its parameters.
    pub parameters: Values,
    /// What is shown to nobody but the function.
    pub secrets: Values,
}

/// The code of what is deployed.
#[derive(Debug)]
pub enum Code {
    /// Sources.
    Sources(Vec<File>),
    /// A signed image.
    Image(Vec<u8>),
}

/// A function that can be called.
#[derive(Debug)]
struct Live {
    record: Arc<Record>,
    callee: Arc<OnceCell<Callee>>,
}

/// The host.
#[derive(Debug)]
pub struct Host {
    registry: Registry,
    runtime: Runtime,
    /// Closed once the dispatcher has ended.
    over: tokio::sync::watch::Receiver<()>,
    known: Arc<Known>,
    functions: RwLock<BTreeMap<String, Arc<Live>>>,
    owners: Mutex<HashMap<String, OwnerHandle>>,
    /// Changes of what is deployed come one after the other.
    changes: tokio::sync::Mutex<()>,
    builder: Result<Builder, String>,
    compiler: String,
    builds: Arc<Semaphore>,
    /// Owners for whom something is built.
    building: Mutex<HashSet<String>>,
    logs: Logs,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Host {
    /// Starts the dispatcher, with the functions of the registry. To be called in a runtime of tokio's, which
    /// has the calls that functions make.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(settings: Settings) -> Result<Arc<Self>, StartError> {
        let Settings { directory, policy, runtime, rustc, sandbox, coordinator } = settings;
        let registry = Registry::open(&directory)?;
        let known = Arc::new(Known::new(policy));
        let on = tokio::runtime::Handle::current();
        let (alive, over) = tokio::sync::watch::channel(());
        let outwards = Outwards::new(known.clone(), coordinator, on, alive);
        let runtime = Runtime::start(runtime, Box::new(outwards))?;
        let toolchain = Toolchain::of(&rustc).map_err(|error| error.to_string());
        let compiler = toolchain.as_ref().map_or(String::new(), |found| found.version().into());
        let builder = toolchain.map(|found| Builder::new(found, sandbox, BuildLimits::default()));
        let functions = registry.all()?.into_iter();
        let functions = functions.map(|(name, record)| (name, Arc::new(live(record.into()))));
        let functions = RwLock::new(functions.collect());
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Arc::new(Self {
            registry,
            runtime,
            over,
            known,
            functions,
            owners: Mutex::default(),
            changes: tokio::sync::Mutex::default(),
            builder,
            compiler,
            builds: Arc::new(Semaphore::new(cpus)),
            building: Mutex::default(),
            logs: Logs::default(),
        }))
    }

    /// Waits until the dispatcher has ended, which it does by itself only when it cannot go on: why.
    pub async fn over(&self) -> String {
        let mut over = self.over.clone();
        while over.changed().await.is_ok() {}
        self.runtime.over().unwrap_or("it has panicked").to_owned()
    }

    /// Why nothing can be built here, if so.
    pub fn no_compiler(&self) -> Option<&str> {
        self.builder.as_ref().err().map(String::as_str)
    }

    /// Another policy. What is deployed stays, and is called if the policy still has its owner. Functions
    /// that are to share a worker with others than before are registered again at their next call, and
    /// counted from 0.
    ///
    /// # Errors
    /// UNAVAILABLE, when the dispatcher has ended.
    pub async fn set_policy(self: &Arc<Self>, policy: Policy) -> Result<(), Status> {
        let _one = self.changes.lock().await;
        let before = self.known.policy();
        let has_other = |live: &Live| {
            let share = |policy: &Policy| Some(policy.rules(&live.record.owner)?.share);
            share(&policy) != share(&before)
        };
        {
            let mut functions = self.functions.write().unwrap_or_else(PoisonError::into_inner);
            for found in functions.values_mut().filter(|found| has_other(found)) {
                *found = Arc::new(live(found.record.clone()));
            }
            // Who is registered from here on is by this policy.
            self.known.set_policy(policy);
        }
        // An owner that is added from here on has its limits by it; the dispatcher is told of the others with
        // no lock held, which calls would wait for.
        let owners = lock(&self.owners).clone();
        let host = self.clone();
        blocking(move || {
            let policy = host.known.policy();
            let limited = owners.iter().filter_map(|(owner, handle)| {
                let limits = policy.rules(owner)?.limits;
                Some(host.runtime.limit(handle, limits).map_err(ended))
            });
            limited.collect()
        })
        .await
    }

    /// The rules of a function's owner, if this caller has this right.
    fn rules<R>(
        &self,
        (caller, right): (&Caller, Right),
        name: &str,
        with: impl FnOnce(&Rules, &Arc<Live>) -> R,
    ) -> Result<R, Status> {
        let functions = self.functions.read().unwrap_or_else(PoisonError::into_inner);
        let live = functions.get(name).cloned();
        drop(functions);
        let policy = self.known.policy();
        let found = live.and_then(|live| Some((policy.rules(&live.record.owner)?, live)));
        match found.filter(|(rules, _)| rules.allow(right, caller)) {
            Some((rules, live)) => Ok(with(rules, &live)),
            None => {
                let (what, key) = match right {
                    Right::Call => (format!("that {caller} may call"), "call"),
                    Right::Logs => (format!("whose log {caller} may read"), "logs"),
                    Right::Ban => (format!("that {caller} may ban"), "ban"),
                };
                Err(Status::not_found(format!(
                    "there is no function `{name}` {what}; `partywall fn ls` shows those that there are, and \
                     `{key}` in the policy of the function host says who may beside their owners"
                )))
            }
        }
    }

    /// A function that its owner changes.
    fn own(&self, caller: &Caller, name: &str) -> Result<(), Status> {
        let functions = self.functions.read().unwrap_or_else(PoisonError::into_inner);
        let owner = functions.get(name).map(|live| live.record.owner.clone());
        drop(functions);
        let policy = self.known.policy();
        let rules = owner.and_then(|owner| policy.rules(&owner)).filter(|rules| rules.sees(caller));
        match rules.map(|rules| rules.is_owner(caller)) {
            Some(true) => Ok(()),
            Some(false) => Err(Status::permission_denied(format!(
                "`{name}` is not a function of {caller}; only its owner changes it"
            ))),
            None => Err(Status::not_found(format!("there is no function `{name}` of {caller}"))),
        }
    }

    /// Calls a function.
    ///
    /// # Errors
    /// The function's own error with its code; NOT_FOUND; RESOURCE_EXHAUSTED beyond the owner's limits;
    /// INVALID_ARGUMENT for a request that is too long; DEADLINE_EXCEEDED when the deadline is over or the
    /// function has used up its budget; PERMISSION_DENIED when it is banned; INTERNAL when it has done what
    /// no function may.
    pub async fn invoke(
        self: &Arc<Self>,
        caller: &Caller,
        name: &str,
        body: Vec<u8>,
        deadline: Option<Instant>,
    ) -> Result<Reply, Status> {
        let live = self.rules((caller, Right::Call), name, |_, live| live.clone())?;
        let deployed = &live.record.version().deployed;
        let most = MESSAGE - checks::block_bytes(&deployed.parameters, &deployed.secrets);
        if body.len() > most {
            return Err(Status::invalid_argument(format!(
                "the request has {} bytes, and `{name}` takes {most} beside its parameters",
                body.len()
            )));
        }
        let callee = self.callee(name, &live).await?;
        let (done, is_done) = tokio::sync::oneshot::channel();
        let (host, owner, function) =
            (Arc::downgrade(self), live.record.owner.clone(), name.to_owned());
        let ticket = self.runtime.call(&callee, body, deadline, move |finished| {
            let finished = end(finished);
            if let Some(host) = host.upgrade() {
                host.logs.write(&owner, &function, finished.call, &finished.log);
            }
            // Nobody waits any more when the caller is gone.
            let _waits = done.send(finished.reply);
        });
        let mut cancel = CancelWhenDropped(Some(ticket));
        let reply = is_done.await;
        cancel.0 = None;
        reply.unwrap_or_else(|_| Err(Status::unavailable("the function host ends")))
    }

    /// A function as the dispatcher knows it; registered now if it was not yet.
    async fn callee(self: &Arc<Self>, name: &str, live: &Arc<Live>) -> Result<Callee, Status> {
        if let Some(callee) = live.callee.get() {
            return Ok(callee.clone());
        }
        let registered = live.callee.get_or_try_init(|| async {
            let (host, live, name) = (self.clone(), live.clone(), name.to_owned());
            let registered =
                tokio::task::spawn_blocking(move || host.register(&name, &live.record));
            registered.await.map_err(|error| Status::internal(error.to_string()))?
        });
        registered.await.cloned()
    }

    /// Registers a version with the dispatcher.
    fn register(&self, name: &str, record: &Record) -> Result<Callee, Status> {
        let deployed = &record.version().deployed;
        let image = self.registry.image(name, deployed.image).map_err(of_registry)?;
        let owner = self.owner(&record.owner)?;
        // Of an owner that the policy does not have any more nothing is called.
        let policy = self.known.policy();
        let rules = policy.rules(&record.owner);
        let share = rules.map_or(Share::Function, |rules| rules.share);
        // The policy may have had more when it was deployed.
        let deployed_for = Duration::from_micros(deployed.budget_us);
        let budget = rules.map_or(deployed_for, |rules| rules.budgets[1].min(deployed_for));
        let registration = Registration {
            owner: owner.number(),
            image: Arc::new(image),
            parameters: checks::block(&deployed.parameters, &deployed.secrets),
            budget,
            idempotent: deployed.idempotent,
            share,
            strikes: STRIKES,
        };
        let registered = self.runtime.register(&owner, registration).map_err(ended)?;
        let callee = registered.map_err(|why| {
            let text = format!("the image of `{name}` has no room on the host's disk: {why}");
            Status::resource_exhausted(text)
        })?;
        if record.is_banned {
            self.runtime.ban(callee.id(), true).map_err(ended)?;
        }
        Ok(callee)
    }

    /// An owner as the dispatcher knows it. The lock is held while that is asked, so that it knows each once.
    fn owner(&self, owner: &str) -> Result<OwnerHandle, Status> {
        let mut owners = lock(&self.owners);
        if let Some(handle) = owners.get(owner) {
            return Ok(handle.clone());
        }
        let limits = self.known.policy().rules(owner).map(|rules| rules.limits);
        let handle = self.runtime.add_owner(limits.unwrap_or_default()).map_err(ended)?;
        self.known.add(handle.number(), owner);
        owners.insert(owner.into(), handle.clone());
        Ok(handle)
    }

    /// Registers all functions that are not, so that no first call pays for it.
    pub async fn register_all(self: &Arc<Self>) {
        let all: Vec<_> = {
            let functions = self.functions.read().unwrap_or_else(PoisonError::into_inner);
            functions.iter().map(|(name, live)| (name.clone(), live.clone())).collect()
        };
        for (name, live) in all {
            if let Err(status) = self.callee(&name, &live).await {
                tracing::warn!("`{name}` cannot be called: {}", status.message());
            }
        }
    }

    /// Deploys a version, which is called from then on; how many tries its build took.
    ///
    /// # Errors
    /// PERMISSION_DENIED for who is no owner; INVALID_ARGUMENT with what is wrong with name or sources;
    /// RESOURCE_EXHAUSTED beyond the owner's limits; FAILED_PRECONDITION without a compiler, or for an image
    /// of an unknown key.
    pub async fn deploy(
        self: &Arc<Self>,
        caller: &Caller,
        deployment: Deployment,
    ) -> Result<(Record, u32), Status> {
        let Deployment { name, owner, code, budget_us, idempotent, parameters, secrets } =
            deployment;
        checks::name(&name)?;
        let policy = self.known.policy();
        let rules = policy.deployer(caller, &owner).map_err(Status::permission_denied)?;
        let most_us = rules.budgets[1].as_micros() as u64;
        let budget_us =
            if budget_us == 0 { rules.budgets[0].as_micros() as u64 } else { budget_us };
        if budget_us > most_us {
            return Err(Status::invalid_argument(format!(
                "the budget is {budget_us} us, and functions of `{}` have at most {most_us} us",
                rules.owner
            )));
        }
        checks::values(&parameters, &secrets)?;
        let (image, tries) = match code {
            Code::Sources(files) => self.build(&rules.owner, &name, files).await?,
            Code::Image(bytes) => (self.checked(&name, bytes).await?, 0),
        };
        let (made, key) = (image.made().clone(), image.key().to_owned());
        let deployed = Deployed {
            image: [0; 32],
            image_bytes: 0,
            sources: made.sources,
            key,
            deployed_ms: now_ms(),
            budget_us,
            idempotent,
            parameters,
            secrets,
        };
        let (owner, room) = (rules.owner.clone(), rules.room);
        let record = self.change(move |host| async move {
            let (of, of_name) = (host.clone(), name.clone());
            let record = blocking(move || {
                let bytes = image.to_bytes();
                of.registry.deploy((&of_name, &owner), deployed, &bytes, room).map_err(of_registry)
            })
            .await?;
            host.publish(&name, record.clone()).await;
            Ok(record)
        });
        Ok((record.await?, tries))
    }

    /// Changes what is deployed, after the changes before. It goes on to its end, also when nobody waits for
    /// it any more: what the registry has and what is called are the same.
    async fn change<R: Send + 'static, C: Future<Output = Result<R, Status>> + Send>(
        self: &Arc<Self>,
        change: impl FnOnce(Arc<Self>) -> C + Send + 'static,
    ) -> Result<R, Status> {
        let host = self.clone();
        let changed = tokio::spawn(async move {
            let _one = host.changes.lock().await;
            change(host.clone()).await
        });
        changed.await.unwrap_or_else(|error| Err(Status::internal(error.to_string())))
    }

    /// From here on calls have the current version of this record. The one before is registered until its
    /// last caller has let it go.
    async fn publish(self: &Arc<Self>, name: &str, record: Record) {
        let live = Arc::new(live(record.into()));
        // Before it is published, so that no caller waits for it; where it cannot be, its first call says
        // why.
        let _later = self.callee(name, &live).await;
        let mut functions = self.functions.write().unwrap_or_else(PoisonError::into_inner);
        functions.insert(name.to_owned(), live);
    }

    async fn build(
        self: &Arc<Self>,
        owner: &str,
        name: &str,
        files: Vec<File>,
    ) -> Result<(Signed, u32), Status> {
        // What is in them is the builder's to see.
        check_size(&files).map_err(|why| Status::invalid_argument(why.to_string()))?;
        if let Err(why) = &self.builder {
            return Err(Status::failed_precondition(format!(
                "this host builds nothing, for it has no compiler ({why}); deploy a signed image, as \
                 `partywall fn pull` gives it"
            )));
        }
        if !lock(&self.building).insert(owner.to_owned()) {
            return Err(Status::resource_exhausted(format!(
                "a function of `{owner}` is being built, and an owner has one build at a time; try again \
                 when it is done"
            )));
        }
        let building = Building { host: self.clone(), owner: owner.to_owned() };
        let permit = self.builds.clone().acquire_owned().await;
        let permit = permit.map_err(|error| Status::internal(error.to_string()))?;
        let (host, name) = (self.clone(), name.to_owned());
        blocking(move || {
            // They are this thread's, which goes on when nobody waits for it.
            let _until_it_ends = (building, permit);
            let Ok(builder) = &host.builder else {
                return Err(Status::internal("there is no builder any more"));
            };
            let built = builder.build(&files).map_err(|error| of_build(&error))?;
            let (made, tries) = (Made::of(&built, &host.compiler), built.tries);
            Ok((Signed::new(&name, built.image, made, host.registry.key()), tries))
        })
        .await
    }

    /// An image that somebody has sent.
    async fn checked(self: &Arc<Self>, name: &str, bytes: Vec<u8>) -> Result<Signed, Status> {
        let host = self.clone();
        let signed = blocking(move || {
            Signed::from_bytes(&bytes, host.registry.trusted()).map_err(of_signed)
        })
        .await?;
        if signed.name() != name {
            return Err(Status::invalid_argument(format!(
                "the image is signed as `{}`, and not as `{name}`; deploy it by its name",
                signed.name()
            )));
        }
        Ok(signed)
    }

    /// Makes an older version the one that is called; 0 is the one before.
    ///
    /// # Errors
    /// NOT_FOUND, PERMISSION_DENIED, and FAILED_PRECONDITION when there is no such version.
    pub async fn roll_back(
        self: &Arc<Self>,
        caller: &Caller,
        name: &str,
        version: u32,
    ) -> Result<Record, Status> {
        let (caller, name) = (caller.clone(), name.to_owned());
        let changed = self.change(move |host| async move {
            host.own(&caller, &name)?;
            let (of, of_name) = (host.clone(), name.clone());
            let back = move || of.registry.roll_back(&of_name, version).map_err(of_registry);
            let record = blocking(back).await?;
            host.publish(&name, record.clone()).await;
            Ok(record)
        });
        changed.await
    }

    /// Removes a function with all its versions. Calls that have begun go on.
    ///
    /// # Errors
    /// NOT_FOUND, PERMISSION_DENIED.
    pub async fn remove(self: &Arc<Self>, caller: &Caller, name: &str) -> Result<(), Status> {
        let (caller, name) = (caller.clone(), name.to_owned());
        let changed = self.change(move |host| async move {
            host.own(&caller, &name)?;
            let (of, of_name) = (host.clone(), name.clone());
            blocking(move || of.registry.remove(&of_name).map_err(of_registry)).await?;
            let mut functions = host.functions.write().unwrap_or_else(PoisonError::into_inner);
            functions.remove(&name);
            Ok(())
        });
        changed.await
    }

    /// Bans a function, or lets it be called again.
    ///
    /// # Errors
    /// NOT_FOUND.
    pub async fn ban(
        self: &Arc<Self>,
        caller: &Caller,
        name: &str,
        is_banned: bool,
    ) -> Result<(), Status> {
        let (caller, name) = (caller.clone(), name.to_owned());
        let changed = self.change(move |host| async move {
            let live = host.rules((&caller, Right::Ban), &name, |_, live| live.clone())?;
            let (of, of_name) = (host.clone(), name.clone());
            blocking(move || of.registry.ban(&of_name, is_banned).map_err(of_registry)).await?;
            let mut record = Record::clone(&live.record);
            record.is_banned = is_banned;
            let same = Live { record: Arc::new(record), callee: live.callee.clone() };
            let callee = host.callee(&name, &live).await?;
            let of = host.clone();
            blocking(move || of.runtime.ban(callee.id(), is_banned).map_err(ended)).await?;
            let mut functions = host.functions.write().unwrap_or_else(PoisonError::into_inner);
            functions.insert(name, Arc::new(same));
            Ok(())
        });
        changed.await
    }

    /// Loads a function's image before it is called.
    ///
    /// # Errors
    /// NOT_FOUND, and RESOURCE_EXHAUSTED when there is no room for it.
    pub async fn preload(self: &Arc<Self>, caller: &Caller, name: &str) -> Result<(), Status> {
        let live = self.rules((caller, Right::Call), name, |_, live| live.clone())?;
        let callee = self.callee(name, &live).await?;
        let host = self.clone();
        let loaded = blocking(move || host.runtime.preload(callee.id()).map_err(ended)).await?;
        loaded.map_err(|why| Status::resource_exhausted(format!("`{name}` is not loaded: {why}")))
    }

    /// The last lines of a function's log.
    ///
    /// # Errors
    /// NOT_FOUND.
    pub fn logs(&self, caller: &Caller, name: &str, wanted: Wanted) -> Result<Vec<Line>, Status> {
        let owner = self.rules((caller, Right::Logs), name, |_, live| live.record.owner.clone())?;
        Ok(self.logs.read(&owner, name, wanted))
    }

    /// A version's signed image; 0 is the one that is called. Only its owner gets it.
    ///
    /// # Errors
    /// NOT_FOUND, PERMISSION_DENIED.
    pub fn fetch(&self, caller: &Caller, name: &str, version: u32) -> Result<Vec<u8>, Status> {
        self.own(caller, name)?;
        let record = self.registry.find(name).map_err(of_registry)?;
        let number = if version == 0 { record.current } else { version };
        let found = record.find(number).ok_or_else(|| {
            Status::not_found(format!("`{name}` has no version {number} any more"))
        })?;
        self.registry.image_bytes(name, found.deployed.image).map_err(of_registry)
    }

    /// What keeps functions from their workers' memory; none before a worker has begun.
    ///
    /// # Errors
    /// UNAVAILABLE, when the dispatcher has ended.
    pub fn in_force(&self) -> Result<Option<InForce>, Status> {
        self.runtime.in_force().map_err(ended)
    }

    /// The processes of the workers, and who meets whom in them.
    ///
    /// # Errors
    /// UNAVAILABLE, when the dispatcher has ended.
    pub fn workers(&self) -> Result<Vec<WorkerProcess>, Status> {
        self.runtime.workers().map_err(ended)
    }
}

/// Ends the call when its caller goes away.
struct CancelWhenDropped(Option<Ticket>);

impl Drop for CancelWhenDropped {
    fn drop(&mut self) {
        if let Some(ticket) = &self.0 {
            ticket.cancel();
        }
    }
}

/// An owner has something built.
struct Building {
    host: Arc<Host>,
    owner: String,
}

impl Drop for Building {
    fn drop(&mut self) {
        lock(&self.host.building).remove(&self.owner);
    }
}

fn live(record: Arc<Record>) -> Live {
    Live { record, callee: Arc::default() }
}
