//! What the .proto files of a service demand of the links to it, as its policy has to require.
//!
//! A link carries the calls of all methods, so what one method demands all links to its service meet: more
//! than the file asks for, never less.

use partywall::{Evidence, Security};
use partywall_build::{Demand, Evidence as Demanded};

use crate::compose::{Place, Protos};

/// A demand of a service's links, and who demands it.
#[derive(Debug)]
pub(crate) struct OfService {
    pub(crate) demand: Demand,
    /// Methods with a demand.
    methods: Vec<String>,
    /// Where the file that has it is named.
    pub(crate) place: Place,
}

/// What these files demand, if they demand something.
pub(crate) fn of(protos: &[Protos]) -> Result<Option<OfService>, String> {
    let mut all: Option<OfService> = None;
    for Protos { files, directories, place } in protos {
        // One that stands there twice is looked in once.
        let mut directories = directories.clone();
        directories.dedup();
        let demands = partywall_build::demands(files, &directories);
        for (path, demand) in demands.map_err(|e| format!("{place}: {e}"))? {
            let found = all.get_or_insert_with(|| {
                let demand = Demand::default();
                OfService { demand, methods: Vec::new(), place: place.clone() }
            });
            found.demand = found.demand.and(demand);
            found.methods.push(path.trim_start_matches('/').to_owned());
        }
    }
    Ok(all)
}

impl OfService {
    /// The least evidence of each link.
    pub(crate) fn evidence(&self) -> Evidence {
        match self.demand.evidence {
            Demanded::Started => Evidence::Started,
            Demanded::Image => Evidence::Image,
            Demanded::Observed => Evidence::Observed,
            Demanded::Any => Evidence::None,
        }
    }

    /// The least security of each link.
    pub(crate) fn least(&self) -> Security {
        let least = Security::LOWEST.with_evidence(self.evidence());
        let least = match self.demand.seal {
            true => least.with_seal(partywall::Seal::Sealed),
            false => least,
        };
        match self.demand.sign {
            true => least.with_sign(partywall::Sign::Signed),
            false => least,
        }
    }

    /// What is required, and by what.
    pub(crate) fn said(&self, service: &str) -> String {
        let Demand { seal, sign, .. } = self.demand;
        let level = self.evidence();
        let evidence = (level != Evidence::LOWEST).then(|| format!("evidence `{level}`"));
        let [seal, sign] = [(seal, "seal `sealed`"), (sign, "sign `signed`")]
            .map(|(is, words)| is.then(|| words.to_owned()));
        let wanted: Vec<String> = [seal, sign, evidence].into_iter().flatten().collect();
        let more = match self.methods.len() {
            0 | 1 => String::new(),
            n => format!(" and {} more", n - 1),
        };
        let first = self.methods.first().map_or("", String::as_str);
        format!(
            "links to `{service}` have {}, or there are none: {} demands it for {first}{more}",
            wanted.join(", "),
            self.place
        )
    }
}
