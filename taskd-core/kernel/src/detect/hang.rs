//! Finds the ranks that cause a hang: those that do not take part in a collective in which others wait, and the reason.
//!
//! The detector never blames ranks that wait, nor a rank that still moves; a job that is only slow does not hang.

mod activity;
mod autopsy;
mod blame;
mod links;
mod look;
mod stacks;
mod verdict;

pub use verdict::{Culprit, Dispute, HangCause, HangVerdict, ProcessState, RankReport, disagreement, judge};

use super::exit::unexpected;
use super::{Damage, Evidence, Fault, FaultClass, FaultDetector, Findings, Suspect, saved};
use crate::job::{Domain, Generation, JobTime, Name, Rank, Role};
use crate::state::{FailureKind, View};
use crate::trace::{COLLECTIVES, DecodeError, Observation, PROCESS_STATE, Probe, STACKS, Signal};
use activity::Activity;
use autopsy::Autopsy;
use blame::fault;
use bytes::Bytes;
use links::Links;
use look::Look;
use serde::{Deserialize, Serialize};
use stacks::Held;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const NAME: Name = Name::new("hang");
const SNAPSHOT_VERSION: u8 = 3;

/// Timeout of the probes of one look.
const ANSWERS_WITHIN: Duration = Duration::from_millis(400);
/// Time after the probes' timeout at which a look with missing replies ends.
const ANSWERS_LATE: Duration = Duration::from_millis(100);
/// Initial time between two looks. While they find nothing, the pause doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(300);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Blames the ranks that cause a hang.
///
/// When a source (plugin that observes the job) reports that a collective has been in progress for a long time
/// ([`Signal::CollectivePending`]), the detector takes a *look* at all ranks: it probes their positions in their
/// process groups ([`COLLECTIVES`]) and the states of their processes ([`PROCESS_STATE`]). A second look follows
/// 300 ms later. [`judge`] finds the cause in each look. A rank is blamed if both find the same cause and its
/// positions are unchanged:
///
/// | cause | evidence | class | confidence, permille |
/// |---|---|---|---|
/// | its process is stopped, or sends no heartbeat | `hang_frozen` | `silence` | 1000, or 850 |
/// | its process exited with code 0, and others wait for it | `hang_ended` | `exit` | 900 |
/// | it has skipped a collective, and is in the next one | `hang_skipped` | `program` | 900 |
/// | it has called another collective than the other ranks | `hang_mismatch` | `program` | 900 |
/// | it has not called the collective, and does not wait in another one | `hang_missing` | `stall` | 700 |
///
/// A rank that is only missing may be busy, for example saving a checkpoint: it is blamed after the others have
/// waited for five minutes ([`missing_after`](Self::missing_after)). A rank that has been blocked in a disk, a file
/// server or a driver (Linux state `D`) in all looks of two fifths of that time, and has computed nothing, is blamed
/// then. A rank that sleeps, for example on a lock, may wait for its own worker processes: it is not blamed earlier.
/// The evidence names its activity: `hang_busy`, `hang_blocked` or `hang_sleeps` (stuck alone).
///
/// If the job runs on several hosts, the second look also asks each host which of the others it reaches
/// ([`LINKS`](crate::trace::LINKS)). If neither end of a link reaches the other, and no rank is found to cause the hang,
/// the host whose removal keeps the most ranks is blamed (class `network`, 800 permille), with the link and the reason as
/// evidence `link`: see [`LinkVerdict`](crate::check::LinkVerdict). The same is asked when a rank reports a failed
/// collective, and no rank has ended or was stopped. The hosts check the network between their agents,
/// which may be another one than that of the collectives.
///
/// The evidence of a blame contains the stacks of up to four suspects ([`STACKS`], `hang_stack`). They are requested
/// after the verdict, and delay the blame by at most 500 ms.
///
/// If ranks have called different collectives and
/// no side is in the majority, the job is blamed ([`FaultClass::Stall`]), with the difference as evidence, and no
/// rank. A circle of ranks that contains sends or receives, which programs often begin long before they wait for them,
/// is blamed after the time for missing ranks. If all ranks have called the same collective, none is blamed: the
/// collective may be slow.
///
/// When a rank dies, the detector probes the positions of all ranks once. A rank that has called something else than
/// the others is blamed then, too (`hang_skipped`, `hang_mismatch`), and the dead ranks are named as victims
/// (`hang_aborted`): some libraries do not hang on mismatched calls, but terminate a process that did everything right.
///
/// Looks continue with growing pauses while a collective is in progress, and the next look follows soon after another
/// [`Signal::CollectivePending`]. A blame is withdrawn when a look does not find its cause any more. While ranks are
/// stopped for a recovery, or have failed, there are no looks. After a suspension of the supervisor the looks start
/// again.
#[derive(Debug)]
pub struct HangDetector {
    missing_after: Duration,
    state: State,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct State {
    generation: Generation,
    /// Identifier of the latest look (one round of probes to all ranks), by which replies to older probes are
    /// recognised.
    tag: u64,
    inquiry: Option<Inquiry>,
    /// Investigation of the first death of a rank in this generation; `None` before it.
    autopsy: Option<Autopsy>,
    blamed: BTreeMap<Domain, FaultClass>,
    /// Blames that wait for the stacks of their suspects; they are in `blamed` already.
    held: Option<Held>,
    /// What the ranks that are missing in the present inquiry do, by rank.
    activities: BTreeMap<u32, Activity>,
    /// Checks of the links between hosts.
    links: Links,
}

/// The looks at a collective that has been in progress for a long time.
#[derive(Debug, Serialize, Deserialize)]
struct Inquiry {
    /// The look (round of probes to all ranks) that is in progress.
    open: Option<Look>,
    /// The previous look, with which the next one is compared.
    last: Option<Look>,
    /// End of the look in progress, or start of the next look.
    due: JobTime,
    /// Time from the look in progress to the next.
    pause: Duration,
}

impl Default for HangDetector {
    fn default() -> HangDetector {
        HangDetector { missing_after: HangDetector::USUAL, state: State::default() }
    }
}

impl HangDetector {
    /// Default time for which ranks must have waited in a collective before a rank that has not called it is blamed:
    /// five minutes.
    pub const USUAL: Duration = Duration::from_secs(300);

