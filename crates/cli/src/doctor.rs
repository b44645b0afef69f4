//! `partywall doctor`: what this machine offers, and what links would therefore be like.

use std::error::Error;
use std::process::ExitCode;

use partywall::Isolation;
use partywall_domain::machine::{Feature, Finding};

use crate::isolation::Machine;

/// Prints it.
pub(crate) fn run() -> Result<ExitCode, Box<dyn Error>> {
    crate::say(&report(&Feature::ALL.map(Feature::look)))?;
    Ok(ExitCode::SUCCESS)
}

fn report(findings: &[Finding]) -> String {
    let mut out = String::from("This machine:\n");
    for finding in findings {
        let there = if finding.there { "yes" } else { "no" };
        out.push_str(&format!(
            "  {:<22} {there:<4} {}\n",
            finding.feature.to_string(),
            finding.seen
        ));
    }
    let keys = findings.iter().find(|finding| finding.feature == Feature::ProtectionKeys);
    let machine = Machine::of(findings, keys.expect("all features were looked for"));
    let domain = match (&machine.missing[..], &machine.keys) {
        ([], Ok((fault, most))) => {
            format!("isolation {fault} for up to {most}, or {}", Isolation::None)
        }
        ([], Err(why)) => format!(
            "isolation {}, when asked for by name; not {}: {why}",
            Isolation::None,
            Isolation::Fault
        ),
        (missing, _) => format!("none: without {}", missing.join(", ")),
    };
    out.push_str("\nLinks on it:\n");
    for (link, what) in [
        ("ring", format!("isolation {}", Isolation::Process)),
        ("domain", domain),
        ("http2", format!("isolation {}", Isolation::Network)),
    ] {
        out.push_str(&format!("  {link:<8} {what}\n"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(without: &[Feature]) -> Vec<Finding> {
        let look = |feature: Feature| Finding {
            feature,
            there: !without.contains(&feature),
            seen: "what was seen".into(),
        };
        Feature::ALL.into_iter().map(look).collect()
    }

    #[test]
    fn every_feature_and_every_link_has_a_line() {
        let report = report(&findings(&[Feature::ProtectionKeys]));
        for feature in Feature::ALL {
            assert!(report.contains(&format!("  {feature}")), "{report}");
        }
        assert!(report.contains("protection keys        no   what was seen"), "{report}");
        assert!(report.contains("ring     isolation process"), "{report}");
        assert!(report.contains("domain   isolation none"), "{report}");
    }

    #[test]
    fn what_a_domain_misses_is_named() {
        let report = report(&findings(&[Feature::Fsgsbase, Feature::Seccomp, Feature::Sgx]));
        assert!(report.contains("domain   none: without FSGSBASE, seccomp\n"), "{report}");
    }
}
