#![allow(unsafe_code, reason = "takes the inherited descriptors of the sample")]
//! One process of a sample. It reports a line of JSON on its standard output.

use std::os::fd::{OwnedFd, RawFd};
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::case::{Bench, Clock};
use crate::contender::Contender;
use crate::control::Control;
use crate::error::Result;
use crate::probe;
use crate::registry;
use crate::row::Figures;
use crate::seat::{Sample, Seat};
use crate::sys::{cpu, fd, parent};

/// Which process of the pair this is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Role {
    /// Measures.
    Client,
    /// Answers.
    Server,
    /// Is there for both.
    Attendant,
}

/// What the driver tells a child, as its one argument.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    /// The sample.
    pub sample: Sample,
    /// The part to play.
    pub role: Role,
    /// Process id of the driver, or of the launcher.
    pub driver: u32,
    /// The CPU to stay on.
    pub cpu: Option<usize>,
    /// The control page.
    pub control: RawFd,
    /// This side's end of the lifeline.
    pub lifeline: Option<RawFd>,
    /// The contender's descriptors for this side, by index.
    pub ends: Vec<Option<RawFd>>,
    /// Inherited descriptors of the other side.
    pub close: Vec<RawFd>,
}

impl Order {
    /// The descriptors that the process gets: the control page, the lifeline, the contender's.
    pub fn numbers(&self) -> impl Iterator<Item = RawFd> {
        let ends = self.ends.iter().copied().flatten();
        std::iter::once(self.control).chain(self.lifeline).chain(ends)
    }

    /// The order for a process that has those descriptors under these numbers, and `driver` as its parent.
    ///
    /// # Errors
    /// If these are not as many.
    pub fn renumbered(&self, driver: u32, numbers: &[RawFd]) -> Result<Self> {
        let wanted = self.numbers().count();
        if numbers.len() != wanted {
            return Err(format!("{} descriptors for an order of {wanted}", numbers.len()).into());
        }
        let mut next = numbers.iter().copied();
        let mut place = |number: RawFd| next.next().unwrap_or(number);
        let control = place(self.control);
        let lifeline = self.lifeline.map(&mut place);
        let ends = self.ends.iter().map(|end| end.map(&mut place)).collect();
        Ok(Self { driver, control, lifeline, ends, close: Vec::new(), ..self.clone() })
    }
}

/// What a child reports.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Why it failed.
    pub error: Option<String>,
    /// What a client measured.
    pub figures: Option<Figures>,
    /// Round trips of the line before and after, in nanoseconds.
    pub probes: Option<(f64, f64)>,
    /// Nanoseconds from starting the client to its end, where the driver did not start it itself.
    pub wall_ns: Option<u64>,
}

impl Report {
    /// What a process that ended with `status` has written.
    pub fn read(text: &str, status: Option<ExitStatus>) -> Self {
        let status = status.map(|status| status.to_string()).unwrap_or_default();
        serde_json::from_str(text).unwrap_or_else(|_| Self {
            error: Some(format!("ended without a report: {status}")),
            ..Self::default()
        })
    }
}

/// How long a client waits for its server.
pub const START: Duration = Duration::from_secs(10);

const BEFORE: u32 = 1;
const AFTER: u32 = 2;

/// Runs the order in `json`.
pub fn run(json: &str) -> ExitCode {
    tell(follow(json))
}

