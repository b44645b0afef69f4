//! How much an owner may hold beside others of what its functions hold while they wait.
//!
//! Nobody knows how long a function waits for a service. So an owner could come to hold all that there is,
//! and others would have none of it. An owner gets one more only while it holds fewer than are free: one
//! alone has half, two have a third each, and so on. This is the dynamic threshold of packet switches whose
//! ports share one memory (Choudhury, Hahne: IEEE/ACM Transactions on Networking 6(2), 1998) with the factor
//! 1. The coordinator has the same rule for accounts: half of what others leave.
//!
//! | what is held | where | by | of how many |
//! | --- | --- | --- | --- |
//! | cells | a process of all owners, without protection keys | each owner | 63 |
//! | colours of cells | a process of all owners, with protection keys | each owner | 12 |
//! | processes | all CPUs together | each owner, and the group of all as one more | `processes` |
//!
//! Nothing is taken back. Who holds nothing gets one as long as there is a free one, and who holds something
//! leaves a free one. So one owner never holds all of several. Owners that come one after the other and that
//! all take what they can have a half, a quarter, an eighth: together they can hold all.

/// Whether who holds so many may have one more, of which so many are free.
#[inline]
pub(super) fn may_have_one(holds: usize, free: usize) -> bool {
    holds < free
}

#[cfg(test)]
mod tests {
    use super::*;
    use partywall_testkit::Random;

    /// Owners that take one each by turns, as long as one of them may; what each holds then.
    fn fill(total: usize, owners: usize) -> Vec<usize> {
        let mut holds = vec![0; owners];
        loop {
            let before: usize = holds.iter().sum();
            for owner in 0..owners {
                let free = total - holds.iter().sum::<usize>();
                holds[owner] += usize::from(may_have_one(holds[owner], free));
            }
            if holds.iter().sum::<usize>() == before {
                return holds;
            }
        }
    }

    #[test]
    fn owners_have_equal_parts_and_leave_one() {
        for total in [2, 3, 12, 63, 64] {
            assert_eq!(fill(total, 1), [total.div_ceil(2)]);
            for owners in 1..total {
                let holds = fill(total, owners);
                let (least, most) = (holds.iter().min().unwrap(), holds.iter().max().unwrap());
                assert!(most - least <= 1, "{owners} of {total}: {holds:?}");
                assert!(*most <= total / (owners + 1) + 1, "{owners} of {total}: {holds:?}");
                assert!(*least >= total / (owners + 1), "{owners} of {total}: {holds:?}");
            }
        }
        assert_eq!(fill(1, 2), [1, 0], "there is no other one to leave");
    }

    #[test]
    fn no_owner_takes_the_last_one_that_holds_another() {
        let mut random = Random::of_this_run();
        for total in [2, 12, 63] {
            let mut holds = [0_usize; 8];
            for _ in 0..20_000 {
                let owner = random.below(holds.len());
                let free = total - holds.iter().sum::<usize>();
                if random.below(3) == 0 {
                    holds[owner] = holds[owner].saturating_sub(1);
                } else if may_have_one(holds[owner], free) {
                    let had = holds[owner];
                    holds[owner] += 1;
                    assert!(had == 0 || free > 1, "{holds:?}");
                    // What it holds then is half of what others leave, rounded up.
                    let others = total - free - had;
                    assert!(holds[owner] <= (total - others).div_ceil(2), "{holds:?}");
                } else {
                    assert!(free == 0 || holds[owner] > 0, "{holds:?}");
                }
                assert!(holds.iter().all(|holds| *holds < total), "{holds:?}");
            }
        }
    }
}
