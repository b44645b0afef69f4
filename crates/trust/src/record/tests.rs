use super::*;
use partywall_testkit::Random;

const CHANNEL: [u8; 16] = [7; 16];
const WHAT: What = What { kind: 5, flags: 2, stream: 0x0102_0304 };

fn forms() -> impl Iterator<Item = Form> {
    let both = |suite| [false, true].map(|classes| Form { suite, classes });
    Suite::ALL.into_iter().flat_map(both)
}

fn plain(suite: Suite) -> Form {
    Form { suite, classes: false }
}

/// Both ends of the caller's direction of a channel.
fn pair(form: Form) -> (Sealer, Opener) {
    let mut secret = [0; SECRET];
    aws_lc_rs::rand::fill(&mut secret).unwrap();
    pair_of(form, &secret)
}

fn pair_of(form: Form, secret: &[u8; SECRET]) -> (Sealer, Opener) {
    (Sealer::new(form, CHANNEL, true, secret), Opener::new(form, CHANNEL, true, secret))
}

fn seal(sealer: &mut Sealer, payload: &[u8]) -> Vec<u8> {
    let mut record = vec![0; sealer.form().sealed(payload.len())];
    sealer.seal(WHAT, [payload, &[]], &mut record).unwrap();
    record
}

/// The payload of a record, which is good.
fn open(opener: &mut Opener, record: &[u8]) -> Vec<u8> {
    let mut record = record.to_vec();
    let len = opener.open(WHAT, &mut record).unwrap();
    record.truncate(len);
    record
}

/// Asserts that a record is refused, and that nothing is left of it.
fn assert_refused(opener: &mut Opener, what: What, record: &[u8], with: RecordError, of: &str) {
    let mut record = record.to_vec();
    assert_eq!(opener.open(what, &mut record), Err(with), "{of}");
    assert!(record.iter().all(|byte| *byte == 0), "{of}: something is left");
}

/// Both ends as they are when so many records were sealed and opened, by the same secret.
fn jump(direction: &mut Direction, number: u64) {
    direction.number = number;
    direction.epoch = (number / EPOCH) as u32;
}

#[test]
fn a_record_is_opened_as_it_was_sealed() {
    let mut random = Random::of_this_run();
    for form in forms() {
        let (mut sealer, mut opener) = pair(form);
        assert_eq!((sealer.form(), opener.form()), (form, form));
        for len in [0, 1, 15, 16, 17, 44, 59, 60, 61, 63, 64, 65, 4096, 65536] {
            let payload: Vec<u8> = (0..len).map(|_| random.draw() as u8).collect();
            let splits = match len {
                0..=65 => (0..=len).collect(),
                _ => vec![0, 1, 15, 16, 17, random.below(len), len - 1, len],
            };
            for split in splits {
                let (first, then) = payload.split_at(split);
                let mut record = vec![0; form.sealed(len)];
                sealer.seal(WHAT, [first, then], &mut record).unwrap();
                assert!(len < 16 || !record.windows(16).any(|w| *w == payload[..16]), "{len}");
                assert_eq!(open(&mut opener, &record), payload, "{form:?} {len} {split}");
            }
        }
    }
}

#[test]
fn equal_payloads_have_unequal_records() {
    for form in forms() {
        let (mut sealer, _) = pair(form);
        let mut other = Sealer::new(form, CHANNEL, false, &sealer.direction.secret);
        let mut records: Vec<_> = (0..300).map(|_| seal(&mut sealer, b"hello")).collect();
        records.push(seal(&mut pair(form).0, b"hello"));
        let count = records.len();
        records.sort_unstable();
        records.dedup();
        assert_eq!(records.len(), count, "{form:?}");
        // The tag of the other direction is another one, even if the secret were the same.
        let (_, mut opener) = pair_of(form, &sealer.direction.secret);
        let theirs = seal(&mut other, b"hello");
        assert_refused(&mut opener, WHAT, &theirs, RecordError::Altered(0), "other direction");
    }
}

#[test]
fn lengths_of_payloads_and_records_agree() {
    for classes in [false, true] {
        let form = Form { suite: Suite::Aes128Gcm, classes };
        let near = |at: u32| ((1_usize << at) - 40)..((1_usize << at) + 40);
        for sealed in (form.sealed(0)..3000).chain((12..27).flat_map(near)) {
            let most = form.most(sealed);
            assert!(form.sealed(most) <= sealed, "{classes} {sealed}");
            assert!(form.sealed(most + 1) > sealed, "{classes} {sealed}");
        }
        assert!((0..form.sealed(0)).all(|sealed| form.most(sealed) == 0), "{classes}");
    }
    let form = Form { suite: Suite::Aes128Gcm, classes: true };
    let classes: Vec<_> = [0, 60, 61, 124, 125, 4092, 4093].map(|len| form.sealed(len)).into();
    assert_eq!(classes, [80, 80, 144, 144, 272, 4112, 8208]);
}

