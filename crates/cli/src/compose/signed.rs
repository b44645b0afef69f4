//! The `x-partywall` of the whole file: whose signatures the programs of its services need.

use std::path::{Path, PathBuf};

use partywall_coordinator::policy::did_you_mean;

use super::error::{ComposeError, KEYS as OF_SERVICE};
use super::field::{Context, Field};
use super::keys::EXTENSION;

/// The keys that it may have.
pub(super) const KEYS: [&str; 3] = ["signed", "keys", "revoked"];

/// Whose signatures count. Relative paths begin at the directory of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signers {
    /// The files of public keys.
    pub keys: Vec<PathBuf>,
    /// The list of programs and keys whose signatures count no more.
    pub revoked: Option<PathBuf>,
}

/// Reads it; none where no program has to be signed.
pub(super) fn signers(
    root: &Field<'_>,
    cx: &mut Context<'_>,
) -> Result<Option<Signers>, ComposeError> {
    const FORM: &str = "`true` or `false`";
    let Some(extension) = root.get(EXTENSION)? else { return Ok(None) };
    let (mut signed, mut keys, mut revoked) = (None, None, None);
    for part in extension.entries()? {
        match part.name {
            "signed" => {
                let text = part.text(FORM, cx)?;
                signed = Some(text.parse::<bool>().map_err(|_| part.wrong(FORM))?);
            }
            "keys" => {
                let items = part.items("a list of files")?;
                let paths = items.iter().map(|item| path(item, cx));
                keys = Some((part.clone(), paths.collect::<Result<Vec<_>, _>>()?));
            }
            "revoked" => revoked = Some((part.clone(), path(&part, cx)?)),
            of_service if OF_SERVICE.contains(&of_service) => {
                return Err(part.bad("this stands in a service; move it there"));
            }
            unknown => {
                let near = did_you_mean(unknown, KEYS);
                return Err(part.bad(format!(
                    "unknown key; known keys of the whole file are {}{near}",
                    KEYS.join(", ")
                )));
            }
        }
    }
    let (of_keys, keys) = keys.unzip();
    let (of_revoked, revoked) = revoked.unzip();
    match (signed, keys, of_keys.or(of_revoked)) {
        (Some(true), Some(keys), _) if !keys.is_empty() => Ok(Some(Signers { keys, revoked })),
        (Some(true), ..) => Err(extension.bad(
            "`signed: true`, and no key is trusted; add `keys: [builder.pub]`, the files of public keys, as \
             `partywall sign --new-key` makes them",
        )),
        (Some(false), ..) | (None, _, None) => Ok(None),
        (None, _, Some(part)) => {
            Err(part.bad("this is for signed programs; add `signed: true`, or remove it"))
        }
    }
}

fn path(field: &Field<'_>, cx: &mut Context<'_>) -> Result<PathBuf, ComposeError> {
    let text = field.text("the path of a file", cx)?;
    if text.is_empty() {
        return Err(field.bad("expected the path of a file, found an empty text"));
    }
    Ok(cx.file.parent().unwrap_or(Path::new("")).join(text))
}

/// An engine starts containers, whatever is signed.
pub(super) fn is_not_for_containers(root: &Field<'_>) -> Result<(), ComposeError> {
    match root.get(EXTENSION)? {
        None => Ok(()),
        Some(extension) => Err(extension.bad(
            "`partywall compose` checks no signatures: an engine starts the containers; remove it, and name \
             the images by their digests, or run the services by `partywall up`",
        )),
    }
}
