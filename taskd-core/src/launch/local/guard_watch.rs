//! Whether a guard answers, and how one has ended: from what it says, and from what Linux tells of its process.
//!
//! It takes no guard for dead of which Linux does not say so, and ends none but one that it was told to, by pid and start time.

use crate::job::{Name, NodeId, Termination};
use crate::launch::foreign::wait_status;
use crate::launch::guard::how_it_ended;
use crate::launch::guard::proc_fs::Stat;
use crate::launch::oom::OomCounter;
use crate::launch::{GuardEnd, GuardState, GuardStatus};
use rustix::process::{Pid, PidfdFlags, Signal};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// How often it is looked at while an answer is awaited.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How often it is asked, as long as it answers.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// How long it may take to answer until it is told that it does not.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);
/// A look that comes so late says more of us than of the guard: it is asked anew.
const LATE_AFTER: Duration = Duration::from_secs(1);
/// How often kills for lack of memory that were others' are passed over.
const SETTLE_EVERY: Duration = Duration::from_secs(10);
/// How long a guard whose connection has ended may take to be seen ending.
const SEEN_WITHIN: Duration = Duration::from_secs(1);
/// Between two looks meanwhile.
const SEEN_EVERY: Duration = Duration::from_millis(1);

/// One guard.
#[derive(Debug)]
pub(super) struct GuardWatch {
    status: GuardStatus,
    pid: Pid,
    start_time: u64,
    /// `None` before Linux 5.3, and where no descriptor is left.
    handle: Option<OwnedFd>,
    /// Since when a question waits for its answer.
    asked: Option<Instant>,
    /// When to look next.
    look_at: Instant,
    /// When to ask next.
    ask_at: Instant,
    settle_at: Instant,
    /// Since when it does not answer though nothing stops it.
    stuck_since: Option<Instant>,
    /// Kills for lack of memory where it is.
    oom: Option<OomCounter>,
    /// How it ends, as it has said itself.
    said: Option<GuardEnd>,
}

/// What is to be done after a look.
#[derive(Debug, PartialEq)]
pub(super) enum Look {
    /// Nothing.
    Well,
    /// It is to be asked something.
    Ask,
    /// This is news.
    Changed(GuardStatus),
    /// It is gone, whatever its connection says.
    Dead,
    /// It has not answered for longer than it may, and nothing has stopped it.
    Overdue,
}

