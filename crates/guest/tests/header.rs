//! The header for C says what `partywall_abi::domain` says.

use std::fmt::Write as _;
use std::io::Write as _;
use std::mem::offset_of;
use std::process::{Command, Stdio};

use partywall_abi::domain::{
    AUXILIARY, GateStatus, HALF, Info, MAGIC, NO_SYSTEM_CALLS, Outcome, VERSION,
};

/// What the C compiler says of a program that includes the header; nothing if it takes it.
fn compiled(program: &str) -> String {
    let include = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/include");
    let mut cc = Command::new("cc")
        .args(["-x", "c", "-std=c11", "-Wall", "-Werror", "-fsyntax-only", include, "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|why| panic!("cc: {why}; install a C compiler"));
    let text = format!("#include \"partywall_domain.h\"\n{program}");
    cc.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = cc.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.success(), said.is_empty(), "{said}");
    said
}

macro_rules! layout {
    ($program:ident, $of:ty, $in_c:literal, $($field:ident),*) => {{
        let size = size_of::<$of>();
        writeln!($program, "_Static_assert(sizeof({}) == {size}, \"size\");", $in_c).unwrap();
        $(
            let at = offset_of!($of, $field);
            let name = stringify!($field);
            let line = format!("offsetof({}, {name}) == {at}", $in_c);
            writeln!($program, "_Static_assert({line}, \"{name}\");").unwrap();
        )*
    }};
}

#[test]
fn layouts_and_numbers_are_those_of_rust() {
    let mut program = String::new();
    layout!(
        program,
        Info,
        "struct partywall_domain",
        magic,
        version,
        bytes,
        base,
        slot,
        call,
        arm,
        disarm,
        park,
        offer,
        take,
        release,
        bind,
        declare,
        arena,
        open,
        keys,
        forwards,
        accept
    );
    layout!(program, Outcome, "struct partywall_outcome", status, word);
    let numbers = [
        ("PARTYWALL_DOMAIN_AUXILIARY", AUXILIARY),
        ("PARTYWALL_DOMAIN_MAGIC", MAGIC),
        ("PARTYWALL_DOMAIN_VERSION", VERSION.into()),
        ("PARTYWALL_HALF", HALF),
        ("PARTYWALL_NO_SYSTEM_CALLS", NO_SYSTEM_CALLS),
        ("PARTYWALL_DONE", GateStatus::Done as u64),
        ("PARTYWALL_BUSY", GateStatus::Busy as u64),
        ("PARTYWALL_CLOSED", GateStatus::Closed as u64),
        ("PARTYWALL_DENIED", GateStatus::Denied as u64),
        ("PARTYWALL_DEPTH_EXCEEDED", GateStatus::DepthExceeded as u64),
        ("PARTYWALL_FAULT", GateStatus::Fault as u64),
        ("PARTYWALL_DEADLINE", GateStatus::Deadline as u64),
        ("PARTYWALL_DIED", GateStatus::Died as u64),
        ("PARTYWALL_SYSTEM_CALL", GateStatus::SystemCall as u64),
        ("PARTYWALL_UNBOUND", GateStatus::Unbound as u64),
    ];
    for (name, value) in numbers {
        writeln!(program, "_Static_assert({name} == {value}ull, \"{name}\");").unwrap();
    }
    assert_eq!(compiled(&program), "");
    let wrong = "_Static_assert(sizeof(struct partywall_domain) == 1, \"wrong size\");";
    assert!(compiled(wrong).contains("wrong size"));
}
