//! What protects a link: five ordered levels, as values that are told, compared and required.
//!
//! | field | question |
//! | --- | --- |
//! | [`Isolation`] | what separates the memories of the two ends? |
//! | [`Confidentiality`] | who beside the two ends can read what passes? |
//! | [`Evidence`] | how are the identities of the two ends proven? |
//! | [`Seal`] | is what passes encrypted, with keys that the two ends alone have? |
//! | [`Sign`] | is each message signed by its sender? |
//!
//! A coordinator tells it to both ends ([`crate::control::Terms`]); each end lowers what it was told to
//! what it finds itself, field by field ([`Security::min_per_field`]), and never raises it.
//!
//! # On the wire
//!
//! A count, then so many pairs of bytes: the number of a field and its level, the fields in ascending
//! order. Levels are 16 apart, so that a later release can put one between two of these. Whoever reads
//! this takes a level that it does not know for the next lower one that it knows, a field that is
//! missing for its lowest level, and leaves out a field that it does not know: nobody claims more than it
//! understands.

use core::cmp::Ordering;
use core::fmt;
use core::str::FromStr;

use crate::codec::{DecodeError, Reader, Writer};

/// A word that names no level of its field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no {field} `{word}`; there are {known}{}", near(.word, .known.0))]
pub struct UnknownLevel {
    field: &'static str,
    word: alloc::string::String,
    known: Words,
}

/// The words of a field, from the lowest level on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Words(&'static [&'static str]);

impl fmt::Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, word) in self.0.iter().enumerate() {
            let before = if n == 0 { "" } else { ", " };
            write!(f, "{before}`{word}`")?;
        }
        Ok(())
    }
}

/// The word of the list that `word` was before this release.
fn near(word: &str, known: &[&str]) -> &'static str {
    match word {
        "fault" if known.contains(&"protection-keys") => "; `fault` is now `protection-keys`",
        "network" if known.contains(&"process") => {
            "; what a link over the network lacks is confidentiality"
        }
        _ => "",
    }
}

macro_rules! levels {
    (
        $(#[$about:meta])* $name:ident, $field:literal;
        $($(#[$what:meta])* $level:ident = $number:literal, $word:literal;)*
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$what])* $level,)*
        }

        impl $name {
            /// Every level, from the lowest on.
            pub const ALL: &[Self] = &[$(Self::$level),*];
            /// The highest level that this release knows.
            pub const HIGHEST: Self = Self::ALL[Self::ALL.len() - 1];
            /// The lowest level.
            pub const LOWEST: Self = Self::ALL[0];
            const FIELD: &str = $field;
            const WORDS: &[&str] = &[$($word),*];

            /// The word that names the level in policies, outputs and logs.
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$level => $word,)*
                }
            }

            const fn number(self) -> u8 {
                match self {
                    $(Self::$level => $number,)*
                }
            }

            /// The highest known level that is not above a number.
            fn at_most(number: u8) -> Self {
                let known = Self::ALL.iter().rev().find(|level| level.number() <= number);
                known.copied().unwrap_or(Self::LOWEST)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.word())
            }
        }

        impl FromStr for $name {
            type Err = UnknownLevel;

            fn from_str(word: &str) -> Result<Self, UnknownLevel> {
                let found = Self::ALL.iter().copied().find(|level| level.word() == word);
                found.ok_or_else(|| UnknownLevel {
                    field: Self::FIELD,
                    word: word.into(),
                    known: Words(Self::WORDS),
                })
            }
        }
    };
}

levels! {
    /// What separates the memories of the two ends of a link, the least first.
    ///
    /// Two ends of which one is reached over a network are two processes.
    ///
    /// ```
    /// # use partywall_abi::security::Isolation;
    /// assert_eq!("protection-keys".parse(), Ok(Isolation::ProtectionKeys));
    /// assert!(Isolation::ProtectionKeys < Isolation::Process);
    /// ```
    Isolation, "isolation";
    /// Nothing: one address space, in which each end can write all memory.
    None = 0, "none";
    /// Protection keys on a kernel before Linux 6.12, where the stacks of signal handlers are open to all
    /// domains: a stray write to one of those can end another domain as well.
    SharedSignalStacks = 16, "shared-signal-stacks";
    /// One address space, with a protection key for each end: contains mistakes, not hostile code.
    ProtectionKeys = 32, "protection-keys";
    /// Two processes. Those of one host share two outboxes, and parcels where the policy lets descriptors
    /// cross; one of them writes each, but for leases, which both write.
    Process = 48, "process";
}

