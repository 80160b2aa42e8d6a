//! Blames processes whose heartbeat stopped and that do not run: frozen, or asleep permanently.
//!
//! The detector does not watch a process that had no heartbeat. It blames a process that runs, or would run if its host
//! allowed that, only after minutes. If all heartbeats of a host stop at once, it blames only frozen processes.

mod found;

pub(crate) use found::Found;

use super::{Damage, Evidence, Fault, FaultClass, FaultDetector, Findings, Health, Suspect, saved};
use crate::job::{Domain, Incarnation, JobTime, Name, NodeId, Rank, Role, Termination};
use crate::state::{Phase, View};
use crate::trace::{DecodeError, Observation, PROCESS_STATE, Probe, ProbeReply, ProbeResult, Signal};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

const NAME: Name = Name::new("silence");
const SNAPSHOT_VERSION: u8 = 3;

/// Confidence for a process that has been busy and silent for minutes.
const BUSY_PERMILLE: u16 = 700;

/// Number of unanswered probes in a row that count as evidence.
const QUESTIONS_MAX: u8 = 3;

/// Timeout of a [`PROCESS_STATE`] probe.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);

/// Blames ranks and services whose heartbeat has stopped. Everything said below about ranks applies to services too.
///
/// If a rank has had a heartbeat since its last start, and then none for the limit (10 s by default), the detector
/// probes its process ([`PROCESS_STATE`]).
///
/// - *Frozen*: the process is stopped (`T`, `t`), or its control group is frozen. The rank is blamed with full
///   confidence.
/// - *Busy*: the process runs, has run within half the limit, or waits for a processor, a disk or a driver; or its
///   execution cannot be observed and its host is heavily overloaded. The rank is [noted](Findings::note), and
///   blamed only after silence for the longer [busy limit](Self::busy_for), five minutes by default: a program may
///   hold its interpreter's lock, or read a large file, for a long time.
/// - *Neither*, or no reply arrives: the rank is blamed, but only if heartbeats of other ranks on its host arrived
///   within half the limit. If all ranks of a host fall silent at once, the path of their heartbeats is the likely
///   cause, and only a frozen process is proof.
///
/// A probe without a reply in time is repeated twice, because a slow host proves nothing. A reply with a heartbeat
/// within half the limit withdraws the suspicion. Heartbeats should arrive at least four times within the limit. A
/// completed step counts as a sign of life too. A sign of life counts from its own time ([`Observation::at`]), so a
/// source may repeat an old one any number of times.
///
/// A rank that freezes before its first heartbeat is found only by a start that waits for steps
/// ([`Ready::Stepping`](crate::job::Ready::Stepping)), and by [`StallDetector`](super::StallDetector) once the job
/// has completed a step: a rank without heartbeats may also be one whose process could not install the heartbeat
/// helper.
///
/// A heartbeat shows that a process runs, not that its program makes progress: steps show that, and
/// [`StallDetector`](super::StallDetector) and [`HangDetector`](super::HangDetector) judge it.
///
/// A heartbeat withdraws suspicion and blame. While a rank stays silent it is probed once per limit. After a
/// suspension of the supervisor the silence of every rank is counted from zero.
#[derive(Debug)]
pub struct SilenceDetector {
    limit: Duration,
    busy_limit: Duration,
    state: State,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct State {
    watches: Watches,
    /// Earliest time at which a rank or service may have been silent for too long; may be earlier than the true time.
    due: Option<JobTime>,
    /// Identifier of the latest probe, by which replies to older probes are recognised.
    tag: u64,
}

/// All watched processes.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Watches {
    /// Watches indexed by rank number; a vector, because a job has many ranks and each reports continuously.
    ranks: Vec<Watch>,
    services: BTreeMap<Name, Watch>,
}

/// State of one watched process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Watch {
    incarnation: Incarnation,
    /// Time of the last sign of life; `None` before the first heartbeat, and after the end of the process.
    heard: Option<JobTime>,
    /// True if this start of the process has ended or is no longer wanted: further signals from it are late.
    over: bool,
    asked: Option<Asked>,
    blamed: bool,
    /// True if the process was reported as busy during this silence.
    noted: bool,
    /// Number of probes in a row without a reply in time.
    unanswered: u8,
}

/// The open probe of a silent rank.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Asked {
    tag: u64,
    at: JobTime,
    peers: Peers,
}

