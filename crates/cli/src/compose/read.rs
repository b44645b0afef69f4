//! From the tree to services, each by itself; what ties services together is checked later.

use std::path::{Path, PathBuf};

use partywall_abi::control::Grant;
use partywall_abi::limits;
use partywall_abi::name::{MethodPattern, ServiceName};
use partywall_coordinator::policy::{did_you_mean, nearest};

use super::{
    Call, Condition, Dependency, Link, Program, Protos, Service, Wanted,
    error::{At, ComposeError, KEYS, Place},
    field::{Context, Field},
    keys,
    tree::Value,
};

/// A service of the file.
pub struct Listed {
    /// Its name.
    pub name: String,
    /// Where it stands.
    pub place: Place,
    /// What it waits for.
    pub depends_on: Vec<Wait>,
    /// The service, if it has an `x-partywall`.
    pub service: Option<Service>,
}

/// An entry of `depends_on`.
pub struct Wait {
    /// The service and the condition.
    pub on: Dependency,
    /// Whether the file must have that service.
    pub required: bool,
}

/// Reads every service of the file.
pub fn services(root: &Field<'_>, cx: &mut Context<'_>) -> Result<Vec<Listed>, ComposeError> {
    if let Some(include) = root.get("include")? {
        cx.note(&include.place, "not read; services of other files do not take part");
    }
    keys::of_file(root)?;
    let services = root.get("services")?.ok_or_else(|| {
        let detail = "no `services`; add the services to start";
        ComposeError::Form { file: cx.file.clone(), line: root.place.line, detail }
    })?;
    services.entries()?.iter().map(|service| listed(service, cx)).collect()
}

fn listed(field: &Field<'_>, cx: &mut Context<'_>) -> Result<Listed, ComposeError> {
    let depends_on = match field.get("depends_on")? {
        Some(waits) => depends_on(&waits, cx)?,
        None => Vec::new(),
    };
    keys::mistyped_extension(field)?;
    let service = match field.get(keys::EXTENSION)? {
        Some(extension) => Some(service(field, &extension, cx)?),
        None => {
            cx.note(&field.place, "not started: it has no `x-partywall`");
            None
        }
    };
    let (name, place) = (field.name.to_owned(), field.place.clone());
    Ok(Listed { name, place, depends_on, service })
}

fn service(
    field: &Field<'_>,
    extension: &Field<'_>,
    cx: &mut Context<'_>,
) -> Result<Service, ComposeError> {
    ServiceName::new(field.name).map_err(|error| field.bad(error.to_string()))?;
    for (key, text) in [
        ("env_file", "not read; put the variables under `environment`"),
        ("extends", "not read; only what stands in this service counts"),
    ] {
        if let Some(other) = field.get(key)? {
            cx.note(&other.place, text);
        }
    }
    let environment = match field.get("environment")? {
        Some(variables) => environment(&variables, cx)?,
        None => Vec::new(),
    };
    let Extension { package, bin, file, args, link, rights } = self::extension(extension, cx)?;
    let program = program(extension, package, bin, file)?;
    let manners = keys::of_service(field, extension.get("args")?.is_some(), cx)?;
    Ok(Service {
        name: field.name.to_owned(),
        place: field.place.clone(),
        program,
        args,
        link,
        calls: rights.calls,
        grant: rights.grant,
        protos: rights.protos,
        environment,
        depends_on: Vec::new(),
        manners,
    })
}

/// A service of a file whose services run in containers.
pub struct ListedContainer {
    /// Its name.
    pub name: String,
    /// What it may do, if it has an `x-partywall`.
    pub rights: Option<Rights>,
}

