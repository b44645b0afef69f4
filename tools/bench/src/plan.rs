//! In which order samples are taken.
//!
//! A round is all groups in random order, and within a group all contenders in random order. Whoever
//! is compared is in one group as far as possible, so that it is measured within a second or two and
//! most likely under the same placement of the cores.

use std::collections::HashSet;

use crate::case::{Bench, Case, Place};
use crate::contender::Contender;
use crate::ratio::Key;
use crate::registry;
use crate::target;
use partywall_testkit::Random;

/// One sample to take.
#[derive(Clone, Copy)]
pub struct Entry {
    /// Whom.
    pub contender: &'static Contender,
    /// Where and how.
    pub case: Case,
}

/// Everything that a run measures, by group.
pub struct Plan {
    bench: Bench,
    groups: Vec<Vec<Entry>>,
    essential: HashSet<Key>,
    impossible: Vec<&'static str>,
    missing: HashSet<Key>,
}

/// What to leave out.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Contenders to keep; all if empty.
    pub only: Vec<String>,
    /// Sizes, in bytes or words.
    pub sizes: Vec<u64>,
    /// Whether a second core is there.
    pub two_cores: bool,
    /// Whether unpinned calls are left out.
    pub pinned_only: bool,
    /// The most clients at once.
    pub most_clients: u32,
    /// Whether what is measured in containers is left out.
    pub host_only: bool,
}

impl Plan {
    /// Collects the cells of every chosen contender.
    pub fn new(bench: Bench, choice: &Choice) -> Self {
        let mut entries = Vec::new();
        let mut impossible = Vec::new();
        for contender in registry::of(bench) {
            if choice.only.is_empty() || choice.only.iter().any(|name| *name == contender.name) {
                if !contender.is_possible() {
                    impossible.push(contender.name);
                    continue;
                }
                let cases = (contender.cases)().into_iter();
                let wanted = cases.filter(|case| choice.wants(case));
                entries.extend(wanted.map(|case| Entry { contender, case }));
            }
        }
        let mut targets = target::targets(bench, &choice.sizes);
        targets.extend(target::floors(bench));
        let essential = targets.iter().flat_map(|target| target.quantity.keys()).collect();
        entries.sort_by_key(|entry| entry.case.group());
        let groups = entries.chunk_by(|a, b| a.case.group() == b.case.group());
        let groups = groups.map(<[Entry]>::to_vec).collect();
        Self { bench, groups, essential, impossible, missing: HashSet::new() }
    }

    /// Whether any side is in a container.
    pub fn has_containers(&self) -> bool {
        self.groups.iter().flatten().any(|entry| entry.case.place != Place::Host)
    }

    /// Leaves out what is measured in containers: it is missing, since it was to be measured.
    pub fn miss_containers(&mut self) {
        for group in &mut self.groups {
            let gone = group.extract_if(.., |entry| entry.case.place != Place::Host);
            self.missing.extend(gone.map(|entry| entry.key()));
        }
        self.groups.retain(|group| !group.is_empty());
    }

    /// What was to be measured and cannot be.
    pub fn missing(&self) -> &HashSet<Key> {
        &self.missing
    }

    /// Which bench.
    pub fn bench(&self) -> Bench {
        self.bench
    }

    /// Contenders that were chosen and that this machine cannot run.
    pub fn impossible(&self) -> &[&'static str] {
        &self.impossible
    }

    /// Whether any contender's sides are domains.
    pub fn has_domains(&self) -> bool {
        self.groups.iter().flatten().any(|entry| entry.contender.domains.is_some())
    }

    /// How many samples one full round takes.
    pub fn len(&self) -> usize {
        self.groups.iter().map(Vec::len).sum()
    }

    /// Every sample of a round, in random order.
    pub fn round(&self, rng: &mut Random) -> Vec<Entry> {
        shuffled(self.groups.clone(), rng)
    }

    /// A short round: the cells that targets need, and every `stride`th of the groups besides, so
    /// that `stride` short rounds cover everything once.
    pub fn short_round(&self, number: u32, stride: u32, rng: &mut Random) -> Vec<Entry> {
        let mut index = 0;
        let mut groups = Vec::new();
        for group in &self.groups {
            let needed = |entry: &&Entry| self.is_essential(entry);
            let some: Vec<Entry> = group.iter().filter(needed).copied().collect();
            let turn = index % stride == number % stride;
            if some.len() < group.len() {
                index += 1;
            }
            groups.push(if turn { group.clone() } else { some });
        }
        shuffled(groups, rng)
    }

    fn is_essential(&self, entry: &Entry) -> bool {
        self.essential.contains(&entry.key())
    }
}

impl Entry {
    fn key(&self) -> Key {
        Key { contender: self.contender.name, case: self.case }
    }
}

