//! Finds whom a hang comes from: who does not take part in a collective that others wait in, and why.
//!
//! It never blames those who wait, nor a rank that still moves; a job that is only slow does not hang.

mod autopsy;
mod look;
mod verdict;

pub use verdict::{Culprit, Dispute, HangCause, HangVerdict, ProcessState, RankReport, disagreement, judge};

use super::exit::unexpected;
use super::{Clue, Damage, Fault, FaultClass, FaultDetector, Findings, Sound, Suspect, saved};
use crate::job::{Domain, Generation, Incarnation, JobTime, Name, Rank, Role};
use crate::kernel::View;
use crate::trace::{Ask, COLLECTIVES, Malformed, Observation, PROCESS_STATE, Signal};
use autopsy::Autopsy;
use bytes::Bytes;
use look::Look;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const NAME: Name = Name::new("hang");
const SNAPSHOT_VERSION: u8 = 1;

/// How long the answers to one look are waited for.
const ANSWERS_WITHIN: Duration = Duration::from_millis(400);
/// A look that misses answers is over this long after they should have come.
const ANSWERS_LATE: Duration = Duration::from_millis(100);
/// From one look to the next, at first. While nothing comes of it, the pause doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(300);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Blames the ranks that a hang comes from.
///
/// When a source says that a communication has been under way for long ([`Signal::CollectivePending`]), all ranks are looked
/// at: where they stand in their process groups ([`COLLECTIVES`]), and how their processes are ([`PROCESS_STATE`]). A second look
/// follows 300 ms later. What both say alike, of a rank that has not moved in between, is blamed ([`judge`] finds it):
///
/// | cause | clue | class | confidence, permille |
/// |---|---|---|---|
/// | its process is stopped, or gives no sign of life | `hang_frozen` | `silence` | 1000, or 850 |
/// | its process has ended well, and others wait for it | `hang_ended` | `exit` | 900 |
/// | it has left out a collective, and is in the next one | `hang_skipped` | `program` | 900 |
/// | it has called another collective than the others | `hang_mismatch` | `program` | 900 |
/// | it has not called the collective, and does not wait in another one | `hang_missing` | `stall` | 700 |
///
/// A rank that is only missing may be at work, such as saving a checkpoint: it is blamed when the others have waited for five
/// minutes ([`missing_after`](Self::missing_after)). When ranks disagree and no side is in the majority, the job is blamed
/// ([`FaultClass::Stall`]) with what differs, and no rank. When all have called the same, nobody is blamed: it may be slow.
///
/// When a rank dies all are asked once where they stand. Who has called something else than the others is blamed then, too
/// (`hang_skipped`, `hang_mismatch`), and the dead are told to be victims (`hang_aborted`): some libraries do not hang over
/// calls that do not match, they end a process that did everything right.
///
/// Looks go on, less and less often, for as long as a communication is under way, and soon when another one is told of.
/// What was blamed is taken back when a look does not find it any more. While ranks are stopped for a recovery, or have
/// failed, nobody is looked at. When the supervisor itself has slept, the looks begin anew.
#[derive(Debug)]
pub struct HangDetector {
    missing_after: Duration,
    state: State,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct State {
    generation: Generation,
    /// Number of the latest look.
    tag: u64,
    inquiry: Option<Inquiry>,
    /// A rank has died in this generation.
    autopsy: Option<Autopsy>,
    blamed: BTreeMap<Domain, FaultClass>,
}

/// Something is under way for long.
#[derive(Debug, Serialize, Deserialize)]
struct Inquiry {
    /// The look that is under way.
    open: Option<Look>,
    /// The one before.
    last: Option<Look>,
    /// When it is over, or the next one begins.
    due: JobTime,
    /// From this look to the next.
    pause: Duration,
}

impl Default for HangDetector {
    fn default() -> HangDetector {
        HangDetector { missing_after: HangDetector::USUAL, state: State::default() }
    }
}

impl HangDetector {
    /// How long others must have waited by default: five minutes.
    pub const USUAL: Duration = Duration::from_secs(300);

    /// How long others must have waited for a rank that is there and only does not call: longer than everything that a
    /// program does on one rank alone, such as saving a checkpoint. The default is five minutes.
    #[must_use]
    pub const fn missing_after(mut self, bound: Duration) -> HangDetector {
        self.missing_after = bound;
        self
    }

    /// A communication is under way for long.
    fn pending(&mut self, view: &View) {
        let soon = view.now + PAUSE_MIN;
        match &mut self.state.inquiry {
            Some(inquiry) if inquiry.open.is_some() => {}
            Some(inquiry) => (inquiry.due, inquiry.pause) = (inquiry.due.min(soon), PAUSE_MIN),
            None => {
                let inquiry = Inquiry { open: None, last: None, due: view.now, pause: PAUSE_MIN };
                self.state.inquiry = Some(inquiry);
            }
        }
    }