#[test]
fn suites_are_known_by_number_and_word() {
    let words = ["aes-128-gcm", "aes-256-gcm", "chacha20-poly1305"];
    assert_eq!(Suite::ALL.map(Suite::word), words);
    assert_eq!((0..=255).filter_map(Suite::of).collect::<Vec<_>>(), Suite::ALL);
    assert_eq!(Suite::ALL.map(|suite| suite as u8), [1, 2, 3]);
}

#[test]
#[should_panic(expected = "5 bytes are sealed")]
fn a_record_of_another_length_is_not_sealed() {
    let (mut sealer, _) = pair(plain(Suite::Aes128Gcm));
    let _sealed = sealer.seal(WHAT, [b"he", b"llo"], &mut [0; 20]);
}

#[test]
fn row_39_every_bit_of_a_record_is_checked() {
    let payload: Vec<u8> = (0..100).map(|at| at ^ 0x5a).collect();
    for form in forms() {
        let (mut sealer, opener) = pair(form);
        let secret = &opener.direction.secret;
        let (good, next) = (seal(&mut sealer, &payload), seal(&mut sealer, &payload));
        let refused = |what: What, record: &[u8], of: String| {
            let (_, mut opener) = pair_of(form, secret);
            let altered = RecordError::Altered(0);
            assert_refused(&mut opener, what, record, altered, &of);
            for later in [&good, &next] {
                assert_refused(&mut opener, WHAT, later, RecordError::Over, &of);
            }
        };
        for bit in 0..8 * good.len() {
            let mut record = good.clone();
            record[bit / 8] ^= 1 << (bit % 8);
            refused(WHAT, &record, format!("{form:?}, bit {bit} of the record"));
        }
        for bit in 0..32 {
            let what = What { stream: WHAT.stream ^ 1 << bit, ..WHAT };
            refused(what, &good, format!("{form:?}, bit {bit} of the stream"));
        }
        for bit in 0..8 {
            let what = What { kind: WHAT.kind ^ 1 << bit, ..WHAT };
            refused(what, &good, format!("{form:?}, bit {bit} of the kind"));
            let what = What { flags: WHAT.flags ^ 1 << bit, ..WHAT };
            refused(what, &good, format!("{form:?}, bit {bit} of the flags"));
        }
        let (_, mut opener) = pair_of(form, secret);
        assert_eq!([open(&mut opener, &good), open(&mut opener, &next)], [&payload[..]; 2]);
    }
}

#[test]
fn row_39_cut_and_extended_records_are_refused() {
    for form in forms() {
        let (mut sealer, opener) = pair(form);
        let (good, next) = (seal(&mut sealer, &[9; 100]), seal(&mut sealer, &[9; 100]));
        let refused = |record: &[u8]| {
            let (_, mut opener) = pair_of(form, &opener.direction.secret);
            let of = format!("{form:?}, {} bytes", record.len());
            assert_refused(&mut opener, WHAT, record, RecordError::Altered(0), &of);
            assert_refused(&mut opener, WHAT, &next, RecordError::Over, &of);
        };
        for cut in 0..good.len() {
            refused(&good[..cut]);
            refused(&good[good.len() - cut..]);
        }
        for more in 1..=64 {
            refused(&[&good[..], &vec![0; more]].concat());
            refused(&[&vec![0; more][..], &good].concat());
        }
        refused(&[&good[..], &next].concat());
    }
}

/// Whatever order four records come in: those that are in their turn are opened, and from the first that
/// is not on, none.
#[test]
fn row_39_order_of_records_is_checked() {
    for form in forms() {
        let (mut sealer, opener) = pair(form);
        let records: [_; 4] = std::array::from_fn(|at| seal(&mut sealer, &[at as u8; 30]));
        for order in 0..256 {
            let (_, mut opener) = pair_of(form, &opener.direction.secret);
            let mut is_over = false;
            for turn in 0..4 {
                let at = order >> (2 * turn) & 3;
                let of = format!("{form:?}, order {order:o}, turn {turn}");
                if !is_over && at == turn {
                    assert_eq!(open(&mut opener, &records[at]), [at as u8; 30], "{of}");
                    continue;
                }
                let altered = RecordError::Altered(turn as u64);
                let with = if is_over { RecordError::Over } else { altered };
                assert_refused(&mut opener, WHAT, &records[at], with, &of);
                is_over = true;
            }
        }
    }
}