/// The ranks of one host at the time of a probe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Peers {
    watched: u32,
    /// Time of the latest sign of life of any watched process of the host.
    heard: JobTime,
}

impl Default for SilenceDetector {
    fn default() -> SilenceDetector {
        SilenceDetector::after(Duration::from_secs(10))
    }
}

impl SilenceDetector {
    /// Default time without a heartbeat after which a busy process (one that runs) is blamed: five minutes.
    pub const BUSY_FOR: Duration = Duration::from_secs(300);

    /// Creates a detector that suspects a rank or service that has sent no heartbeat for `limit`, and probes its
    /// process. The default is 10 s.
    #[must_use]
    pub fn after(limit: Duration) -> SilenceDetector {
        SilenceDetector { limit, busy_limit: SilenceDetector::BUSY_FOR, state: State::default() }
    }

    /// Sets the time without a heartbeat after which a busy process (one that runs) is blamed. The default is
    /// [`Self::BUSY_FOR`].
    #[must_use]
    pub fn busy_for(mut self, bound: Duration) -> SilenceDetector {
        self.busy_limit = bound;
        self
    }

    /// Handles a sign of life. Only a heartbeat starts the watch: a job without heartbeats is not watched.
    fn heard(&mut self, role: &Role, o: &Observation, is_heartbeat: bool, view: &View, out: &mut Findings) {
        let Some(watch) = self.state.watches.of(role, o.incarnation, view) else { return };
        if watch.over || watch.heard.is_some_and(|heard| o.at <= heard) {
            return;
        }
        if watch.heard.is_none() {
            if !is_heartbeat {
                return;
            }
            let Some(proc) = view.proc(role) else { return };
            watch.incarnation = proc.incarnation; // the source may not have reported the incarnation
        }
        let blamed = watch.lives(o.at);
        self.counts_from(o.at);
        if blamed {
            out.clear(o.about.clone(), FaultClass::Silence);
        }
    }

    /// Updates the deadline after a sign of life at `heard`.
    fn counts_from(&mut self, heard: JobTime) {
        let due = heard + self.limit;
        self.state.due = Some(self.state.due.map_or(due, |d| d.min(due)));
    }

    /// Handles a phase change: a new incarnation starts unwatched, one that has ended is no longer watched.
    fn changed(&mut self, role: &Role, incarnation: Option<Incarnation>, phase: &Phase, view: &View) {
        let Some(watch) = self.state.watches.of(role, incarnation, view) else { return };
        if is_known_over(phase) {
            watch.end();
        }
    }

    fn answered(&mut self, role: &Role, evidence: &ProbeReply, view: &View, out: &mut Findings) {
        let Some(watch) = self.state.watches.get_mut(role) else { return };
        let (Some(asked), Some(heard)) = (watch.asked, watch.heard) else { return };
        if asked.tag != evidence.tag || !watch.is_wanted(role, view) {
            return;
        }
        let found = Found::of(&evidence.result);
        if let Some(beat) = found.beat_age.filter(|age| *age <= self.limit / 2).map(|age| view.now.before(age))
            && beat > heard
        {
            if watch.lives(beat) {
                out.clear(Domain::Process(role.clone()), FaultClass::Silence);
            }
            return self.counts_from(beat); // the process was alive; only its heartbeat did not arrive
        }
        if evidence.result == ProbeResult::Silence && watch.unanswered + 1 < QUESTIONS_MAX {
            watch.unanswered += 1;
            return self.state.ask(vec![role.clone()], view, out);
        }
        watch.unanswered = 0;
        let silent_for = view.now.since(heard);
        let busy = found.busy(self.limit / 2);
        if let Some(busy) = busy.clone().filter(|_| silent_for < self.busy_limit) {
            return self.is_busy(role, heard, busy, view, out);
        }
        let others_are_heard = asked.at.since(asked.peers.heard) <= self.limit / 2;
        let frozen = found.is_frozen();
        if !frozen && !others_are_heard {
            return;
        }
        watch.blamed = true;
        let domain = Domain::Process(role.clone());
        let damage = Damage { process: Health::Faulty, ..Damage::default() };
        let confidence_permille = match (frozen, &busy) {
            (true, _) => 1000,
            (false, None) => 850,
            (false, Some(_)) => BUSY_PERMILLE,
        };
        let suspect = Suspect { domain, class: FaultClass::Silence, damage, confidence_permille };
        let mut fault = Fault::new(NAME, heard, suspect).with_incarnation(Some(watch.incarnation));
        fault = fault.with_evidence(self.age_clue(heard, view.now)).with_evidence(found.clue(&evidence.result));
        if let Some(busy) = busy {
            let bound_s = self.busy_limit.as_secs_f64();
            let text = format!("{busy}, but the limit for a busy process is {bound_s:.0} s");
            fault = fault.with_evidence(Evidence::figure("busy_bound_ms", bound_s * 1e3, None, text));
        }
        out.blame(fault.with_evidence(peers_clue(&asked)));
    }