impl GuardWatch {
    /// The guard with this pid. `None`: it is not visible here, or it is a part of this process.
    pub(super) fn of(pid: u32, node: NodeId, before: Option<GuardEnd>, now: Instant) -> Option<GuardWatch> {
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw).filter(|_| pid != std::process::id())?;
        let handle = rustix::process::pidfd_open(number, PidfdFlags::empty()).ok();
        let start_time = Stat::read(number)?.start_time;
        let oom = OomCounter::of(number);
        let instance = Name::from(format!("{pid}:{start_time}"));
        let status = GuardStatus { node, instance, pid, state: GuardState::Answers, before };
        Some(GuardWatch {
            status,
            pid: number,
            start_time,
            handle,
            asked: None,
            look_at: now,
            ask_at: now,
            settle_at: now + SETTLE_EVERY,
            stuck_since: None,
            oom,
            said: None,
        })
    }

    /// As it is known.
    pub(super) fn status(&self) -> GuardStatus {
        self.status.clone()
    }

    /// It has said something. What that changes, if anything.
    pub(super) fn heard(&mut self) -> Option<GuardStatus> {
        (self.asked, self.stuck_since) = (None, None);
        self.look_at = self.ask_at;
        self.becomes(GuardState::Answers)
    }

    /// It has said that it ends.
    pub(super) fn said_that_it_ends(&mut self, end: GuardEnd) -> Option<GuardStatus> {
        self.said = Some(end.clone());
        self.becomes(GuardState::Gone(end))
    }

    fn becomes(&mut self, state: GuardState) -> Option<GuardStatus> {
        if self.status.state == state || self.said.is_some() && state == GuardState::Answers {
            return None;
        }
        self.status.state = state;
        Some(self.status())
    }

    fn stat(&self) -> Option<Stat> {
        Stat::read(self.pid).filter(|stat| stat.start_time == self.start_time)
    }

    /// When it is to be looked at.
    pub(super) const fn look_at(&self) -> Instant {
        self.look_at
    }

    /// Looks at it. One that nothing stops may be without an answer for `at_most`.
    pub(super) fn look(&mut self, now: Instant, at_most: Duration) -> Look {
        let was_late = now > self.look_at + LATE_AFTER;
        self.look_at = now + LOOK_EVERY;
        let Some(asked) = self.asked.filter(|_| !was_late) else {
            if now < self.ask_at {
                return Look::Well;
            }
            (self.asked, self.ask_at) = (Some(now), now + ASK_EVERY);
            if now >= self.settle_at {
                self.settle_at = now + SETTLE_EVERY;
                self.oom.iter_mut().for_each(OomCounter::settle); // what was counted until now were others
            }
            return Look::Ask;
        };
        let age = now.saturating_duration_since(asked);
        if age < ANSWER_WITHIN {
            return Look::Well;
        }
        let Some(stat) = self.stat().filter(|stat| !stat.is_zombie()) else { return Look::Dead };
        let is_stopped = matches!(stat.state, 'T' | 't');
        let stuck_since = *self.stuck_since.get_or_insert(now);
        if is_stopped {
            self.stuck_since = None;
        } else if now.saturating_duration_since(stuck_since) >= at_most {
            return Look::Overdue;
        }
        let pid = self.status.pid;
        let why = match stat.state {
            'T' => format!(
                "guard {pid} does not answer: its process is stopped (state T); it goes on after kill -CONT {pid}"
            ),
            't' => format!("guard {pid} does not answer: a debugger has stopped its process (state t)"),
            'D' => format!("guard {pid} does not answer: its process waits for a disk or a device (state D)"),
            state => {
                format!("guard {pid} does not answer: its process is in state {state}, the host may be overloaded")
            }
        };
        match &self.status.state {
            GuardState::Gone(_) => Look::Well, // it has said so, and takes its time
            _ => self.becomes(GuardState::Silent(why)).map_or(Look::Well, Look::Changed),
        }
    }

    /// Ends it with all that it guards; Linux sees to these.
    pub(super) fn kill(&self) {
        if self.stat().is_none() {
            return;
        }
        let _ = match &self.handle {
            Some(handle) => rustix::process::pidfd_send_signal(handle, Signal::KILL),
            None => rustix::process::kill_process(self.pid, Signal::KILL),
        };
    }

    /// After its connection has ended: how it did, if it did. `None`: its process is still there.
    pub(super) async fn ended(&mut self, killed_for: Option<String>) -> Option<GuardStatus> {
        let give_up = Instant::now() + SEEN_WITHIN;
        let how = loop {
            match self.stat().filter(|stat| !stat.is_zombie()) {
                Some(_) if self.said.is_some() => break None, // its own word is enough
                Some(stat) if !stat.is_exiting() && how_it_ended(self.pid, self.start_time).is_none() => {
                    if Instant::now() >= give_up {
                        return None;
                    }
                    tokio::time::sleep(SEEN_EVERY).await;
                }
                _ => break self.termination(),
            }
        };
        let pid = self.status.pid;
        let oom = self.oom.as_mut().zip(how.filter(|_| killed_for.is_none()));
        let oom = oom.and_then(|(counter, how)| counter.explain(self.pid, how));
        let why = match (killed_for, how) {
            (Some(why), _) => why,
            (None, Some(how)) if oom.is_some() => {
                format!("guard {pid} has ended: {how}, {}", oom.map(|report| report.text).unwrap_or_default())
            }
            (None, Some(how)) => format!("guard {pid} has ended: {how}"),
            (None, None) => format!("guard {pid} has ended, and nothing here tells how"),
        };
        let end = self.said.clone().unwrap_or(GuardEnd { why, was_agreed: false });
        self.becomes(GuardState::Gone(end)).or_else(|| Some(self.status()))
    }

    /// How it ended, as far as that is known.
    fn termination(&self) -> Option<Termination> {
        let seen = how_it_ended(self.pid, self.start_time).filter(|how| *how != Termination::Unknown);
        let kept =
            || self.handle.as_ref().and_then(|handle| wait_status(handle.as_fd())).map(Termination::of_wait_status);
        seen.or_else(kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    fn start() -> (Child, GuardWatch) {
        let child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let watch = GuardWatch::of(child.id(), NodeId(Name::new("here")), None, Instant::now()).unwrap();
        (child, watch)
    }

    const MINUTES: Duration = Duration::from_secs(300);

    /// Looks in the usual rhythm for so many seconds. The last look that said something.
    fn look_for(watch: &mut GuardWatch, from: Instant, seconds: u32, at_most: Duration) -> Look {
        let looks = (1..=seconds * 2).map(|n| watch.look(from + LOOK_EVERY * n, at_most));
        looks.filter(|look| !matches!(look, Look::Well | Look::Ask)).last().unwrap_or(Look::Well)
    }

    fn until_state(pid: u32, state: char) {
        while Stat::read(Pid::from_raw(pid.cast_signed()).unwrap()).unwrap().state != state {
            std::thread::yield_now();
        }
    }

    #[test]
    fn one_that_is_stopped_is_told_of_within_two_seconds_and_waited_for() {
        let (mut child, mut watch) = start();
        let pid = Pid::from_child(&child);
        rustix::process::kill_process(pid, Signal::STOP).unwrap();
        until_state(child.id(), 'T');
        let from = Instant::now();
        let Look::Changed(GuardStatus { state: GuardState::Silent(why), .. }) = look_for(&mut watch, from, 2, MINUTES)
        else {
            panic!("it does not answer")
        };
        assert!(why.contains("state T") && why.contains(&format!("kill -CONT {}", child.id())), "{why}");
        let later = from + Duration::from_secs(2);
        assert_eq!(look_for(&mut watch, later, 3600, MINUTES), Look::Well, "however long it takes");
        assert_eq!(watch.heard().unwrap().state, GuardState::Answers);
        assert_eq!(watch.heard(), None);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn one_that_nothing_stops_may_take_minutes_and_answers_count() {
        let (mut child, mut watch) = start();
        let from = Instant::now();
        assert!(matches!(look_for(&mut watch, from, 299, MINUTES), Look::Changed(_)));
        watch.heard();
        let from = from + Duration::from_secs(299);
        assert!(matches!(look_for(&mut watch, from, 299, MINUTES), Look::Changed(_)), "the time begins anew");
        assert_eq!(look_for(&mut watch, from + Duration::from_secs(299), 3, MINUTES), Look::Overdue);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(look_for(&mut watch, from + Duration::from_secs(302), 1, MINUTES), Look::Dead);
    }

    #[test]
    fn time_in_which_we_did_not_run_is_not_its_own() {
        let (mut child, mut watch) = start();
        let from = Instant::now();
        assert_eq!(watch.look(from, MINUTES), Look::Ask);
        assert_eq!(watch.look(from + Duration::from_secs(60), MINUTES), Look::Ask, "it is asked again");
        assert_eq!(watch.look(from + Duration::from_millis(60_400), MINUTES), Look::Well, "and has its time to answer");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[tokio::test]
    async fn how_it_ended_is_told_as_far_as_it_is_known_and_its_own_word_counts_more() {
        let (mut child, mut watch) = start();
        assert_eq!(watch.ended(None).await, None, "its process is there");
        child.kill().unwrap();
        rustix::process::waitid(
            rustix::process::WaitId::Pid(Pid::from_child(&child)),
            rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT,
        )
        .unwrap();
        let Some(GuardStatus { state: GuardState::Gone(end), .. }) = watch.ended(None).await else {
            panic!("it is gone")
        };
        assert_eq!((end.why, end.was_agreed), (format!("guard {} has ended: signal 9 (SIGKILL)", child.id()), false));
        child.wait().unwrap();
        let word = GuardEnd { why: "so it was agreed".into(), was_agreed: true };
        watch.said_that_it_ends(word.clone());
        assert_eq!(watch.ended(None).await.unwrap().state, GuardState::Gone(word));
    }
}