    /// Asks all ranks.
    fn look(&mut self, view: &View, out: &mut Findings) {
        let is_changing = view.stopped().next().is_some() || view.failed().next().is_some();
        let ranks: BTreeSet<u32> = view.world.members().keys().map(|rank| rank.0).collect();
        let Some(inquiry) = self.state.inquiry.as_mut().filter(|_| !is_changing && ranks.len() > 1) else {
            self.state.inquiry = None; // others see to it that ranks are there again
            return;
        };
        self.state.tag = self.state.tag.wrapping_add(1);
        let about: Vec<Domain> = ranks.iter().map(|rank| process(*rank)).collect();
        for what in [COLLECTIVES, PROCESS_STATE] {
            out.ask(Ask { by: NAME, tag: self.state.tag, what, about: about.clone(), within: ANSWERS_WITHIN });
        }
        inquiry.open = Some(Look::new(ranks, view.now));
        inquiry.due = view.now + ANSWERS_WITHIN + ANSWERS_LATE;
    }

    /// A rank has died. The first one of a generation has all asked where they stand; the others may be victims of the same.
    fn died(&mut self, rank: Rank, view: &View, out: &mut Findings) {
        if self.state.autopsy.is_some() {
            return self.absolve(rank, view, out);
        }
        let ranks: BTreeSet<u32> = view.world.members().keys().map(|rank| rank.0).collect();
        self.state.inquiry = None; // who does not answer any more is known
        self.state.tag = self.state.tag.wrapping_add(1);
        let about = ranks.iter().map(|rank| process(*rank)).collect();
        out.ask(Ask { by: NAME, tag: self.state.tag, what: COLLECTIVES, about, within: ANSWERS_WITHIN });
        let (look, due) = (Look::at_groups(ranks, view.now), view.now + ANSWERS_WITHIN + ANSWERS_LATE);
        self.state.autopsy = Some(Autopsy::Asked { look, due });
    }

    /// It is known where all ranks stood when one had died.
    fn conclude(&mut self, view: &View, out: &mut Findings) {
        let Some(autopsy) = &mut self.state.autopsy else { return };
        autopsy.close(view);
        for culprit in autopsy.culprits() {
            out.blame(fault(culprit, view.now, view));
        }
        for rank in view.failed() {
            self.absolve(rank, view, out);
        }
    }

    /// Says that a rank has died of somebody else's mistake, if it has.
    fn absolve(&self, rank: Rank, view: &View, out: &mut Findings) {
        let culprits = self.state.autopsy.as_ref().map(Autopsy::culprits).unwrap_or_default();
        let Some(culprit) = culprits.first().filter(|_| culprits.iter().all(|culprit| culprit.rank != rank)) else {
            return;
        };
        let domain = process(rank.0);
        let of = view.proc_of(&domain).map(|proc| proc.incarnation);
        let text = format!("{rank} has ended because of somebody else: {culprit}");
        let victim = Suspect::victim(domain, FaultClass::Exit, Damage::PROCESS_GONE);
        out.blame(Fault::new(NAME, view.now, victim).of(of).because(Clue::text("hang_aborted", text)));
    }

    /// All answers are there, or will not come.
    fn seen(&mut self, view: &View, out: &mut Findings) {
        let Some(mut inquiry) = self.state.inquiry.take() else { return };
        let Some(look) = inquiry.open.take() else { return };
        let verdict = look.verdict(view);
        let is_over = !verdict.is_stuck;
        let twice = inquiry.last.as_ref().map(|last| last.agreed(view, &look, &verdict)).unwrap_or_default();
        self.blame(twice, look.began(), view, out);
        if !is_over {
            inquiry.due = view.now + inquiry.pause;
            inquiry.pause = (inquiry.pause * 2).min(PAUSE_MAX);
            inquiry.last = Some(look);
            self.state.inquiry = Some(inquiry);
        }
    }

    /// Blames what was found, and takes back what is not found any more.
    fn blame(&mut self, verdict: HangVerdict, at: JobTime, view: &View, out: &mut Findings) {
        let mut faults = Vec::new();
        for culprit in &verdict.culprits {
            if culprit.cause != HangCause::Missing || culprit.since >= self.missing_after {
                faults.push(fault(culprit, at, view));
            }
        }
        if let Some(dispute) = verdict.dispute.filter(|_| faults.is_empty()) {
            let suspect = suspect(Domain::Job, FaultClass::Stall, Damage::default(), Suspect::BLAME_PERMILLE_MIN);
            let text = dispute.to_string();
            let fault = Fault::new(NAME, at.before(dispute.since), suspect);
            faults.push(fault.because(Clue::text("hang_dispute", text)));
        }
        let found: BTreeMap<Domain, FaultClass> =
            faults.iter().map(|fault| (fault.prime().domain.clone(), fault.prime().class.clone())).collect();
        for (domain, class) in std::mem::take(&mut self.state.blamed) {
            if found.get(&domain) == Some(&class) {
                self.state.blamed.insert(domain, class);
            } else {
                out.clear(domain, class);
            }
        }
        for fault in faults {
            let Suspect { domain, class, .. } = fault.prime().clone();
            if self.state.blamed.insert(domain, class).is_none() {
                out.blame(fault);
            }
        }
    }
}

impl FaultDetector for HangDetector {
    fn name(&self) -> Name {
        NAME
    }

