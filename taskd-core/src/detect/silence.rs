//! Blames processes that had a heartbeat and then none, and that do not run: frozen, or asleep for good.
//!
//! It never blames one without a heartbeat of its own, never one for the silence of whoever tells us, and, for minutes, none that
//! runs or would run if its host let it.

mod found;

pub(super) use found::Found;

use super::{Clue, Damage, Fault, FaultClass, FaultDetector, Findings, Sound, Suspect, saved};
use crate::job::{Domain, Incarnation, JobTime, Name, NodeId, Rank, Role, Termination};
use crate::kernel::View;
use crate::launch::Phase;
use crate::trace::{Ask, Evidence, Exhibit, Malformed, Observation, PROCESS_STATE, Signal};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

const NAME: Name = Name::new("silence");
const SNAPSHOT_VERSION: u8 = 3;

/// How sure it is of one that has been busy and silent for minutes.
const BUSY_PERMILLE: u16 = 700;

/// So often a question is asked until the lack of an answer counts as one.
const QUESTIONS_MAX: u8 = 3;

/// How long an answer to [`PROCESS_STATE`] is waited for.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);

/// Blames ranks, and services, whose heartbeat stays away. What is said here of ranks is true of services.
///
/// A rank that has had a heartbeat in its incarnation, and then none for the limit, is asked about
/// ([`PROCESS_STATE`]).
///
/// - *Frozen*: it is stopped (`T`, `t`), or its control group is frozen. It is blamed for certain.
/// - *Busy*: it runs, has run within half the limit, waits for a processor, a disk or a driver, or nobody can see whether it runs
///   and its host has far more to run than processors. It is [noted](Findings::note), and blamed only when it has been silent for
///   the [bound of minutes](Self::busy_for): a program may hold its interpreter, or read a large file, for long.
/// - *Neither*, or no answer comes: it is blamed, but only when other ranks of its host were heard within half the limit: when all
///   of a host's ranks fall silent at once, the way on which we hear them is the likely cause, and only a frozen process is proof.
///
/// A question that is not answered in time is asked twice more: a host that is slow to answer is no proof of anything.
/// An answer with a heartbeat of its own within half the limit takes the suspicion back.
/// Heartbeats should arrive at least four times within the limit. Progress counts as a sign of life too. A sign of life
/// counts from when it was given ([`Observation::at`]), so a source may tell the same old one again and again.
///
/// A rank that freezes before its first heartbeat is noticed by nobody but a start that waits for steps
/// ([`Ready::Stepping`](crate::job::Ready::Stepping)), and by [`StallDetector`](super::StallDetector) once the job has stepped:
/// a rank without heartbeats may as well be one whose helper could not be put in place.
///
/// A heartbeat says that a process runs, not that its program gets on: that is for steps to say, and for
/// [`StallDetector`](super::StallDetector) and [`HangDetector`](super::HangDetector) to judge.
///
/// A heartbeat takes suspicion and blame back. While a rank stays silent it is asked about once every limit. When the
/// supervisor itself has slept, all ages start anew.
#[derive(Debug)]
pub struct SilenceDetector {
    limit: Duration,
    busy_limit: Duration,
    state: State,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct State {
    watches: Watches,
    /// When the first rank may have been silent for too long; may be early.
    due: Option<JobTime>,
    /// Number of the latest question.
    tag: u64,
}

/// All that is watched.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Watches {
    /// By rank: a job has many, and each tells of itself all the time.
    ranks: Vec<Watch>,
    services: BTreeMap<Name, Watch>,
}

/// What is known of one process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Watch {
    incarnation: Incarnation,
    /// The last sign of life; `None` before the first heartbeat, and once the process is over.
    heard: Option<JobTime>,
    /// This incarnation is over or is not wanted any more: what still comes from it is late.
    over: bool,
    asked: Option<Asked>,
    blamed: bool,
    /// It was said of this silence that it is busy.
    noted: bool,
    /// So many questions in a row were not answered in time.
    unanswered: u8,
}

/// The open question about a silent rank.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Asked {
    tag: u64,
    at: JobTime,
    peers: Peers,
}

/// The ranks of one host when a question was asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Peers {
    watched: u32,
    /// Since when the one that was heard last is silent.
    heard: JobTime,
}

impl Default for SilenceDetector {
    fn default() -> SilenceDetector {
        SilenceDetector::after(Duration::from_secs(10))
    }
}

impl SilenceDetector {
    /// For how long a process that is busy may be silent by default: five minutes.
    pub const BUSY_FOR: Duration = Duration::from_secs(300);

    /// A detector that suspects ranks without a heartbeat for `limit`. The default is 10 s.
    #[must_use]
    pub fn after(limit: Duration) -> SilenceDetector {
        SilenceDetector { limit, busy_limit: SilenceDetector::BUSY_FOR, state: State::default() }
    }

    /// For how long a process that is busy may be silent until it is blamed all the same, [`Self::BUSY_FOR`] unless told.
    #[must_use]
    pub fn busy_for(mut self, bound: Duration) -> SilenceDetector {
        self.busy_limit = bound;
        self
    }