/// Reads of every service of the file what it may do, and leaves the rest to a container engine.
pub fn containers(
    root: &Field<'_>,
    cx: &mut Context<'_>,
) -> Result<Vec<ListedContainer>, ComposeError> {
    keys::of_file(root)?;
    super::signed::is_not_for_containers(root)?;
    let Some(services) = root.get("services")? else { return Ok(Vec::new()) };
    let container = |field: &Field<'_>| {
        keys::mistyped_extension(field)?;
        let rights = match field.get(keys::EXTENSION)? {
            Some(extension) => {
                ServiceName::new(field.name).map_err(|error| field.bad(error.to_string()))?;
                Some(self::extension(&extension, cx)?.rights)
            }
            None => None,
        };
        Ok(ListedContainer { name: field.name.to_owned(), rights })
    };
    services.entries()?.iter().map(container).collect()
}

/// The keys of an `x-partywall`.
#[derive(Default)]
struct Extension {
    package: Option<At<String>>,
    bin: Option<At<String>>,
    file: Option<At<String>>,
    args: Vec<String>,
    link: Link,
    rights: Rights,
}

/// What a service may do, by its `x-partywall`.
#[derive(Default)]
pub struct Rights {
    /// What it may call.
    pub calls: Vec<Call>,
    /// What may cross on its links as a caller.
    pub grant: Grant,
    /// The .proto files of what it serves.
    pub protos: Vec<Protos>,
}

fn extension(extension: &Field<'_>, cx: &mut Context<'_>) -> Result<Extension, ComposeError> {
    let mut read = Extension::default();
    let (mut isolation, mut leases, mut proto, mut proto_path) = (None, None, None, None);
    for part in extension.entries()? {
        match part.name {
            "package" => read.package = Some(name(&part, "the name of a package", cx)?),
            "bin" => read.bin = Some(name(&part, "the name of a binary", cx)?),
            "program" => read.file = Some(name(&part, "the path of a program file", cx)?),
            "isolation" => isolation = Some(self::isolation(&part, cx)?),
            "args" => {
                for arg in part.items("a list of arguments")? {
                    read.args.push(arg.text("an argument", cx)?);
                }
            }
            "link" => read.link = link(&part, cx)?,
            "calls" => {
                for item in part.items("a list of `service/method`")? {
                    read.rights.calls.push(call(&item, cx)?);
                }
            }
            "descriptors" => read.rights.grant.descriptors = descriptors(&part, cx)?,
            "leases" => leases = self::leases(&part, cx)?.then_some(part),
            "proto" => proto = Some(At { value: paths(&part, cx)?, place: part.place }),
            "proto_path" => proto_path = Some(At { value: paths(&part, cx)?, place: part.place }),
            unknown => {
                let near = nearest(unknown, KEYS).map(str::to_owned);
                return Err(ComposeError::UnknownKey { place: part.place, near });
            }
        }
    }
    if let Some(isolation) = isolation {
        let Link::Domain(wanted) = &mut read.link else {
            let place = isolation.place;
            let detail = "`isolation` goes with `link: domain`; write that as well, or remove it: \
                          services linked by rings are processes, which the kernel keeps apart";
            return Err(ComposeError::Value { place, detail: detail.into() });
        };
        *wanted = isolation;
    }
    if let Some(leases) = leases {
        if read.rights.grant.is_none() {
            return Err(leases.bad(
                "a lease crosses as a descriptor, and there are none here; add `descriptors: 1`, or more, \
                 or remove `leases`",
            ));
        }
        read.rights.grant.leases = true;
    }
    match (proto, proto_path) {
        (None, None) => {}
        (Some(At { value: files, place }), directories) => {
            let beside = |file: &PathBuf| file.parent().unwrap_or(Path::new("")).to_owned();
            let directories = match directories {
                Some(named) => named.value,
                None => files.iter().map(beside).collect(),
            };
            read.rights.protos.push(Protos { files, directories, place });
        }
        (None, Some(At { place, .. })) => {
            let detail = "`proto_path` is where imports of `proto` are looked for; write that as well, or remove it";
            return Err(ComposeError::Value { place, detail: detail.into() });
        }
    }
    Ok(read)
}

