//! Blames processes that had a heartbeat and then none: frozen, or running without giving a sign of life.
//!
//! It never blames one without a heartbeat of its own, and never one for the silence of whoever tells us.

use super::exit::one_line;
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
const SNAPSHOT_VERSION: u8 = 2;

/// How long an answer to [`PROCESS_STATE`] is waited for.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);

/// Blames ranks, and services, whose heartbeat stays away. What is said here of ranks is true of services.
///
/// A rank that has had a heartbeat in its incarnation, and then none for the limit, is asked about
/// ([`PROCESS_STATE`]). If it is stopped (`T`, `t`), it is blamed for certain: frozen. If not, or if no answer comes,
/// it is blamed as well, but only when other ranks of its host were heard within half the limit: when all of a host's
/// ranks fall silent at once, the way on which we hear them is the likely cause, and only a stopped process is proof.
/// An answer with a heartbeat of its own within that time takes the suspicion back.
/// Heartbeats should arrive at least four times within the limit. Progress counts as a sign of life too. A sign of life
/// counts from when it was given ([`Observation::at`]), so a source may tell the same old one again and again.
///
/// A rank that freezes before its first heartbeat is noticed by nobody but a start that waits for steps
/// ([`Ready::Stepping`](crate::job::Ready::Stepping)), and by [`StallDetector`](super::StallDetector) once the job has stepped:
/// a rank without heartbeats may as well be one whose helper could not be put in place.
///
/// A heartbeat takes suspicion and blame back. While a rank stays silent it is asked about once every limit. When the
/// supervisor itself has slept, all ages start anew.
#[derive(Debug)]
pub struct SilenceDetector {
    limit: Duration,
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
    /// A detector that suspects ranks without a heartbeat for `limit`. The default is 10 s.
    #[must_use]
    pub fn after(limit: Duration) -> SilenceDetector {
        SilenceDetector { limit, state: State::default() }
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
        let frozen = matches!(found.state, Some('T' | 't'));
        let others_are_heard = asked.at.since(asked.peers.heard) <= self.limit / 2;
        if !frozen && !others_are_heard {
            return;
        }
        watch.blamed = true;
        let domain = Domain::Process(role.clone());
        let damage = Damage { process: Sound::No, ..Damage::default() };
        let confidence_permille = if frozen { 1000 } else { 850 };
        let suspect = Suspect { domain, class: FaultClass::Silence, damage, confidence_permille };
        let fault = Fault::new(NAME, heard, suspect).of(Some(watch.incarnation));
        let clues = [self.age_clue(heard, view.now), found.clue(&evidence.exhibit), peers_clue(&asked)];
        out.blame(clues.into_iter().fold(fault, Fault::because));
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
        format!("limit_ms={}", self.limit.as_millis())
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
        (self.heard, self.asked) = (Some(heard), None);
        std::mem::take(&mut self.blamed)
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

/// What an answer to [`PROCESS_STATE`] says.
#[derive(Debug, Default)]
pub(super) struct Found<'a> {
    pub(super) state: Option<char>,
    wchan: Option<&'a str>,
    pub(super) beat_age: Option<Duration>,
}

impl<'a> Found<'a> {
    pub(super) fn of(exhibit: &'a Exhibit) -> Found<'a> {
        let mut found = Found::default();
        let Exhibit::Text(text) = exhibit else { return found };
        for (name, value) in text.split_whitespace().filter_map(|word| word.split_once('=')) {
            match name {
                "state" => found.state = value.chars().next(),
                "wchan" => found.wchan = Some(value).filter(|v| *v != "0"),
                "beat_age_ms" => found.beat_age = value.parse().ok().map(Duration::from_millis),
                _ => {}
            }
        }
        found
    }

    fn clue(&self, exhibit: &Exhibit) -> Clue {
        let wchan = self.wchan.map(|w| format!(", asleep in {}", one_line(w))).unwrap_or_default();
        let text = match (self.state, exhibit) {
            (Some(state @ ('T' | 't')), _) => format!("frozen: its process is in state {state} (stopped)"),
            (Some(state), _) => format!("its process is in state {state}{wchan}"),
            (None, Exhibit::Unavailable(why)) => format!("the state of its process cannot be had: {}", one_line(why)),
            _ => "the question for the state of its process was not answered".into(),
        };
        Clue::text("process_state", text)
    }
}

fn peers_clue(asked: &Asked) -> Clue {
    let Peers { watched, heard } = asked.peers;
    let age = asked.at.since(heard);
    let text = format!("of the {watched} processes of its host the latest was heard {:.1} s before", age.as_secs_f64());
    Clue::figure("peers_heartbeat_age_ms", age.as_secs_f64() * 1e3, None, text)
}

#[cfg(test)]
mod tests;