    /// Sets how long other ranks must have waited in a collective before a running rank that has not called it is
    /// blamed. It must be longer than everything that a program does on one rank alone, such as saving a checkpoint.
    /// The default is five minutes.
    #[must_use]
    pub const fn missing_after(mut self, bound: Duration) -> HangDetector {
        self.missing_after = bound;
        self
    }

    /// Handles the report that a collective has been in progress for a long time: schedules a look at all ranks.
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

    /// Starts a look: sends probes to all ranks.
    fn look(&mut self, view: &View, out: &mut Findings) {
        let is_changing = view.stopped().next().is_some() || view.failed().next().is_some();
        let ranks: BTreeSet<u32> = view.world.members().keys().map(|rank| rank.0).collect();
        let Some(inquiry) = self.state.inquiry.as_mut().filter(|_| !is_changing && ranks.len() > 1) else {
            self.state.inquiry = None; // a recovery restores the ranks
            self.state.activities.clear();
            return;
        };
        self.state.tag = self.state.tag.wrapping_add(1);
        let about: Vec<Domain> = ranks.iter().map(|rank| process(*rank)).collect();
        for what in [COLLECTIVES, PROCESS_STATE] {
            out.probe(Probe { by: NAME, tag: self.state.tag, what, about: about.clone(), timeout: ANSWERS_WITHIN });
        }
        inquiry.open = Some(Look::new(ranks, view.now));
        inquiry.due = view.now + ANSWERS_WITHIN + ANSWERS_LATE;
        if inquiry.last.is_some() {
            self.ask_links(false, view, out); // the look before has found a hang
        }
    }

    /// Handles a rank's death. After the first one of a generation all ranks are probed; later ones may be victims of
    /// the same mistake.
    fn died(&mut self, rank: Rank, view: &View, out: &mut Findings) {
        if self.state.autopsy.is_some() {
            return self.absolve(rank, view, out);
        }
        let ranks: BTreeSet<u32> = view.world.members().keys().map(|rank| rank.0).collect();
        self.state.inquiry = None; // which rank no longer replies is known
        self.state.tag = self.state.tag.wrapping_add(1);
        let about = ranks.iter().map(|rank| process(*rank)).collect();
        out.probe(Probe { by: NAME, tag: self.state.tag, what: COLLECTIVES, about, timeout: ANSWERS_WITHIN });
        let (look, due) = (Look::at_groups(ranks, view.now), view.now + ANSWERS_WITHIN + ANSWERS_LATE);
        self.state.autopsy = Some(Autopsy::Asked { look, due });
    }