levels! {
    /// Who can read what passes between the two ends of a link, beside the ends; the most readers first.
    Confidentiality, "confidentiality";
    /// Whoever is on the network's path.
    Open = 0, "open";
    /// Programs in the address space of an end, the kernel and root of this host.
    Space = 16, "space";
    /// Processes of an end's user, the kernel and root of this host.
    User = 24, "user";
    /// The kernel and root of this host alone.
    Host = 32, "host";
}

levels! {
    /// How the identities of a link's ends are proven, the weakest first. Of a link, the weaker of its two
    /// ends counts.
    Evidence, "evidence";
    /// The identity of an end is not verified.
    None = 0, "none";
    /// The kernel's word about a running process. The digest of its program was read from /proc, or is
    /// unknown.
    Observed = 16, "observed";
    /// That, and the word of the process's container engine about the image that its container was made of.
    Image = 24, "image";
    /// The coordinator, or its launcher, started the program from a sealed copy with a known digest.
    Started = 32, "started";
}

levels! {
    /// Whether what passes on a link is encrypted between its ends.
    ///
    /// That says nothing of who can read the memory of an end: see [`Confidentiality`].
    Seal, "seal";
    /// It passes as it is.
    Off = 0, "off";
    /// Each record is encrypted and authenticated, with keys that the two ends have agreed on.
    Sealed = 16, "sealed";
}

levels! {
    /// Whether the messages on a link are signed.
    Sign, "sign";
    /// They are not.
    Off = 0, "off";
    /// Each is signed by the key of its sender's certificate, for others to check as well.
    Signed = 16, "signed";
}

impl Isolation {
    /// Whether the two ends share one address space, as domains of one launcher do.
    pub fn is_one_space(self) -> bool {
        self < Self::Process
    }
}

/// What protects a link.
///
/// Values are ordered field by field, so two of them may be incomparable: each higher in one field. Then
/// all of `<`, `>` and `==` are false. A requirement asks [`Security::at_least`].
///
/// ```
/// # use partywall_abi::security::Security;
/// let least = Security::UNIX_SOCKET;
/// assert!(Security::HIGHEST.at_least(&least));
/// let shortfall = Security::NETWORK.shortfall(&least).unwrap();
/// assert_eq!(shortfall.to_string(), "confidentiality `user` is required, and there is `open`");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Security {
    /// What separates the memories of the two ends.
    pub isolation: Isolation,
    /// Who else can read what passes.
    pub confidentiality: Confidentiality,
    /// How the identities of the ends are proven.
    pub evidence: Evidence,
    /// Whether what passes is encrypted.
    pub seal: Seal,
    /// Whether messages are signed.
    pub sign: Sign,
}

/// The first field of a [`Security`] that is below what is required of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} `{required}` is required, and there is `{found}`")]
#[non_exhaustive]
pub struct Shortfall {
    /// The name of the field.
    pub field: &'static str,
    /// The word of the least level that is required.
    pub required: &'static str,
    /// The word of the level that is there.
    pub found: &'static str,
}

const ISOLATION: u8 = 0;
const CONFIDENTIALITY: u8 = 1;
const EVIDENCE: u8 = 2;
const SEAL: u8 = 3;
const SIGN: u8 = 4;

