//! Whose a user's number is: those that are lent to users count as theirs, wherever something is shared
//! out by user.

/// Uids that are lent to users: /etc/subuid, as newuidmap(1) goes by it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subordinates(Vec<(u32, u32, u32)>);

impl Subordinates {
    /// Reads /etc/subuid; nothing is lent where there is none.
    pub fn read() -> Self {
        let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        Self::parse(&text("/etc/subuid"), &text("/etc/passwd"))
    }

    /// Lines `owner:first:count`, owners by name or number; see subuid(5), passwd(5).
    fn parse(subuid: &str, passwd: &str) -> Self {
        let uid_of = |owner: &str| {
            owner.parse().ok().or_else(|| {
                let fields = |line: &'_ str| {
                    let mut fields = line.split(':');
                    (fields.next()? == owner).then(|| fields.nth(1)?.parse().ok()).flatten()
                };
                passwd.lines().find_map(fields)
            })
        };
        let range = |line: &str| {
            let mut fields = line.trim().splitn(3, ':');
            let (owner, first, count) = (fields.next()?, fields.next()?, fields.next()?);
            let (first, count): (u32, u32) = (first.parse().ok()?, count.parse().ok()?);
            // Whoever is not in passwd has one account all the same: that of the first uid.
            Some((first, first.checked_add(count)?, uid_of(owner).unwrap_or(first)))
        };
        Self(subuid.lines().filter_map(range).collect())
    }

    /// The user to whom a uid is lent, or the uid itself. Those that root or `own` lends on are no
    /// operator's: they have the account of the first one of their range.
    pub fn owner(&self, uid: u32, own: u32) -> u32 {
        let lent = self.0.iter().find(|(first, end, _)| (*first..*end).contains(&uid));
        match lent {
            Some((first, _, owner)) if [0, own].contains(owner) => *first,
            Some((_, _, owner)) => *owner,
            None => uid,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uids_that_are_lent_to_a_user_are_that_users() {
        let s = Subordinates::parse(
            "alice:100000:65536\n1001:200000:10\nbob:300000:5\nnonsense\nx:1\n",
            "root:x:0:0::/:/bin/sh\nalice:x:1000:1000::/:/bin/sh\n",
        );
        for (uid, owner) in [
            (100_000, 1000),
            (165_535, 1000),
            (165_536, 165_536),
            (200_009, 1001),
            (300_004, 300_000),
            (7, 7),
        ] {
            assert_eq!(s.owner(uid, 9), owner);
        }
    }
}