    /// Blames ranks once the positions of all ranks at the first death are known.
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

    /// Names a dead rank as the victim of another rank's mistake, if it is one.
    fn absolve(&self, rank: Rank, view: &View, out: &mut Findings) {
        let culprits = self.state.autopsy.as_ref().map(Autopsy::culprits).unwrap_or_default();
        let Some(culprit) = culprits.first().filter(|_| culprits.iter().all(|culprit| culprit.rank != rank)) else {
            return;
        };
        let domain = process(rank.0);
        let of = view.proc_of(&domain).map(|proc| proc.incarnation);
        let text = format!("{rank} has ended because of another rank: {culprit}");
        let victim = Suspect::victim(domain, FaultClass::Exit, Damage::PROCESS_GONE);
        out.blame(
            Fault::new(NAME, view.now, victim).with_incarnation(of).with_evidence(Evidence::text("hang_aborted", text)),
        );
    }

    /// Evaluates a look once all replies have arrived or are overdue.
    fn seen(&mut self, view: &View, out: &mut Findings) {
        let Some(mut inquiry) = self.state.inquiry.take() else { return };
        let Some(look) = inquiry.open.take() else { return };
        let verdict = look.verdict(view);
        let is_over = !verdict.is_stuck;
        let twice = inquiry.last.as_ref().map(|last| last.agreed(view, &look, &verdict)).unwrap_or_default();
        self.watch(&look, &verdict);
        self.blame(twice, look.began(), view, out);
        if is_over {
            self.state.links.clear(out);
        } else {
            inquiry.due = view.now + inquiry.pause;
            inquiry.pause = (inquiry.pause * 2).min(PAUSE_MAX);
            inquiry.last = Some(look);
            self.state.inquiry = Some(inquiry);
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
            let State { tag, links, .. } = std::mem::take(&mut self.state);
            // Late replies to older probes are not taken for new ones.
            self.state = State { generation, tag, links: links.into_next_world(), ..State::default() };
        }
        match (&o.signal, &o.about) {
            (Signal::CollectivePending { .. }, Domain::Process(Role::Rank(_))) => self.pending(view),
            (Signal::ProbeReply(reply), Domain::Node(host)) if reply.by == NAME => {
                self.links_of(host, reply, view, out)
            }
            (Signal::ProbeReply(evidence), Domain::Process(Role::Rank(rank))) => {
                if evidence.by == NAME && evidence.what == STACKS {
                    if self.state.held.as_mut().is_some_and(|held| held.answered(*rank, evidence)) {
                        self.release(view, out);
                    }
                    return;
                }
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
            (Signal::StepFailed(failure), _) if failure.kind == FailureKind::Collective => {
                self.collective_failed(view, out);
            }
            (Signal::SupervisorSlept { .. }, _) => {
                self.state.activities.clear(); // the time without looks counts for nothing
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
        let held = self.state.held.as_ref().map(|held| held.due);
        inquiry.into_iter().chain(autopsy).chain(held).chain(self.state.links.due()).min()
    }

    fn expire(&mut self, view: &View, out: &mut Findings) {
        if self.state.autopsy.as_ref().and_then(Autopsy::due).is_some_and(|due| due <= view.now) {
            self.conclude(view, out);
        }
        if self.state.held.as_ref().is_some_and(|held| held.due <= view.now) {
            self.release(view, out);
        }
        if self.state.links.due().is_some_and(|due| due <= view.now) {
            self.judge_links(view, out);
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

    fn restore(&mut self, saved: &[u8]) -> Result<(), DecodeError> {
        self.state = saved::load(SNAPSHOT_VERSION, saved)?;
        Ok(())
    }
}

fn process(rank: u32) -> Domain {
    Domain::Process(Role::Rank(Rank(rank)))
}

#[cfg(test)]
mod tests;
