//! Signed programs: all are checked before anything starts, and each once more as what is started of it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use partywall_coordinator::signatures::{self, Found, Signatures};

use crate::compose::Compose;

/// Whose signatures the programs need, if they need any.
pub(super) fn signatures(compose: &Compose) -> Result<Option<Arc<Signatures>>, String> {
    let Some(signers) = &compose.signers else { return Ok(None) };
    let read = Signatures::load(&signers.keys, signers.revoked.as_deref());
    read.map(|read| Some(Arc::new(read)))
        .map_err(|e| format!("{}: x-partywall: {e}", compose.path.display()))
}

/// That each program is signed for its service; says of each that is not why.
pub(super) fn check(
    compose: &Compose,
    programs: &[PathBuf],
    signatures: &Signatures,
) -> Result<(), String> {
    let mut unsigned = 0;
    for (service, program) in compose.services.iter().zip(programs) {
        let digest = signatures::digest_of(program);
        let digest = digest.map_err(|e| format!("{}: {e}", program.display()))?;
        let found = Found::beside(program);
        if let Err(e) = signatures.check(&found, digest, Some(&service.name), SystemTime::now()) {
            let (place, name, program) = (&service.place, &service.name, program.display());
            let remedy = e.remedy(&signatures::command(None, name));
            crate::remark(&format!(
                "partywall: {place}: the program of service `{name}`, {program}: {e}; remedy: {remedy}",
            ));
            unsigned += 1;
        }
    }
    match unsigned {
        0 => Ok(()),
        1 => Err("a program is not signed as it has to be; nothing was started".into()),
        _ => Err(format!(
            "{unsigned} programs are not signed as they have to be; nothing was started"
        )),
    }
}