    fn config(&self) -> String {
        format!("missing_after_ms={}", self.missing_after.as_millis())
    }

    fn observe(&mut self, o: &Observation, view: &View, out: &mut Findings) {
        let generation = view.world.generation();
        if generation != self.state.generation {
            let tag = self.state.tag; // late answers to older questions are not taken for new ones
            self.state = State { generation, tag, ..State::default() };
        }
        match (&o.signal, &o.about) {
            (Signal::CollectivePending { .. }, Domain::Process(Role::Rank(_))) => self.pending(view),
            (Signal::Evidence(evidence), Domain::Process(Role::Rank(rank))) => {
                if evidence.by != NAME || evidence.tag != self.state.tag {
                    return;
                }
                if self.state.autopsy.as_mut().is_some_and(|autopsy| autopsy.answered(*rank, evidence)) {
                    self.conclude(view, out);
                }
                let look = self.state.inquiry.as_mut().and_then(|inquiry| inquiry.open.as_mut());
                if look.is_some_and(|look| look.answered(*rank, evidence)) {
                    self.seen(view, out);
                }
            }
            (Signal::Phase(phase), Domain::Process(role @ Role::Rank(rank))) => {
                let is_failed = phase.termination().is_some_and(|how| !how.is_success());
                if is_failed && unexpected(role, o.incarnation, view).is_some() {
                    self.died(*rank, view, out);
                }
            }
            (Signal::SupervisorSlept { .. }, _) => {
                if let Some(inquiry) = &mut self.state.inquiry {
                    *inquiry = Inquiry { open: None, last: None, due: view.now + PAUSE_MIN, pause: PAUSE_MIN };
                }
            }
            _ => {}
        }
    }

    fn deadline(&self) -> Option<JobTime> {
        let inquiry = self.state.inquiry.as_ref().map(|inquiry| inquiry.due);
        let autopsy = self.state.autopsy.as_ref().and_then(Autopsy::due);
        inquiry.into_iter().chain(autopsy).min()
    }

    fn expire(&mut self, view: &View, out: &mut Findings) {
        if self.state.autopsy.as_ref().and_then(Autopsy::due).is_some_and(|due| due <= view.now) {
            self.conclude(view, out);
        }
        let Some(inquiry) = self.state.inquiry.as_ref().filter(|inquiry| inquiry.due <= view.now) else { return };
        match inquiry.open {
            Some(_) => self.seen(view, out),
            None => self.look(view, out),
        }
    }

    fn snapshot(&self) -> Option<Bytes> {
        saved::save(SNAPSHOT_VERSION, &self.state)
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), Malformed> {
        self.state = saved::load(SNAPSHOT_VERSION, saved)?;
        Ok(())
    }
}

fn process(rank: u32) -> Domain {
    Domain::Process(Role::Rank(Rank(rank)))
}

fn suspect(domain: Domain, class: FaultClass, damage: Damage, confidence_permille: u16) -> Suspect {
    Suspect { domain, class, damage, confidence_permille }
}

/// What a culprit is blamed for.
fn fault(culprit: &Culprit, at: JobTime, view: &View) -> Fault {
    let there = Damage { process: Sound::Yes, ..Damage::default() };
    let (clue, class, damage, confidence) = match culprit.cause {
        HangCause::Frozen { is_certain } => {
            let damage = Damage { process: Sound::No, ..Damage::default() };
            ("hang_frozen", FaultClass::Silence, damage, if is_certain { 1000 } else { 850 })
        }
        HangCause::Ended => ("hang_ended", FaultClass::Exit, Damage::PROCESS_GONE, 900),
        HangCause::Skipped => ("hang_skipped", FaultClass::Program, there, 900),
        HangCause::Mismatch => ("hang_mismatch", FaultClass::Program, there, 900),
        HangCause::Missing => ("hang_missing", FaultClass::Stall, Damage::default(), 700),
    };
    let domain = process(culprit.rank.0);
    let of: Option<Incarnation> = view.proc_of(&domain).map(|proc| proc.incarnation);
    let waiting_ms = culprit.since.as_secs_f64() * 1e3;
    let text = format!("{} wait in it, for {:.1} s", verdict::ranks(&culprit.waiting), culprit.since.as_secs_f64());
    let waiting = Clue { peers: culprit.waiting.clone(), ..Clue::figure("hang_waiting_ms", waiting_ms, None, text) };
    Fault::new(NAME, at.before(culprit.since), suspect(domain, class, damage, confidence))
        .of(of)
        .because(Clue::text(Name::new(clue), culprit.to_string()))
        .because(waiting)
}

#[cfg(test)]
mod tests;