    /// Handles a silent process that runs: reports it to people once per silence, and withdraws an earlier blame.
    fn is_busy(&mut self, role: &Role, heard: JobTime, busy: String, view: &View, out: &mut Findings) {
        let Some(watch) = self.state.watches.get_mut(role) else { return };
        let domain = Domain::Process(role.clone());
        if std::mem::take(&mut watch.blamed) {
            out.clear(domain.clone(), FaultClass::Silence);
        }
        if !std::mem::replace(&mut watch.noted, true) {
            let age = view.now.since(heard);
            let text = format!("busy: no heartbeat for {:.1} s, and {busy}", age.as_secs_f64());
            out.note(domain, Evidence::figure("heartbeat_age_ms", age.as_secs_f64() * 1e3, None, text));
        }
    }

    fn age_clue(&self, heard: JobTime, now: JobTime) -> Evidence {
        let age = now.since(heard);
        let text = format!("no heartbeat for {:.1} s", age.as_secs_f64());
        Evidence::figure("heartbeat_age_ms", age.as_secs_f64() * 1e3, self.limit.as_secs_f64() * 1e3, text)
    }

    /// Returns when the process will have been silent, or not been probed, for too long.
    fn due_of(&self, watch: &Watch) -> Option<JobTime> {
        let heard = watch.heard?;
        Some(watch.asked.map_or(heard, |a| a.at) + self.limit)
    }
}

impl FaultDetector for SilenceDetector {
    fn name(&self) -> Name {
        NAME
    }

    fn config(&self) -> String {
        format!("limit_ms={} busy_limit_ms={}", self.limit.as_millis(), self.busy_limit.as_millis())
    }

    fn observe(&mut self, o: &Observation, view: &View, out: &mut Findings) {
        if let Signal::SupervisorSlept { .. } = o.signal {
            return self.state.start_anew(view.now, self.limit);
        }
        let Domain::Process(role) = &o.about else { return };
        match &o.signal {
            Signal::Heartbeat => self.heard(role, o, true, view, out),
            Signal::Progress { .. } => self.heard(role, o, false, view, out),
            Signal::Phase(phase) => self.changed(role, o.incarnation, phase, view),
            Signal::ProbeReply(e) if e.by == NAME && e.what == PROCESS_STATE => self.answered(role, e, view, out),
            _ => {}
        }
    }

    fn deadline(&self) -> Option<JobTime> {
        self.state.due
    }

    fn expire(&mut self, view: &View, out: &mut Findings) {
        let mut silent = Vec::new();
        let mut due = None;
        let mut over = Vec::new();
        for (role, watch) in self.state.watches.all() {
            let Some(at) = self.due_of(watch) else { continue };
            if at > view.now {
                due = Some(due.map_or(at, |d: JobTime| d.min(at)));
            } else if watch.is_wanted(&role, view) {
                silent.push(role);
            } else {
                over.push(role);
            }
        }
        for role in over {
            self.state.watches.get_mut(&role).into_iter().for_each(Watch::end);
        }
        if !silent.is_empty() {
            let again = view.now + self.limit;
            due = Some(due.map_or(again, |d| d.min(again)));
            self.state.ask(silent, view, out);
        }
        self.state.due = due;
    }

    fn snapshot(&self) -> Option<Bytes> {
        saved::save(SNAPSHOT_VERSION, &self.state)
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), DecodeError> {
        self.state = saved::load(SNAPSHOT_VERSION, saved)?;
        Ok(())
    }
}