impl Security {
    /// The lowest level of each field: what is known of a link of which nothing is known, and what a
    /// requirement that requires nothing asks for.
    pub const LOWEST: Self =
        Self::new(Isolation::LOWEST, Confidentiality::LOWEST, Evidence::LOWEST);
    /// The highest level of each field that this release knows.
    pub const HIGHEST: Self =
        Self::new(Isolation::HIGHEST, Confidentiality::HIGHEST, Evidence::HIGHEST)
            .with_seal(Seal::HIGHEST)
            .with_sign(Sign::HIGHEST);
    /// Of two ends in one process, of which nobody has told the other.
    pub const IN_PROCESS: Self = Self::new(Isolation::None, Confidentiality::Space, Evidence::None);
    /// Of a connection over a Unix socket with the other end not verified: nobody has said that it is closed
    /// to other processes of its user.
    pub const UNIX_SOCKET: Self =
        Self::new(Isolation::Process, Confidentiality::User, Evidence::None);
    /// Of a connection over a network that is not encrypted, and with the other end not verified.
    pub const NETWORK: Self = Self::new(Isolation::Process, Confidentiality::Open, Evidence::None);

    /// Of a connection over a network by mutual TLS: each end has proven who it is by a certificate, which an
    /// authority has given it by the kernel's word. Nobody has said that the ends are closed to other
    /// processes of their users.
    pub const MUTUAL_TLS: Self =
        Self::new(Isolation::Process, Confidentiality::User, Evidence::Observed)
            .with_seal(Seal::Sealed);

    /// These three levels; what passes is neither encrypted nor signed.
    pub const fn new(
        isolation: Isolation,
        confidentiality: Confidentiality,
        evidence: Evidence,
    ) -> Self {
        Self { isolation, confidentiality, evidence, seal: Seal::Off, sign: Sign::Off }
    }

    /// The same with other evidence.
    pub const fn with_evidence(self, evidence: Evidence) -> Self {
        Self { evidence, ..self }
    }

    /// The same with what passes encrypted or not.
    pub const fn with_seal(self, seal: Seal) -> Self {
        Self { seal, ..self }
    }

    /// The same with messages signed or not.
    pub const fn with_sign(self, sign: Sign) -> Self {
        Self { sign, ..self }
    }

    /// Whether every field is at least as high as in `least`.
    pub fn at_least(&self, least: &Self) -> bool {
        self.shortfall(least).is_none()
    }

    /// The first field that is below the one of `least`, if any is.
    pub fn shortfall(&self, least: &Self) -> Option<Shortfall> {
        let of = |field, required, found| Some(Shortfall { field, required, found });
        if self.isolation < least.isolation {
            return of(Isolation::FIELD, least.isolation.word(), self.isolation.word());
        }
        if self.confidentiality < least.confidentiality {
            let (required, found) = (least.confidentiality.word(), self.confidentiality.word());
            return of(Confidentiality::FIELD, required, found);
        }
        if self.evidence < least.evidence {
            return of(Evidence::FIELD, least.evidence.word(), self.evidence.word());
        }
        if self.seal < least.seal {
            return of(Seal::FIELD, least.seal.word(), self.seal.word());
        }
        if self.sign < least.sign {
            return of(Sign::FIELD, least.sign.word(), self.sign.word());
        }
        None
    }

    /// The lower level of each field: what can be said when two say something of one link.
    pub fn min_per_field(self, other: Self) -> Self {
        Self {
            isolation: self.isolation.min(other.isolation),
            confidentiality: self.confidentiality.min(other.confidentiality),
            evidence: self.evidence.min(other.evidence),
            seal: self.seal.min(other.seal),
            sign: self.sign.min(other.sign),
        }
    }

    /// The higher level of each field: what meets two requirements.
    pub fn max_per_field(self, other: Self) -> Self {
        Self {
            isolation: self.isolation.max(other.isolation),
            confidentiality: self.confidentiality.max(other.confidentiality),
            evidence: self.evidence.max(other.evidence),
            seal: self.seal.max(other.seal),
            sign: self.sign.max(other.sign),
        }
    }

    /// Writes it.
    pub fn put(&self, w: &mut Writer<'_>) {
        let fields = [
            (ISOLATION, self.isolation.number()),
            (CONFIDENTIALITY, self.confidentiality.number()),
            (EVIDENCE, self.evidence.number()),
            (SEAL, self.seal.number()),
            (SIGN, self.sign.number()),
        ];
        w.u8(fields.len() as u8);
        for (field, level) in fields {
            w.u8(field);
            w.u8(level);
        }
    }

