//! What `partywall policy check` says of links that `seal = "required"` would refuse: by the file alone, and
//! by the open links of a coordinator that runs.

use std::fmt::Write as _;

use partywall::operator::LinkInfo;
use partywall_abi::control::Role;
use partywall_abi::name::ServiceName;
use partywall_coordinator::Policy;
use partywall_coordinator::policy::Plain;

use crate::links::{aligned, principals};

const REQUIRED: &str = "`seal = \"required\"` would refuse";

/// The policy's own routes that could not be sealed; nothing where there are none.
pub(super) fn routes(policy: &Policy) -> String {
    let routes = policy.plain_routes();
    if routes.is_empty() {
        return String::new();
    }
    let mut rows = vec![["NAME", "CALLER", "SEAL", "WHY"].map(String::from).to_vec()];
    rows.extend(routes.iter().map(|route| {
        let name = route.name.to_string();
        vec![name, route.caller.clone(), route.seal.to_string(), why(&route.why)]
    }));
    let mut text = format!("routes of this policy that {REQUIRED}: {}\n", routes.len());
    text.push_str(&aligned(&rows));
    if routes.iter().any(|route| matches!(route.why, Plain::Address(_))) {
        text.push_str(
            "remedy for an address: serve at https:// and write that, or serve the name here\n",
        );
    }
    if routes.iter().any(|route| matches!(route.why, Plain::Descriptors(_))) {
        text.push_str(
            "remedy for descriptors: drop `descriptors`, and long messages travel as bytes; such a policy is \
             refused as a whole\n",
        );
    }
    text
}

fn why(plain: &Plain) -> String {
    match plain {
        Plain::Address(url) => format!("{url} under [names] speaks no TLS"),
        Plain::Descriptors(grant) if grant.leases => {
            "descriptors and leases cross, which are not sealed".into()
        }
        Plain::Descriptors(_) => "descriptors cross, which are not sealed".into(),
        // What a later release finds.
        _ => "it cannot be sealed".into(),
    }
}

/// The open links that are not sealed, as this policy sees them.
pub(super) fn links(policy: &Policy, plain: &[LinkInfo]) -> String {
    let mut rows = vec![["LINK", "CALLER", "NAME", "SEAL", "WHY"].map(String::from).to_vec()];
    let mut anew = 0;
    for link in plain {
        let Ok(name) = ServiceName::new(&link.name) else { continue };
        let Some(why) = why_open(policy, link, &name) else {
            anew += 1;
            continue;
        };
        let seal = policy.seal(&link.caller.principals, &name).to_string();
        rows.push(vec![
            link.link.to_string(),
            principals(&link.caller),
            link.name.clone(),
            seal,
            why,
        ]);
    }
    let mut text = format!("open links that {REQUIRED}: {}\n", rows.len() - 1);
    if rows.len() > 1 {
        text.push_str(&aligned(&rows));
    }
    if anew > 0 {
        let _ =
            writeln!(text, "open links that are plain, and would be made again, sealed: {anew}");
    }
    text
}