/// Writes the report, and says by the exit status whether it is one of a failure.
pub fn tell(report: Result<Report>) -> ExitCode {
    let report = report
        .unwrap_or_else(|error| Report { error: Some(error.to_string()), ..Report::default() });
    let failed = report.error.is_some();
    println!("{}", serde_json::to_string(&report).unwrap_or_default());
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn follow(json: &str) -> Result<Report> {
    let order: Order = serde_json::from_str(json)?;
    parent::end_with(order.driver)?;
    if let Some(cpu) = order.cpu {
        cpu::pin(cpu)?;
    }
    let (role, case) = (order.role, order.sample.case);
    let contender = registry::named(case.bench, &order.sample.contender)
        .ok_or_else(|| format!("no contender is called {}", order.sample.contender))?;
    let mut seat = sit(order)?;
    match role {
        Role::Server => serve(contender, &mut seat).inspect_err(|_| seat.control().fail()),
        Role::Client => call(contender, &mut seat),
        Role::Attendant => attend(contender, &mut seat).inspect_err(|_| seat.control().fail()),
    }
}

fn sit(order: Order) -> Result<Seat> {
    for number in order.close {
        drop(own(number)?);
    }
    let control = own(order.control)?;
    let lifeline = order.lifeline.map(own).transpose()?;
    let ends = order.ends.into_iter().map(|end| end.map(own).transpose());
    let ends = ends.collect::<Result<Vec<_>>>()?;
    Ok(Seat::new(order.sample, Control::map(control)?, ends, lifeline))
}

/// Takes an inherited descriptor; the orders of a process list each of them once.
pub fn own(number: RawFd) -> Result<OwnedFd> {
    // SAFETY: the driver lists each inherited descriptor once, and nothing here has opened any.
    Ok(unsafe { fd::take(number) }?)
}

fn serve(contender: &Contender, seat: &mut Seat) -> Result<Report> {
    let probed = seat.case().probed();
    if probed {
        probe::answer(seat.control(), BEFORE)?;
    }
    contender.serve.ok_or("this contender has no server")?(seat)?;
    seat.leave();
    if probed {
        probe::answer(seat.control(), AFTER)?;
    }
    Ok(Report::default())
}

fn attend(contender: &Contender, seat: &mut Seat) -> Result<Report> {
    contender.attend.ok_or("this contender has no attendant")?(seat)?;
    Err("the attendant has left".into())
}

fn call(contender: &Contender, seat: &mut Seat) -> Result<Report> {
    let case = seat.case();
    let probe = |seat: &Seat, meeting| probe::ask(seat.control(), meeting, seat.ticker());
    let before = case.probed().then(|| probe(seat, BEFORE)).transpose()?;
    if contender.serve.is_some() {
        seat.control().await_ready(START)?;
    }
    let mut figures = contender.call.ok_or("this contender has no client")?(seat)?;
    figures.admission_ns = seat.admission().map(|span| span.as_nanos() as f64);
    seat.leave();
    let after = case.probed().then(|| probe(seat, AFTER)).transpose()?;
    if (case.bench, case.clock) == (Bench::Words, Some(Clock::A)) {
        // The process itself is what clock A times, so all of its CPU time counts.
        let mine = cpu::process_cpu_ns(std::process::id())?;
        figures.cpu_ns = Some(mine as f64 + figures.cpu_ns.unwrap_or(0.0));
    }
    Ok(Report { figures: Some(figures), probes: before.zip(after), ..Report::default() })
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::case::{Case, Mode, Placement};
    use crate::stopwatch::Spans;
    use crate::sys::clock::Ticker;

    /// An order of a server, of which no descriptor is open.
    pub fn order() -> Order {
        let spans = Spans { warm: Duration::ZERO, sample: Duration::ZERO, least: 1 };
        let sample = Sample {
            contender: "gate".into(),
            case: Case::domain(Mode::Latency, Some(32), Placement::SameCore, None),
            spans,
            ticker: Ticker::calibrate(),
            dir: "/".into(),
            sockets: "/".into(),
            address: std::net::Ipv4Addr::LOCALHOST,
            label: "x".into(),
            text: None,
        };
        let ends = vec![None, Some(12), Some(7)];
        let (control, lifeline, close) = (9, Some(30), vec![44]);
        Order { sample, role: Role::Server, driver: 1, cpu: None, control, lifeline, ends, close }
    }

    #[test]
    fn a_process_finds_its_descriptors_where_its_order_says() {
        let order = order();
        assert_eq!(order.numbers().collect::<Vec<_>>(), [9, 30, 12, 7]);
        let given = order.renumbered(8, &[3, 4, 5, 6]).expect("as many");
        assert_eq!((given.control, given.lifeline), (3, Some(4)));
        assert_eq!(given.ends, [None, Some(5), Some(6)]);
        assert_eq!((given.driver, given.close.len()), (8, 0));
        assert!(order.renumbered(8, &[3, 4, 5]).is_err() && order.renumbered(8, &[3; 5]).is_err());
        let without = Order { lifeline: None, ..order };
        let given = without.renumbered(8, &[3, 4, 5]).expect("as many");
        assert_eq!((given.control, given.ends), (3, vec![None, Some(4), Some(5)]));
    }
}