#[test]
fn row_39_spliced_records_are_refused() {
    for form in forms() {
        let (mut sealer, own) = pair(form);
        let secret = &own.direction.secret;
        let record = seal(&mut sealer, b"pay 100");
        // The secret is the same in each: what is said beside the record is enough.
        let mut epoch = Opener::new(form, CHANNEL, true, secret);
        epoch.direction.epoch = 1;
        let others = [
            ("direction", Opener::new(form, CHANNEL, false, secret)),
            ("channel", Opener::new(form, [8; 16], true, secret)),
            ("epoch", epoch),
            ("secret", Opener::new(form, CHANNEL, true, &[1; SECRET])),
        ];
        for (other, mut opener) in others {
            let of = format!("{form:?}, of another {other}");
            assert_refused(&mut opener, WHAT, &record, RecordError::Altered(0), &of);
            assert_refused(&mut opener, WHAT, &record, RecordError::Over, &of);
        }
        for suite in Suite::ALL.into_iter().filter(|suite| *suite != form.suite) {
            let other = Form { suite, ..form };
            let mut opener = Opener::new(other, CHANNEL, true, secret);
            assert_refused(&mut opener, WHAT, &record, RecordError::Altered(0), suite.word());
        }
        let (_, mut opener) = pair_of(form, secret);
        assert_eq!(open(&mut opener, &record), b"pay 100");
    }
}

#[test]
fn row_39_a_length_in_a_record_that_lies_is_refused() {
    let suite = Suite::Aes128Gcm;
    let classes = Form { suite, classes: true };
    // Bytes of what is sealed, and the length that it ends with.
    for (len, said) in
        [(64, 61), (64, 64), (64, u32::MAX), (128, 60), (128, 0), (128, 125), (100, 60), (32, 1)]
    {
        let (mut sealer, opener) = pair(plain(suite));
        let mut sealed = vec![0; len];
        sealed[len - LENGTH..].copy_from_slice(&said.to_le_bytes());
        let record = seal(&mut sealer, &sealed);
        let (_, mut opener) = pair_of(classes, &opener.direction.secret);
        let of = format!("{said} in {len} bytes");
        assert_refused(&mut opener, WHAT, &record, RecordError::Altered(0), &of);
        assert_refused(&mut opener, WHAT, &record, RecordError::Over, &of);
    }
    for len in 0..LENGTH {
        let (mut sealer, opener) = pair(plain(suite));
        let record = seal(&mut sealer, &[0; LENGTH][..len]);
        let (_, mut opener) = pair_of(classes, &opener.direction.secret);
        assert_refused(&mut opener, WHAT, &record, RecordError::Altered(0), "no length");
    }
}

#[test]
fn row_40_keys_are_renewed_by_both_ends_at_once() {
    for form in forms() {
        let (mut sealer, mut opener) = pair(form);
        let old = opener.direction.secret.clone();
        jump(&mut sealer.direction, EPOCH - 2);
        jump(&mut opener.direction, EPOCH - 2);
        let records: Vec<_> = (0..5).map(|_| seal(&mut sealer, b"hello")).collect();
        for (at, record) in records.iter().enumerate() {
            let epoch = u32::from(at >= 2);
            assert_eq!(opener.direction.epoch, epoch, "{at}");
            assert_eq!(*opener.direction.secret == *old, epoch == 0, "{at}");
            assert_eq!(open(&mut opener, record), b"hello", "{at}");
        }
        // Neither end has the old secret, and both have the same new one.
        assert_eq!(sealer.direction.epoch, 1);
        assert_ne!(*sealer.direction.secret, *old);
        assert_eq!(*sealer.direction.secret, *opener.direction.secret);
        assert_eq!(opener.direction.number, EPOCH + 3);
        let altered = RecordError::Altered(EPOCH + 3);
        assert_refused(&mut opener, WHAT, &records[0], altered, "of the old epoch");
        // The next epoch begins in the same way.
        let new = sealer.direction.secret.clone();
        jump(&mut sealer.direction, 2 * EPOCH - 1);
        seal(&mut sealer, b"last");
        assert_eq!(sealer.direction.epoch, 2);
        assert!(*sealer.direction.secret != *new && *sealer.direction.secret != *old);
    }
}