/// Why a link that is open could not be made again with a seal; none if it could.
fn why_open(policy: &Policy, link: &LinkInfo, name: &ServiceName) -> Option<String> {
    if !link.url.is_empty() {
        return Some(format!("{} speaks no TLS", link.url));
    }
    if !link.unable.is_empty() {
        let end = |role: &Role| {
            let (end, identity) = match role {
                Role::Caller => ("caller", Some(&link.caller)),
                _ => ("server", link.server.as_ref()),
            };
            match identity.and_then(|identity| identity.pid) {
                Some(pid) => format!("its {end} (pid {pid})"),
                None => format!("its {end}"),
            }
        };
        let ends: Vec<_> = link.unable.iter().map(end).collect();
        let are = if ends.len() == 1 { "is" } else { "are" };
        let ends = ends.join(" and ");
        return Some(format!("{ends} {are} of a release that cannot seal; remedy: build anew"));
    }
    let grant = policy.grant(&link.caller.principals, name);
    (!grant.is_none()).then(|| why(&Plain::Descriptors(grant)))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use partywall::Identity;

    use super::*;

    const POLICY: &str = "[principal.web]\nuid = 1\n[principal.camera]\nuid = 2\n\
        [service.billing]\nregister = ['web']\nfallback = true\nseal = 'prefer'\n\
        [service.billing.call]\nweb = ['*']\n\
        [service.frames]\nregister = ['camera']\n\
        [service.frames.call]\nweb = { methods = ['*'], descriptors = 2, leases = true }\n\
        [service.rates.call]\nweb = ['*']\n\
        [service.far.call]\nweb = ['*']\n\
        [service.shut]\nregister = ['camera']\nfallback = true\nseal = 'required'\n[service.shut.call]\nweb = ['*']\n\
        [names]\nbilling = 'http://h:1'\nrates = 'unix:/r.sock'\nfar = 'https://h:2'\nshut = 'http://h:3'\n";

    #[test]
    fn check_lists_routes_that_cannot_be_sealed() {
        let policy = Policy::parse("p.toml", POLICY).unwrap();
        let expected = "\
routes of this policy that `seal = \"required\"` would refuse: 3
NAME     CALLER  SEAL    WHY
billing  web     prefer  http://h:1 under [names] speaks no TLS
frames   web     off     descriptors and leases cross, which are not sealed
rates    web     off     unix:/r.sock under [names] speaks no TLS
remedy for an address: serve at https:// and write that, or serve the name here
remedy for descriptors: drop `descriptors`, and long messages travel as bytes; such a policy is refused as a whole
";
        assert_eq!(routes(&policy), expected);
        let said = super::super::checked(Path::new("p.toml"), &policy);
        assert!(said.ends_with(expected), "{said}");
    }

    /// Each reason is gone once the policy is as the remedy says.
    #[test]
    fn a_policy_whose_routes_can_be_sealed_has_no_list() {
        let text = POLICY
            .replace("http://", "https://")
            .replace("rates = 'unix:/r.sock'\n", "")
            .replace(", descriptors = 2, leases = true", "");
        assert_eq!(routes(&Policy::parse("p.toml", &text).unwrap()), "");
    }

    #[test]
    fn the_strictest_rule_of_a_caller_counts_in_the_list() {
        let text = "[principal.web]\nuid = 1\n[service.rates.call]\nweb = ['*']\n\
                    anyone = { methods = ['a.B/C'], seal = 'required' }\n[names]\nrates = 'http://h:1'\n";
        assert_eq!(routes(&Policy::parse("p.toml", text).unwrap()), "");
    }

    #[test]
    fn open_links_are_listed_with_the_end_that_cannot_seal() {
        let policy = Policy::parse("p.toml", POLICY).unwrap();
        let someone = |principal: &str, pid| {
            let mut identity = Identity::new(1, 1);
            (identity.principals, identity.pid) = (vec![principal.to_owned()], Some(pid));
            identity
        };
        let link = |number, name: &str| {
            LinkInfo::new(number, name, someone("web", 7), Some(someone("camera", 8)))
        };
        let [mut old, mut both, mut far] = [1, 2, 3].map(|number| link(number, "billing"));
        old.unable = vec![Role::Server];
        both.unable = vec![Role::Caller, Role::Server];
        (far.server, far.url) = (None, "http://h:1".into());
        let said = links(&policy, &[old, both, far, link(4, "frames"), link(5, "billing")]);
        let expected = "\
open links that `seal = \"required\"` would refuse: 4
LINK  CALLER  NAME     SEAL    WHY
1     web     billing  prefer  its server (pid 8) is of a release that cannot seal; remedy: build anew
2     web     billing  prefer  its caller (pid 7) and its server (pid 8) are of a release that cannot seal; remedy: build anew
3     web     billing  prefer  http://h:1 speaks no TLS
4     web     frames   off     descriptors and leases cross, which are not sealed
open links that are plain, and would be made again, sealed: 1
";
        assert_eq!(said, expected);
        assert_eq!(links(&policy, &[]), "open links that `seal = \"required\"` would refuse: 0\n");
    }
}
