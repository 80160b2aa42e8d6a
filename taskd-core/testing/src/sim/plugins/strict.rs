//! A detector of silence without probes: it blames exactly at its deadline.
//!
//! The built-in one probes before it blames, which would hide a heartbeat that arrives just after its deadline.

use super::BUSY;
use crate::detect::{Damage, Evidence, Fault, FaultClass, FaultDetector, Findings, Health, Suspect};
use crate::job::{Domain, Incarnation, JobTime, Name, Rank, Role};
use crate::launch::Phase;
use crate::state::View;
use crate::trace::{Observation, Signal};
use std::collections::BTreeSet;
use std::time::Duration;

/// Blames a rank that has sent nothing for the limit.
#[derive(Debug)]
pub(super) struct StrictSilence {
    limit: Duration,
    /// Time of each rank's last signal, by rank number; `None` if the rank does not run or is busy.
    reported: Vec<Option<JobTime>>,
    /// Processes that have reported that they are busy: they are not blamed for silence.
    busy: BTreeSet<(Rank, Option<Incarnation>)>,
    due: Option<JobTime>,
}

impl StrictSilence {
    pub(super) fn after(limit: Duration) -> StrictSilence {
        StrictSilence { limit, reported: Vec::new(), busy: BTreeSet::new(), due: None }
    }
}

impl FaultDetector for StrictSilence {
    fn name(&self) -> Name {
        Name::new("sim.strict-silence")
    }

    fn observe(&mut self, o: &Observation, view: &View, _out: &mut Findings) {
        match (&o.signal, &o.about) {
            (Signal::SupervisorSlept { .. }, _) => {
                self.reported.iter_mut().flatten().for_each(|at| *at = view.now);
                self.due = Some(view.now + self.limit);
            }
            (Signal::Heartbeat | Signal::Progress { .. } | Signal::Phase(_), Domain::Process(Role::Rank(rank))) => {
                let index = rank.0 as usize;
                if self.reported.len() <= index {
                    self.reported.resize(index + 1, None);
                }
                let is_busy = self.busy.contains(&(*rank, view.proc(&Role::Rank(*rank)).map(|proc| proc.incarnation)));
                let over = is_busy || matches!(&o.signal, Signal::Phase(phase) if *phase != Phase::Running);
                self.reported[index] = (!over).then_some(view.now);
                self.due = self.due.or(Some(view.now + self.limit));
            }
            (Signal::Metric { name, .. }, Domain::Process(Role::Rank(rank))) if *name == BUSY => {
                self.busy.insert((*rank, o.incarnation));
                self.reported.get_mut(rank.0 as usize).into_iter().for_each(|received| *received = None);
            }
            _ => {}
        }
    }

    fn deadline(&self) -> Option<JobTime> {
        self.due
    }

    fn expire(&mut self, view: &View, out: &mut Findings) {
        for (rank, received) in (0..).zip(&mut self.reported) {
            let Some(at) = received.filter(|at| *at + self.limit <= view.now) else { continue };
            *received = None;
            let role = Role::Rank(Rank(rank));
            let Some(proc) = view.proc(&role).filter(|p| p.wanted && p.phase == Phase::Running) else { continue };
            let damage = Damage { process: Health::Faulty, ..Damage::default() };
            let suspect = Suspect::certain(Domain::Process(role), FaultClass::Silence, damage);
            let clue = Evidence::text("heartbeat", format!("no heartbeat since {at}"));
            let by = Name::new("sim.strict-silence");
            out.blame(Fault::new(by, at, suspect).with_incarnation(Some(proc.incarnation)).with_evidence(clue));
        }
        self.due = self.reported.iter().flatten().min().map(|at| *at + self.limit);
    }
}
