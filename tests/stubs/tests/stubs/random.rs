//! Random calls.

use std::time::Duration;

use partywall_stubs_tests::Asked;
use partywall_testkit::Random;

/// A call of any kind, whose outcome does not depend on the time that it takes.
pub(crate) fn asked(random: &mut Random) -> Asked {
    let length = |random: &mut Random| match random.below(6) {
        0 => 0,
        1 => 32,
        2 => random.below(200),
        3 => 4000 + random.below(200),
        4 => random.below(1 << 16),
        _ => random.below(1 << 20),
    };
    let text = |random: &mut Random| "a word \u{e4} ".repeat(random.below(4));
    let name = match random.below(8) {
        0 => format!("{}:{}", random.below(19), text(random)),
        1 => "panics".into(),
        2 => "slow".into(),
        3 => ["soon", "yields"][random.below(2)].into(),
        _ => text(random),
    };
    let timeout = match random.below(4) {
        _ if name == "slow" => Some(Duration::from_millis(1 + random.below(20) as u64)),
        0 => Some(Duration::from_secs(40)),
        _ => None,
    };
    let len = if name.contains(':') { random.below(300) } else { length(random) };
    let blob = random.bytes(len + 1);
    let (mut ascii, mut binary) = (Vec::new(), Vec::new());
    for _ in 0..random.below(3) {
        ascii.push((["x-one", "x-two"][random.below(2)], format!("v{}", random.below(99))));
        let len = random.below(40);
        binary.push((["x-a-bin", "x-b-bin"][random.below(2)], random.bytes(len + 1)));
    }
    Asked { name, blob, ascii, binary, timeout }
}
