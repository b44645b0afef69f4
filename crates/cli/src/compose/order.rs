//! What ties services together: the order of starts and the targets of calls.

use std::collections::HashMap;

use partywall_coordinator::policy::nearest;

use super::{Condition, Service, error::ComposeError, field::Context, read::Listed};

/// Checks every reference between services and gives those with an `x-partywall` in the order of
/// their starts: after what they depend on, else as in the file.
pub fn ordered(
    mut listed: Vec<Listed>,
    cx: &mut Context<'_>,
) -> Result<Vec<Service>, ComposeError> {
    let index: HashMap<String, usize> =
        listed.iter().enumerate().map(|(i, service)| (service.name.clone(), i)).collect();
    let names = || listed.iter().map(|service| service.name.as_str());
    let unknown = |place, name: &str| ComposeError::UnknownService {
        place,
        name: name.to_owned(),
        known: names().map(str::to_owned).collect(),
        near: nearest(name, names()).map(str::to_owned),
    };

    let mut waits = vec![Vec::new(); listed.len()];
    for (i, service) in listed.iter().enumerate() {
        for wait in &service.depends_on {
            match index.get(&wait.on.service) {
                Some(&on) => waits[i].push(on),
                None if wait.required => {
                    return Err(unknown(wait.on.place.clone(), &wait.on.service));
                }
                None => cx.note(&wait.on.place, "not in this file and not required; not awaited"),
            }
        }
        for call in service.service.iter().flat_map(|service| &service.calls) {
            let Some(&target) = index.get(&call.service) else {
                return Err(unknown(call.place.clone(), &call.service));
            };
            if listed[target].service.is_none() {
                let detail = format!(
                    "service `{0}` cannot be called, for it has no `x-partywall`; add one to `{0}`",
                    call.service
                );
                return Err(ComposeError::Value { place: call.place.clone(), detail });
            }
        }
    }
    let order = sorted(&waits).map_err(|cycle| cycle_error(&listed, &cycle))?;

    let runs: Vec<bool> = listed.iter().map(|listed| listed.service.is_some()).collect();
    let mut services = Vec::new();
    for i in order {
        let Some(mut service) = listed[i].service.take() else { continue };
        for wait in std::mem::take(&mut listed[i].depends_on) {
            match index.get(&wait.on.service) {
                Some(&on) if runs[on] => {
                    if wait.on.condition == Condition::Healthy {
                        let text = "no healthcheck is run; awaited is, as with service_started, that the \
                                    service serves its name, if another one's `calls` name it";
                        cx.note(&wait.on.place, text);
                    }
                    service.depends_on.push(wait.on);
                }
                Some(_) => cx.note(&wait.on.place, "not started and so not awaited"),
                None => {}
            }
        }
        services.push(service);
    }
    Ok(services)
}

/// The order in which each comes after all it waits for, or a cycle.
fn sorted(waits: &[Vec<usize>]) -> Result<Vec<usize>, Vec<usize>> {
    let mut done = vec![false; waits.len()];
    let mut order = Vec::new();
    while order.len() < waits.len() {
        let ready = |&i: &usize| !done[i] && waits[i].iter().all(|&on| done[on]);
        match (0..waits.len()).find(ready) {
            Some(next) => {
                done[next] = true;
                order.push(next);
            }
            None => return Err(find_cycle(waits, &done)),
        }
    }
    Ok(order)
}

/// A cycle among those not done, each of which waits for another one that is not done.
fn find_cycle(waits: &[Vec<usize>], done: &[bool]) -> Vec<usize> {
    let mut path: Vec<usize> = Vec::new();
    let mut next = (0..waits.len()).find(|&i| !done[i]);
    while let Some(i) = next {
        if let Some(start) = path.iter().position(|&seen| seen == i) {
            path.drain(..start);
            break;
        }
        path.push(i);
        next = waits[i].iter().copied().find(|&on| !done[on]);
    }
    // Start with the one that stands first in the file.
    let first = (0..path.len()).min_by_key(|&at| path[at]).unwrap_or(0);
    path.rotate_left(first);
    path
}

fn cycle_error(listed: &[Listed], cycle: &[usize]) -> ComposeError {
    let name = |at: usize| listed[cycle[at % cycle.len()]].name.clone();
    let first = &listed[cycle[0]];
    let wait = first.depends_on.iter().find(|wait| wait.on.service == name(1));
    ComposeError::Cycle {
        place: wait.map_or_else(|| first.place.clone(), |wait| wait.on.place.clone()),
        cycle: (0..=cycle.len()).map(name).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_keeps_the_files_order_where_it_can() {
        assert_eq!(sorted(&[vec![], vec![], vec![]]), Ok(vec![0, 1, 2]));
        assert_eq!(sorted(&[vec![2], vec![], vec![1]]), Ok(vec![1, 2, 0]));
        assert_eq!(sorted(&[]), Ok(vec![]));
    }

    #[test]
    fn cycles_are_found_without_what_leads_to_them() {
        assert_eq!(sorted(&[vec![0]]), Err(vec![0]));
        assert_eq!(sorted(&[vec![3], vec![2], vec![3], vec![1]]), Err(vec![1, 2, 3]));
        assert_eq!(sorted(&[vec![], vec![0, 2], vec![1]]), Err(vec![1, 2]));
    }
}