/// Paths, which begin at the directory of the file.
fn paths(field: &Field<'_>, cx: &mut Context<'_>) -> Result<Vec<PathBuf>, ComposeError> {
    let items = field.items("a list of paths")?;
    if items.is_empty() {
        return Err(field.bad("no path in this list; add one, or remove the key"));
    }
    let beside = |item: &Field<'_>| {
        let path = name(item, "a path", cx)?.value;
        Ok(match cx.file.parent() {
            Some(directory) if directory != Path::new("") => directory.join(path),
            _ => Path::new(".").join(path),
        })
    };
    items.iter().map(beside).collect()
}

fn descriptors(field: &Field<'_>, cx: &mut Context<'_>) -> Result<u32, ComposeError> {
    const FORM: &str = "a number of descriptors, from 0 to 16";
    let number = field.text(FORM, cx)?.parse().ok();
    number.filter(|n| *n <= limits::PACKET_FDS as u32).ok_or_else(|| field.wrong(FORM))
}

fn leases(field: &Field<'_>, cx: &mut Context<'_>) -> Result<bool, ComposeError> {
    const FORM: &str = "`true` or `false`";
    field.text(FORM, cx)?.parse().map_err(|_| field.wrong(FORM))
}

/// The program, from the keys that name it.
fn program(
    extension: &Field<'_>,
    package: Option<At<String>>,
    bin: Option<At<String>>,
    file: Option<At<String>>,
) -> Result<Program, ComposeError> {
    let bad = |place: Place, detail: &str| ComposeError::Value { place, detail: detail.into() };
    match (package, bin, file) {
        (Some(package), bin, None) => {
            Ok(Program::Built { bin: bin.unwrap_or_else(|| package.clone()), package })
        }
        (None, None, Some(At { value, place })) => {
            let beside = place.file.parent().unwrap_or(Path::new("")).join(value);
            Ok(Program::File(At { value: beside, place }))
        }
        (Some(_), _, Some(file)) => {
            Err(bad(file.place, "`program` and `package` exclude each other; keep one of the two"))
        }
        (None, Some(bin), Some(_)) => Err(bad(
            bin.place,
            "`bin` is a binary of a `package`, and `program` is none; remove it",
        )),
        (None, _, None) => Err(extension.bad(
            "`package` is missing; add the Cargo package that has the binary, or a `program` file",
        )),
    }
}

fn name(
    field: &Field<'_>,
    expected: &'static str,
    cx: &mut Context<'_>,
) -> Result<At<String>, ComposeError> {
    let value = field.text(expected, cx)?;
    if value.is_empty() {
        return Err(field.bad(format!("expected {expected}, found an empty text")));
    }
    Ok(At { value, place: field.place.clone() })
}

fn link(field: &Field<'_>, cx: &mut Context<'_>) -> Result<Link, ComposeError> {
    match field.text("`ring` or `domain`", cx)?.as_str() {
        "ring" => Ok(Link::Ring),
        "domain" => Ok(Link::Domain(At { value: Wanted::default(), place: field.place.clone() })),
        "http2" => Err(field.bad(
            "`up` links services on this host by rings; for HTTP/2 list the name under [names] of a \
             policy and run `partywall coordinator`",
        )),
        other => {
            let near = did_you_mean(other, ["ring", "domain"]);
            Err(field.bad(format!("no link `{other}`; there are `ring` and `domain`{near}")))
        }
    }
}

fn isolation(field: &Field<'_>, cx: &mut Context<'_>) -> Result<At<Wanted>, ComposeError> {
    let value = match field.text("`protection-keys`, `prefer` or `none`", cx)?.as_str() {
        "protection-keys" => Wanted::ProtectionKeys,
        "prefer" => Wanted::Prefer,
        "none" => Wanted::None,
        other => {
            let there = match other {
                "fault" => "it is `protection-keys` now",
                _ => "there are `protection-keys`, `prefer` and `none`",
            };
            return Err(field.bad(format!("no isolation `{other}`; {there}")));
        }
    };
    Ok(At { value, place: field.place.clone() })
}