#[test]
fn row_40_ends_that_disagree_on_the_epoch_are_refused() {
    for form in forms() {
        // One end renews its key a record too early.
        for is_sealers in [true, false] {
            let (mut sealer, mut opener) = pair(form);
            jump(&mut sealer.direction, EPOCH - 1);
            jump(&mut opener.direction, EPOCH - 1);
            let early = if is_sealers { &mut sealer.direction } else { &mut opener.direction };
            early.renew();
            let record = seal(&mut sealer, b"hello");
            let altered = RecordError::Altered(EPOCH - 1);
            assert_refused(&mut opener, WHAT, &record, altered, "early");
            assert_refused(&mut opener, WHAT, &record, RecordError::Over, "after that");
        }
        // The same number, and the key of the epoch before.
        let (mut sealer, mut opener) = pair(form);
        jump(&mut sealer.direction, EPOCH - 1);
        seal(&mut sealer, b"hello");
        jump(&mut opener.direction, EPOCH);
        let record = seal(&mut sealer, b"hello");
        assert_refused(&mut opener, WHAT, &record, RecordError::Altered(EPOCH), "old key");
    }
}

#[test]
fn row_40_a_direction_ends_with_its_last_number() {
    for form in forms() {
        let (mut sealer, mut opener) = pair(form);
        jump(&mut sealer.direction, RECORDS - 2);
        jump(&mut opener.direction, RECORDS - 2);
        assert_eq!(sealer.direction.epoch, u32::MAX);
        for _ in 0..2 {
            assert_eq!(open(&mut opener, &seal(&mut sealer, b"hello")), b"hello");
        }
        let mut record = vec![0; form.sealed(5)];
        for _ in 0..3 {
            let sealed = sealer.seal(WHAT, [b"hello", &[]], &mut record);
            assert_eq!(sealed, Err(RecordError::Exhausted), "{form:?}");
            assert!(record.iter().all(|byte| *byte == 0), "{form:?}: something is sealed");
        }
        let (mut other, _) = pair(form);
        let record = seal(&mut other, b"hello");
        assert_refused(&mut opener, WHAT, &record, RecordError::Exhausted, "the last is over");
        assert_refused(&mut opener, WHAT, &record, RecordError::Over, "after that");
    }
}

#[test]
fn stolen_secrets_open_nothing_of_earlier_epochs() {
    for form in forms() {
        let (mut sealer, mut opener) = pair(form);
        jump(&mut sealer.direction, EPOCH - 1);
        jump(&mut opener.direction, EPOCH - 1);
        let (before, after) = (seal(&mut sealer, b"before"), seal(&mut sealer, b"after"));
        assert_eq!(open(&mut opener, &before), b"before");
        // All that is in the memory of either end.
        let stolen = [sealer.direction.secret.clone(), opener.direction.secret.clone()];
        for secret in stolen {
            let thief = |number| {
                let (_, mut opener) = pair_of(form, &secret);
                jump(&mut opener.direction, number);
                opener
            };
            // It opens what is of this epoch.
            assert_eq!(open(&mut thief(EPOCH), &after), b"after");
            let altered = RecordError::Altered(EPOCH - 1);
            assert_refused(&mut thief(EPOCH - 1), WHAT, &before, altered, "by the secret");
            // Nor does any of those that come of it.
            let mut later = thief(EPOCH);
            for _ in 0..100 {
                later.direction.renew();
                let (_, mut opener) = pair_of(form, &later.direction.secret);
                jump(&mut opener.direction, EPOCH - 1);
                assert_refused(&mut opener, WHAT, &before, altered, "by a later one");
            }
        }
    }
}

/// What the sealer keeps of a payload is one buffer, which is overwritten with it.
#[test]
fn the_buffer_for_classes_is_used_again() {
    let (mut sealer, mut opener) = pair(Form { suite: Suite::Aes128Gcm, classes: true });
    for len in [10, 100, 5000, 60] {
        let record = seal(&mut sealer, &vec![3; len]);
        assert_eq!(open(&mut opener, &record).len(), len);
        assert_eq!(sealer.padded.len(), record.len() - TAG);
    }
    // The longest was there before the shortest.
    assert!(sealer.padded.capacity() >= 8192);
}

/// Computed from the tables of this module by another program, with the ChaCha20-Poly1305 of RFC 8439.
#[test]
fn a_record_is_that_of_the_specification() {
    let secret = std::array::from_fn(|at| at as u8);
    let (mut sealer, _) = pair_of(plain(Suite::ChaCha20Poly1305), &secret);
    let mut hex = |number| {
        sealer.direction.number = number;
        crate::key::hex(&seal(&mut sealer, b"hello"))
    };
    assert_eq!(hex(1), "267c4f7b8daaf6b6610cd07469a0ad4472ef3788dc");
    hex(EPOCH - 1);
    assert_eq!(hex(EPOCH), "9518693d900d5adbb91362e365aa9e9aef2cc94cd9");
}