    /// A sign of life. Only a heartbeat begins the watch: a job without heartbeats is not watched.
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
            watch.incarnation = proc.incarnation; // the source may not have said
        }
        let blamed = watch.lives(o.at);
        self.counts_from(o.at);
        if blamed {
            out.clear(o.about.clone(), FaultClass::Silence);
        }
    }

    /// Somebody was heard last at this time.
    fn counts_from(&mut self, heard: JobTime) {
        let due = heard + self.limit;
        self.state.due = Some(self.state.due.map_or(due, |d| d.min(due)));
    }

    /// A new incarnation begins unwatched, one that is over is not watched any more.
    fn changed(&mut self, role: &Role, incarnation: Option<Incarnation>, phase: &Phase, view: &View) {
        let Some(watch) = self.state.watches.of(role, incarnation, view) else { return };
        if is_known_over(phase) {
            watch.end();
        }
    }

    fn answered(&mut self, role: &Role, evidence: &Evidence, view: &View, out: &mut Findings) {
        let Some(watch) = self.state.watches.get_mut(role) else { return };
        let (Some(asked), Some(heard)) = (watch.asked, watch.heard) else { return };
        if asked.tag != evidence.tag || !watch.is_wanted(role, view) {
            return;
        }
        let found = Found::of(&evidence.exhibit);
        if let Some(beat) = found.beat_age.filter(|age| *age <= self.limit / 2).map(|age| view.now.before(age))
            && beat > heard
        {
            if watch.lives(beat) {
                out.clear(Domain::Process(role.clone()), FaultClass::Silence);
            }
            return self.counts_from(beat); // it was us who did not hear it
        }
        if evidence.exhibit == Exhibit::Silence && watch.unanswered + 1 < QUESTIONS_MAX {
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
        let damage = Damage { process: Sound::No, ..Damage::default() };
        let confidence_permille = match (frozen, &busy) {
            (true, _) => 1000,
            (false, None) => 850,
            (false, Some(_)) => BUSY_PERMILLE,
        };
        let suspect = Suspect { domain, class: FaultClass::Silence, damage, confidence_permille };
        let mut fault = Fault::new(NAME, heard, suspect).of(Some(watch.incarnation));
        fault = fault.because(self.age_clue(heard, view.now)).because(found.clue(&evidence.exhibit));
        if let Some(busy) = busy {
            let bound_s = self.busy_limit.as_secs_f64();
            let text = format!("{busy}, but a busy process may be silent for {bound_s:.0} s");
            fault = fault.because(Clue::figure("busy_bound_ms", bound_s * 1e3, None, text));
        }
        out.blame(fault.because(peers_clue(&asked)));
    }

    /// It is silent and runs: that is reported, once for each silence, and what was blamed before is taken back.
    fn is_busy(&mut self, role: &Role, heard: JobTime, busy: String, view: &View, out: &mut Findings) {
        let Some(watch) = self.state.watches.get_mut(role) else { return };
        let domain = Domain::Process(role.clone());
        if std::mem::take(&mut watch.blamed) {
            out.clear(domain.clone(), FaultClass::Silence);
        }
        if !std::mem::replace(&mut watch.noted, true) {
            let age = view.now.since(heard);
            let text = format!("busy: no heartbeat for {:.1} s, and {busy}", age.as_secs_f64());
            out.note(domain, Clue::figure("heartbeat_age_ms", age.as_secs_f64() * 1e3, None, text));
        }
    }

    fn age_clue(&self, heard: JobTime, now: JobTime) -> Clue {
        let age = now.since(heard);
        let text = format!("no heartbeat for {:.1} s", age.as_secs_f64());
        Clue::figure("heartbeat_age_ms", age.as_secs_f64() * 1e3, self.limit.as_secs_f64() * 1e3, text)
    }

    /// When one will have been silent, or not been asked about, for too long.
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
            Signal::Evidence(e) if e.by == NAME && e.what == PROCESS_STATE => self.answered(role, e, view, out),
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

    fn restore(&mut self, saved: &[u8]) -> Result<(), Malformed> {
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

    /// Asks about silent ones, and notes how their hosts' others were heard.
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
        out.ask(Ask { by: NAME, tag: self.tag, what: PROCESS_STATE, about, within: ANSWER_WITHIN });
    }
}

impl Watches {
    /// What is known of the incarnation that is told of, begun anew if it is a new one. `None`: an older one, or a process
    /// that the job does not have.
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
    /// It gave a sign of life at this time. True: it was blamed until now.
    fn lives(&mut self, heard: JobTime) -> bool {
        let incarnation = self.incarnation;
        let before = std::mem::replace(self, Watch { incarnation, heard: Some(heard), ..Watch::default() });
        before.blamed
    }

    /// What still comes from this incarnation is late.
    fn end(&mut self) {
        *self = Watch { incarnation: self.incarnation, over: true, ..Watch::default() };
    }

    /// Whether it is still the role's process, and meant to run.
    fn is_wanted(&self, role: &Role, view: &View) -> bool {
        let current = view.proc(role).filter(|p| p.wanted && p.incarnation == self.incarnation);
        current.is_some_and(|p| !is_known_over(&p.phase))
    }
}

/// Whether a process is over for certain. A death of which nothing is known is provisional until its exact exit, which
/// might never come: silence goes on counting.
fn is_known_over(phase: &Phase) -> bool {
    phase.is_over() && *phase != Phase::Dead(Termination::Unknown)
}

fn peers_clue(asked: &Asked) -> Clue {
    let Peers { watched, heard } = asked.peers;
    let age = asked.at.since(heard);
    let text = format!("of the {watched} processes of its host the latest was heard {:.1} s before", age.as_secs_f64());
    Clue::figure("peers_heartbeat_age_ms", age.as_secs_f64() * 1e3, None, text)
}

#[cfg(test)]
mod tests;
