//! `process-udp`: a process for each function, blocked in recv(2) on a UDP socket of its own address.
//!
//! The dispatcher's socket does not block. It sends a function's number in 8 bytes to that function's address
//! 127.0.x.y, and gets 16 bytes: the number, and the stamp. All sockets have the same port.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use super::load::{Answer, Serves};
use super::task::Task;
use crate::error::Result;
use crate::sys::cpu;

/// What a process needs of memory, at most, in bytes.
const EACH: u64 = 2 << 20;
/// How long all processes may take to begin.
const BEGIN: Duration = Duration::from_secs(240);
/// Processes that begin at once, so that no datagram finds the dispatcher's buffer full.
const AT_ONCE: u32 = 50;

/// Processes behind sockets.
#[derive(Debug)]
pub struct Udp {
    socket: UdpSocket,
    port: u16,
    children: Vec<Child>,
    /// Calls under way, by function.
    tags: Vec<VecDeque<u32>>,
}

impl Udp {
    /// One for each function, blocked.
    pub fn start(task: &Task) -> Result<Self> {
        super::held::admit(task.count, EACH)?;
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.set_nonblocking(true)?;
        let port = socket.local_addr()?.port();
        let tags = vec![VecDeque::new(); task.count as usize];
        let mut udp = Self { socket, port, children: Vec::new(), tags };
        let begun = Instant::now();
        let mut there = 0;
        for first in task.places().step_by(AT_ONCE as usize) {
            // What is started here begins where it is to run.
            cpu::pin(task.cpus[1])?;
            let end = task.count.min(first + AT_ONCE);
            let started: Result<Vec<Child>> =
                (first..end).map(|which| udp.spawn(which, task)).collect();
            cpu::pin(task.cpus[0])?;
            udp.children.extend(started?);
            while there < end {
                there += u32::from(udp.hear()?.is_some());
                if begun.elapsed() > BEGIN {
                    return Err("not all processes have begun".into());
                }
            }
        }
        Ok(udp)
    }

    fn spawn(&self, which: u32, task: &Task) -> Result<Child> {
        let parent = std::process::id();
        let super::task::Task { stamps, .. } = task;
        let numbers = [
            which.into(),
            parent.into(),
            task.cpus[1] as u64,
            stamps.boot,
            stamps.ticks,
            stamps.rate,
            self.port.into(),
        ];
        let mut command = Command::new(task.files.join("published"));
        command.arg("udp").args(numbers.map(|number| number.to_string()));
        Ok(command.spawn().map_err(|error| {
            format!("process {which} of {}: {error} (the limit of processes: pids.max)", task.count)
        })?)
    }

    /// The number and the stamp that a process says.
    #[inline]
    fn hear(&self) -> Result<Option<(u64, u64)>> {
        let mut said = [0; 16];
        match self.socket.recv_from(&mut said) {
            Ok((16, _)) => {
                let (words, _) = said.as_chunks();
                Ok(Some((u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1]))))
            }
            Ok(_) => Err("a datagram of another length".into()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// The address of a function's process.
fn address(which: u32, port: u16) -> SocketAddrV4 {
    // 127.0.0.1 and .2 are no function's.
    let place = which + 2;
    SocketAddrV4::new(Ipv4Addr::new(127, 0, (place / 250) as u8, (place % 250) as u8 + 1), port)
}

impl Serves for Udp {
    #[inline]
    fn send(&mut self, which: u32, tag: u32, _: u64) -> Result<()> {
        self.socket.send_to(&u64::from(which).to_le_bytes(), address(which, self.port))?;
        self.tags[which as usize].push_back(tag);
        Ok(())
    }

    #[inline]
    fn receive(&mut self) -> Result<Option<Answer>> {
        let Some((which, stamp)) = self.hear()? else { return Ok(None) };
        let tags = self.tags.get_mut(which as usize).ok_or("a number that no function has")?;
        let tag = tags.pop_front().ok_or("an answer that nobody waits for")?;
        Ok(Some(Answer { tag, which, stamp }))
    }
}

impl Drop for Udp {
    fn drop(&mut self) {
        for child in &mut self.children {
            // One that has ended has done so by itself.
            let _gone = child.kill();
        }
        for child in &mut self.children {
            let _gone = child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_function_has_an_address_of_its_own() {
        let all: std::collections::HashSet<_> = (0..5000).map(|which| address(which, 7)).collect();
        assert_eq!(all.len(), 5000);
        assert!(!all.contains(&SocketAddrV4::new(Ipv4Addr::LOCALHOST, 7)));
    }
}