    /// Reads it, as the module says.
    ///
    /// # Errors
    /// [`DecodeError`] when it ends too soon, or when its fields are not in ascending order.
    pub fn take(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let mut security = Self::LOWEST;
        let mut last = None;
        for _ in 0..r.u8("security fields")? {
            let [field, level] = r.array("security")?;
            if last >= Some(field) {
                return Err(DecodeError::Value { field: "security field", found: field.into() });
            }
            last = Some(field);
            match field {
                ISOLATION => security.isolation = Isolation::at_most(level),
                CONFIDENTIALITY => security.confidentiality = Confidentiality::at_most(level),
                EVIDENCE => security.evidence = Evidence::at_most(level),
                SEAL => security.seal = Seal::at_most(level),
                SIGN => security.sign = Sign::at_most(level),
                _ => {}
            }
        }
        Ok(security)
    }
}

impl PartialOrd for Security {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        match (self.at_least(other), other.at_least(self)) {
            (true, true) => Some(Ordering::Equal),
            (true, false) => Some(Ordering::Greater),
            (false, true) => Some(Ordering::Less),
            (false, false) => None,
        }
    }
}

impl fmt::Display for Security {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}, {}", self.isolation, self.confidentiality, self.evidence)?;
        // The words of the two fields differ.
        if self.seal != Seal::LOWEST {
            write!(f, ", {}", self.seal)?;
        }
        if self.sign != Sign::LOWEST {
            write!(f, ", {}", self.sign)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    fn any_security() -> impl Strategy<Value = Security> {
        let [i, c, e] = [Isolation::ALL.len(), Confidentiality::ALL.len(), Evidence::ALL.len()];
        let [l, n] = [Seal::ALL.len(), Sign::ALL.len()];
        (0..i, 0..c, 0..e, 0..l, 0..n).prop_map(|(i, c, e, l, n)| {
            Security::new(Isolation::ALL[i], Confidentiality::ALL[c], Evidence::ALL[e])
                .with_seal(Seal::ALL[l])
                .with_sign(Sign::ALL[n])
        })
    }

    fn encoded(security: Security) -> Vec<u8> {
        let mut out = Vec::new();
        security.put(&mut Writer(&mut out));
        out
    }

    fn decoded(bytes: &[u8]) -> Result<Security, DecodeError> {
        let mut r = Reader::new(bytes);
        let security = Security::take(&mut r)?;
        r.end().map(|()| security)
    }

    proptest! {
        #[test]
        fn order_is_partial_and_agrees_with_at_least(
            a in any_security(), b in any_security(), c in any_security(),
        ) {
            prop_assert!(a.at_least(&a) && a.at_least(&Security::LOWEST));
            prop_assert!(Security::HIGHEST.at_least(&a));
            prop_assert_eq!(a >= b, a.at_least(&b));
            prop_assert_eq!(a == b, a.at_least(&b) && b.at_least(&a));
            prop_assert_eq!(a < b, b.at_least(&a) && a != b);
            if a.at_least(&b) && b.at_least(&c) {
                prop_assert!(a.at_least(&c));
            }
        }

        #[test]
        fn minimum_and_maximum_bound_both(a in any_security(), b in any_security()) {
            let (low, high) = (a.min_per_field(b), a.max_per_field(b));
            prop_assert!(a >= low && b >= low && high >= a && high >= b);
            prop_assert_eq!(low, b.min_per_field(a));
            prop_assert!([a.isolation, b.isolation].contains(&low.isolation));
            prop_assert!([a.evidence, b.evidence].contains(&high.evidence));
        }

        #[test]
        fn shortfall_names_a_field_that_is_below(a in any_security(), b in any_security()) {
            match a.shortfall(&b) {
                None => prop_assert!(a >= b),
                Some(short) => {
                    let words = [
                        a.isolation.word(),
                        a.confidentiality.word(),
                        a.evidence.word(),
                        a.seal.word(),
                        a.sign.word(),
                    ];
                    prop_assert!(words.contains(&short.found) && short.found != short.required);
                }
            }
        }

        #[test]
        fn encoding_round_trips_and_no_prefix_does(a in any_security()) {
            let bytes = encoded(a);
            prop_assert_eq!(decoded(&bytes), Ok(a));
            for end in 0..bytes.len() {
                prop_assert!(decoded(&bytes[..end]).is_err());
            }
        }

        #[test]
        fn unknown_levels_and_fields_never_claim_more(
            levels in proptest::collection::btree_map(any::<u8>(), any::<u8>(), 0..6),
        ) {
            let mut bytes = alloc::vec![levels.len() as u8];
            levels.iter().for_each(|(field, level)| bytes.extend([*field, *level]));
            let found = decoded(&bytes).unwrap();
            let said = |field: u8| levels.get(&field).copied().unwrap_or(0);
            prop_assert!(found.isolation.number() <= said(ISOLATION));
            prop_assert!(found.confidentiality.number() <= said(CONFIDENTIALITY));
            prop_assert!(found.evidence.number() <= said(EVIDENCE));
            prop_assert!(found.seal.number() <= said(SEAL));
            prop_assert!(found.sign.number() <= said(SIGN));
            let next = |all: &[u8], found: u8| {
                all.iter().find(|level| **level > found).copied().unwrap_or(u8::MAX)
            };
            let isolations: Vec<u8> = Isolation::ALL.iter().map(|i| i.number()).collect();
            let above = next(&isolations, found.isolation.number());
            prop_assert!(said(ISOLATION) < above || above == u8::MAX);
        }
    }

    #[test]
    fn fields_out_of_order_are_refused() {
        for bytes in [&[2, 1, 32, 0, 48][..], &[2, 0, 48, 0, 48], &[2, 9, 0, 9, 0]] {
            assert!(decoded(bytes).is_err(), "{bytes:?}");
        }
        assert_eq!(decoded(&[0]), Ok(Security::LOWEST));
        for (level, known) in [(23, "space"), (24, "user"), (31, "user"), (32, "host")] {
            assert_eq!(decoded(&[1, 1, level]).unwrap().confidentiality.word(), known);
        }
        for (level, known) in [(23, "observed"), (24, "image"), (31, "image"), (32, "started")] {
            assert_eq!(decoded(&[1, 2, level]).unwrap().evidence.word(), known);
        }
        let started = Security { evidence: Evidence::Started, ..Security::LOWEST };
        assert_eq!(decoded(&[2, 2, 47, 200, 9]), Ok(started));
    }

    #[test]
    fn words_name_levels_and_others_are_refused_with_the_list() {
        for level in Isolation::ALL {
            assert_eq!(level.to_string().parse(), Ok(*level));
        }
        for level in Confidentiality::ALL {
            assert_eq!(level.to_string().parse(), Ok(*level));
        }
        for level in Evidence::ALL {
            assert_eq!(level.to_string().parse(), Ok(*level));
        }
        let error = "sealed".parse::<Confidentiality>().unwrap_err().to_string();
        assert_eq!(error, "no confidentiality `sealed`; there are `open`, `space`, `user`, `host`");
        let error = "fault".parse::<Isolation>().unwrap_err().to_string();
        assert!(error.ends_with("`fault` is now `protection-keys`"), "{error}");
        assert_eq!(Security::NETWORK.to_string(), "process, open, none");
        let both = Security::NETWORK.with_seal(Seal::Sealed).with_sign(Sign::Signed);
        assert_eq!(both.to_string(), "process, open, none, sealed, signed");
    }

    #[test]
    fn ring_and_network_differ_in_confidentiality() {
        let ring = Security::HIGHEST;
        let short = Security::NETWORK.shortfall(&ring).unwrap();
        assert_eq!(short.to_string(), "confidentiality `host` is required, and there is `open`");
        let domain = Security::new(Isolation::None, Confidentiality::Space, Evidence::Started);
        assert_eq!(domain.partial_cmp(&Security::NETWORK), None);
    }
}