impl State {
    fn start_anew(&mut self, now: JobTime, limit: Duration) {
        for watch in self.watches.all_mut().filter(|w| w.heard.is_some()) {
            (watch.heard, watch.asked) = (Some(now), None);
            self.due = Some(now + limit);
        }
    }

    /// Probes silent processes, and records the latest sign of life of each host.
    fn ask(&mut self, silent: Vec<Role>, view: &View, out: &mut Findings) {
        let host = |role: &Role| view.proc(role).and_then(|p| p.node.as_ref());
        let mut hosts: BTreeMap<Option<&NodeId>, Peers> = BTreeMap::new();
        for (role, watch) in self.watches.all() {
            let Some(heard) = watch.heard else { continue };
            let peers = hosts.entry(host(&role)).or_default();
            peers.watched += 1;
            peers.heard = peers.heard.max(heard);
        }
        self.tag = self.tag.wrapping_add(1);
        for role in &silent {
            let peers = hosts.get(&host(role)).copied().unwrap_or_default();
            if let Some(watch) = self.watches.get_mut(role) {
                watch.asked = Some(Asked { tag: self.tag, at: view.now, peers });
            }
        }
        let about = silent.into_iter().map(Domain::Process).collect();
        out.probe(Probe { by: NAME, tag: self.tag, what: PROCESS_STATE, about, timeout: ANSWER_WITHIN });
    }
}

impl Watches {
    /// Returns the watch of the reported incarnation; resets it for a newer one. `None` for an older incarnation, or a
    /// process that the job does not have.
    fn of(&mut self, role: &Role, incarnation: Option<Incarnation>, view: &View) -> Option<&mut Watch> {
        if self.get_mut(role).is_none() {
            view.proc(role)?;
            match role {
                Role::Rank(rank) => self.ranks.resize(rank.0 as usize + 1, Watch::default()),
                Role::Service(name) => drop(self.services.insert(name.clone(), Watch::default())),
            }
        }
        let watch = self.get_mut(role)?;
        let Some(incarnation) = incarnation else { return Some(watch) };
        if incarnation > watch.incarnation {
            *watch = Watch { incarnation, ..Watch::default() };
        }
        (incarnation == watch.incarnation).then_some(watch)
    }

    fn get_mut(&mut self, role: &Role) -> Option<&mut Watch> {
        match role {
            Role::Rank(rank) => self.ranks.get_mut(rank.0 as usize),
            Role::Service(name) => self.services.get_mut(name),
        }
    }

    fn all(&self) -> impl Iterator<Item = (Role, &Watch)> {
        let ranks = (0..).map(|rank| Role::Rank(Rank(rank))).zip(&self.ranks);
        ranks.chain(self.services.iter().map(|(name, watch)| (Role::Service(name.clone()), watch)))
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut Watch> {
        self.ranks.iter_mut().chain(self.services.values_mut())
    }
}

impl Watch {
    /// Records a sign of life at `heard`. Returns true if the process was blamed until now.
    fn lives(&mut self, heard: JobTime) -> bool {
        let incarnation = self.incarnation;
        let before = std::mem::replace(self, Watch { incarnation, heard: Some(heard), ..Watch::default() });
        before.blamed
    }

    /// Ends the watch: further signals of this incarnation are late.
    fn end(&mut self) {
        *self = Watch { incarnation: self.incarnation, over: true, ..Watch::default() };
    }

    /// Returns true if this is still the role's process, and it should run.
    fn is_wanted(&self, role: &Role, view: &View) -> bool {
        let current = view.proc(role).filter(|p| p.wanted && p.incarnation == self.incarnation);
        current.is_some_and(|p| !is_known_over(&p.phase))
    }
}

/// Returns true if a process has certainly ended. A death with unknown termination is provisional until its exact exit,
/// which might never arrive, so the silence continues to count.
fn is_known_over(phase: &Phase) -> bool {
    phase.is_over() && *phase != Phase::Dead(Termination::Unknown)
}

fn peers_clue(asked: &Asked) -> Evidence {
    let Peers { watched, heard } = asked.peers;
    let age = asked.at.since(heard);
    let text =
        format!("the latest heartbeat of the {watched} processes of its host was {:.1} s old", age.as_secs_f64());
    Evidence::figure("peers_heartbeat_age_ms", age.as_secs_f64() * 1e3, None, text)
}

#[cfg(test)]
mod tests;
