//! Becomes the program that its arguments name, on a kernel that does not know `SO_PASSRIGHTS`
//! (before Linux 6.16), as far as the program and its children can see.

use std::os::unix::process::CommandExt;
use std::process::Command;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

/// The system call, its argument, the option, and what it says (asm-generic/unistd.h, socket.h).
const SETSOCKOPT: i64 = 54;
const OPTION: u8 = 2;
const SO_PASSRIGHTS: u64 = 83;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let program = arguments.next().ok_or("a program is missing")?;
    let condition =
        SeccompCondition::new(OPTION, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, SO_PASSRIGHTS)?;
    let refused = SeccompAction::Errno(rustix::io::Errno::NOPROTOOPT.raw_os_error() as u32);
    let filter: BpfProgram = SeccompFilter::new(
        [(SETSOCKOPT, vec![SeccompRule::new(vec![condition])?])].into(),
        SeccompAction::Allow,
        refused,
        std::env::consts::ARCH.try_into()?,
    )?
    .try_into()?;
    seccompiler::apply_filter(&filter)?;
    Err(Command::new(program).args(arguments).exec().into())
}