fn call(field: &Field<'_>, cx: &mut Context<'_>) -> Result<Call, ComposeError> {
    let text = field.text("`service/method`", cx)?;
    let Some((service, pattern)) = text.split_once('/').filter(|(name, _)| !name.is_empty()) else {
        return Err(field.bad(format!(
            "`{text}` is no call: write `service/method`, with the service's name in this file"
        )));
    };
    let method = MethodPattern::new(pattern).map_err(|error| {
        field.bad(format!("`{text}` is no call: after the service's name, {error}"))
    })?;
    Ok(Call { service: service.to_owned(), method, place: field.place.clone() })
}

fn environment(
    field: &Field<'_>,
    cx: &mut Context<'_>,
) -> Result<Vec<(String, String)>, ComposeError> {
    const FORM: &str = "a mapping or a list of `NAME=value`";
    let mut variables: Vec<(String, String)> = Vec::new();
    let mut set = |field: &Field<'_>, name: &str, value: Option<String>| {
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(field.bad(format!(
                "`{}` is no variable name; write `NAME=value` or `NAME: value`",
                name.escape_debug()
            )));
        }
        variables.retain(|(known, _)| known != name);
        variables.extend(value.map(|value| (name.to_owned(), value)));
        Ok(())
    };
    // A name without a value passes on the value of the caller's variable, if it has one.
    match &field.node.value {
        Value::Map(_) => {
            for entry in field.entries()? {
                let value = match &entry.node.value {
                    Value::Null => (cx.vars)(entry.name),
                    _ => Some(entry.text("a value", cx)?),
                };
                set(&entry, entry.name, value)?;
            }
        }
        _ => {
            for item in field.items(FORM)? {
                let text = item.text("`NAME=value`", cx)?;
                match text.split_once('=') {
                    Some((name, value)) => set(&item, name, Some(value.to_owned()))?,
                    None => set(&item, &text, (cx.vars)(&text))?,
                }
            }
        }
    }
    Ok(variables)
}

fn depends_on(field: &Field<'_>, cx: &mut Context<'_>) -> Result<Vec<Wait>, ComposeError> {
    const FORM: &str = "a list of services or a mapping from services to conditions";
    let wait = |field: &Field<'_>, service: &str, condition, required| Wait {
        on: Dependency { service: service.to_owned(), condition, place: field.place.clone() },
        required,
    };
    if !matches!(field.node.value, Value::Map(_)) {
        let waits = field.items(FORM)?.into_iter().map(|item| {
            let service = item.raw_text("the name of a service")?;
            Ok(wait(&item, service, Condition::default(), true))
        });
        return waits.collect();
    }
    let waits = field.entries()?.into_iter().map(|entry| {
        let (mut condition, mut required) = (Condition::default(), true);
        for key in entry.entries()? {
            match key.name {
                "condition" => condition = self::condition(&key)?,
                "required" => required = yes_or_no(&key)?,
                "restart" if yes_or_no(&key)? => {
                    cx.note(&key.place, "not used: `up` starts no service anew by hand");
                }
                "restart" => {}
                _ => return Err(keys::unknown(&key, ["condition", "required", "restart"])),
            }
        }
        Ok(wait(&entry, entry.name, condition, required))
    });
    waits.collect()
}

fn yes_or_no(field: &Field<'_>) -> Result<bool, ComposeError> {
    const FORM: &str = "`true` or `false`";
    match field.raw_text(FORM)? {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(field.wrong(FORM)),
    }
}

fn condition(field: &Field<'_>) -> Result<Condition, ComposeError> {
    const FORM: &str = "`service_started`, `service_healthy` or `service_completed_successfully`";
    match field.raw_text(FORM)? {
        "service_started" => Ok(Condition::Started),
        "service_healthy" => Ok(Condition::Healthy),
        "service_completed_successfully" => Ok(Condition::CompletedSuccessfully),
        _ => Err(field.wrong(FORM)),
    }
}