impl Choice {
    fn wants(&self, case: &Case) -> bool {
        use crate::case::Placement::{TwoCores, Unpinned};
        let size = case.size.is_none_or(|size| self.sizes.contains(&size));
        let clients = case.clients.is_none_or(|clients| clients <= self.most_clients);
        if !size || !clients || (self.host_only && case.place != Place::Host) {
            return false;
        }
        match (case.bench, case.placement) {
            (_, TwoCores) => self.two_cores,
            (Bench::Calls, Unpinned) => !self.pinned_only,
            _ => true,
        }
    }
}

fn shuffled(mut groups: Vec<Vec<Entry>>, rng: &mut Random) -> Vec<Entry> {
    rng.shuffle(&mut groups);
    for group in &mut groups {
        rng.shuffle(group);
    }
    groups.concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::{CALL_SIZES, Placement};

    fn choice(sizes: &[u64]) -> Choice {
        Choice {
            only: vec![],
            sizes: sizes.into(),
            two_cores: true,
            pinned_only: false,
            most_clients: u32::MAX,
            host_only: false,
        }
    }

    fn plan(only: &[&str], two_cores: bool) -> Plan {
        let only = only.iter().map(ToString::to_string).collect();
        Plan::new(Bench::Calls, &Choice { only, two_cores, ..choice(&CALL_SIZES) })
    }

    fn keys(entries: &[Entry]) -> Vec<(&'static str, Case)> {
        entries.iter().map(|entry| (entry.contender.name, entry.case)).collect()
    }

    #[test]
    fn a_round_takes_every_cell_once_in_an_order_of_its_own() {
        let plan = plan(&[], true);
        let mut rng = Random::new(1);
        let (one, two) = (keys(&plan.round(&mut rng)), keys(&plan.round(&mut rng)));
        assert_eq!(one.len(), plan.len());
        assert_ne!(one, two);
        assert_eq!(one.iter().collect::<HashSet<_>>(), two.iter().collect::<HashSet<_>>());
    }

    #[test]
    fn groups_stay_together() {
        let round = plan(&[], true).round(&mut Random::new(3));
        let groups: Vec<Case> = round.iter().map(|entry| entry.case.group()).collect();
        let runs = groups.chunk_by(|a, b| a == b).count();
        assert_eq!(runs, groups.iter().collect::<HashSet<_>>().len());
    }

    #[test]
    fn short_rounds_cover_everything_and_always_the_essential() {
        let plan = plan(&[], true);
        let mut rng = Random::new(1);
        let rounds: Vec<_> = (0..5).map(|n| keys(&plan.short_round(n, 5, &mut rng))).collect();
        let seen: HashSet<_> = rounds.iter().flatten().collect();
        assert_eq!(seen.len(), plan.len());
        assert!(rounds.iter().all(|round| round.len() < plan.len()));
        for round in &rounds {
            let has = |name| round.iter().filter(|key| key.0 == name).count();
            assert!(has("line-probe") >= 1 && has("handoff-floor") >= 1 && has("tonic-uds") >= 4);
        }
    }

    #[test]
    fn a_choice_leaves_out_contenders_placements_and_sizes() {
        let round = plan(&["pipe"], false).round(&mut Random::new(1));
        assert!(round.iter().all(|entry| entry.contender.name == "pipe"));
        assert!(round.iter().all(|entry| entry.case.placement != Placement::TwoCores));
        let round = Plan::new(Bench::Calls, &choice(&[32])).round(&mut Random::new(1));
        let sizes: HashSet<Option<u64>> = round.iter().map(|entry| entry.case.size).collect();
        assert_eq!(sizes, HashSet::from([None, Some(32)]));
    }

    #[test]
    fn without_an_engine_what_containers_have_is_missing() {
        let contained =
            |round: &[Entry]| round.iter().filter(|entry| entry.case.place != Place::Host).count();
        let mut plan = plan(&["partywall-native"], true);
        let all = plan.round(&mut Random::new(1));
        assert!(plan.has_containers() && plan.missing().is_empty() && contained(&all) > 0);
        plan.miss_containers();
        let rest = plan.round(&mut Random::new(1));
        assert!(!plan.has_containers() && contained(&rest) == 0);
        assert_eq!(plan.missing().len(), contained(&all));
        assert_eq!(rest.len(), all.len() - contained(&all));
        assert!(plan.missing().iter().all(|key| key.contender == "partywall-native"));
        // Who asks for none misses none.
        let chosen = Plan::new(Bench::Calls, &Choice { host_only: true, ..choice(&CALL_SIZES) });
        assert!(!chosen.has_containers() && chosen.missing().is_empty());
    }

    #[test]
    fn a_choice_leaves_out_many_clients() {
        let most = |most_clients| {
            let choice = Choice { most_clients, ..choice(Bench::Transfer.sizes()) };
            let round = Plan::new(Bench::Transfer, &choice).round(&mut Random::new(1));
            round.iter().filter_map(|entry| entry.case.clients).max()
        };
        assert_eq!([8, u32::MAX].map(most), [Some(8), Some(64)]);
    }
}
