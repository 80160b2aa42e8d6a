//! Monitors a guard: whether it answers, and how it ended, from its own messages and from what Linux reports about its
//! process.
//!
//! A guard counts as dead only if Linux reports it so. This module kills only the guard that it watches, identified by
//! pid and start time, and only on request.

use crate::job::{Name, NodeId, Termination};
use crate::launch::external::wait_status;
use crate::launch::guard::how_it_ended;
use crate::launch::oom::OomCounter;
use crate::launch::{GuardEnd, GuardState, GuardStatus};
use crate::proc_fs::Stat;
use rustix::process::{Pid, PidfdFlags, Signal};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// Interval between two checks while an answer is awaited.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Interval between two requests as long as the guard answers.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// Time to answer, after which the guard is reported as silent.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);
/// A check that is later than this shows a delay of this process, not of the guard: a new request is sent.
const LATE_AFTER: Duration = Duration::from_secs(1);
/// Interval at which OOM kills of other processes are marked as accounted for.
const SETTLE_EVERY: Duration = Duration::from_secs(10);
/// Time within which the end of a guard whose connection has closed must become visible.
const SEEN_WITHIN: Duration = Duration::from_secs(1);
/// Interval between two checks during that time.
const SEEN_EVERY: Duration = Duration::from_millis(1);

/// The state of one watched guard.
#[derive(Debug)]
pub(super) struct GuardWatch {
    status: GuardStatus,
    pid: Pid,
    start_time: u64,
    /// The guard's pidfd. `None` before Linux 5.3, and if no descriptor is free.
    handle: Option<OwnedFd>,
    /// Time at which the unanswered request was sent; `None` if there is none.
    asked: Option<Instant>,
    /// Time of the next check of the guard.
    look_at: Instant,
    /// Time of the next request to the guard.
    ask_at: Instant,
    settle_at: Instant,
    /// Time since which the guard has not answered although nothing stops it.
    stuck_since: Option<Instant>,
    /// Counter of OOM kills in the control group or on the host of the guard.
    oom: Option<OomCounter>,
    /// Reason for its end that the guard itself reported.
    announced: Option<GuardEnd>,
}

/// The result of a check.
#[derive(Debug, PartialEq)]
pub(super) enum Look {
    /// Nothing to do.
    Well,
    /// Send the guard a request that it has to answer.
    Ask,
    /// The guard's state changed to this.
    Changed(GuardStatus),
    /// The guard is gone, whatever the state of its connection.
    Dead,
    /// The guard has not answered for longer than allowed, and nothing has stopped it.
    Overdue,
}

impl GuardWatch {
    /// Begins to watch the guard with this pid. `None`: it is not visible here, or it is a part of this process.
    pub(super) fn of(pid: u32, node: NodeId, before: Option<GuardEnd>, now: Instant) -> Option<GuardWatch> {
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw).filter(|_| pid != std::process::id())?;
        let handle = rustix::process::pidfd_open(number, PidfdFlags::empty()).ok();
        let start_time = Stat::read(number)?.start_time;
        let oom = OomCounter::of(number);
        let instance = Name::from(format!("{pid}:{start_time}"));
        let status = GuardStatus::new(node, instance, pid, GuardState::Answers).with_before(before);
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
            announced: None,
        })
    }

    /// Returns the guard's state as last observed.
    pub(super) fn status(&self) -> GuardStatus {
        self.status.clone()
    }

    /// Records that the guard sent something. Returns its state if that changed it.
    pub(super) fn received(&mut self) -> Option<GuardStatus> {
        (self.asked, self.stuck_since) = (None, None);
        self.look_at = self.ask_at;
        self.becomes(GuardState::Answers)
    }

    /// Records the guard's message that it is ending. Returns its state if that changed it.
    pub(super) fn announced_end(&mut self, end: GuardEnd) -> Option<GuardStatus> {
        self.announced = Some(end.clone());
        self.becomes(GuardState::Gone(end))
    }

    fn becomes(&mut self, state: GuardState) -> Option<GuardStatus> {
        if self.status.state == state || self.announced.is_some() && state == GuardState::Answers {
            return None;
        }
        self.status.state = state;
        Some(self.status())
    }

    fn stat(&self) -> Option<Stat> {
        Stat::read(self.pid).filter(|stat| stat.start_time == self.start_time)
    }

    /// Returns the time of the next check.
    pub(super) const fn look_at(&self) -> Instant {
        self.look_at
    }

    /// Checks the guard. A guard that nothing stops may be without an answer for `at_most`.
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
                self.oom.iter_mut().for_each(OomCounter::settle); // earlier kills were of other processes
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
                "guard {pid} does not answer: its process is stopped (state T): continue it with kill -CONT {pid}"
            ),
            't' => format!("guard {pid} does not answer: a debugger has stopped its process (state t)"),
            'D' => format!("guard {pid} does not answer: its process waits for a disk or a device (state D)"),
            state => {
                format!("guard {pid} does not answer: its process is in state {state}, the host may be overloaded")
            }
        };
        match &self.status.state {
            GuardState::Gone(_) => Look::Well, // it has announced its end, and takes its time
            _ => self.becomes(GuardState::Silent(why)).map_or(Look::Well, Look::Changed),
        }
    }

    /// Kills the guard with all its processes, which Linux kills together with it.
    pub(super) fn kill(&self) {
        if self.stat().is_none() {
            return;
        }
        let _ = match &self.handle {
            Some(handle) => rustix::process::pidfd_send_signal(handle, Signal::KILL),
            None => rustix::process::kill_process(self.pid, Signal::KILL),
        };
    }

    /// Returns how the guard ended, after its connection closed. `None`: its process still exists.
    pub(super) async fn ended(&mut self, killed_for: Option<String>) -> Option<GuardStatus> {
        let give_up = Instant::now() + SEEN_WITHIN;
        let how = loop {
            match self.stat().filter(|stat| !stat.is_zombie()) {
                Some(_) if self.announced.is_some() => break None, // its own message is enough
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
            (None, None) => format!("guard {pid} has ended, and its exit status is unknown"),
        };
        let end = self.announced.clone().unwrap_or(GuardEnd::new(why));
        self.becomes(GuardState::Gone(end)).or_else(|| Some(self.status()))
    }

    /// Returns how the guard ended, as far as known.
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

    /// Checks at the usual interval for this many seconds; returns the last result other than `Well` and `Ask`.
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
    fn a_stopped_guard_is_reported_in_two_seconds_and_never_overdue() {
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
        assert_eq!(watch.received().unwrap().state, GuardState::Answers);
        assert_eq!(watch.received(), None);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_silent_guard_is_overdue_after_minutes_without_an_answer() {
        let (mut child, mut watch) = start();
        let from = Instant::now();
        assert!(matches!(look_for(&mut watch, from, 299, MINUTES), Look::Changed(_)));
        watch.received();
        let from = from + Duration::from_secs(299);
        assert!(matches!(look_for(&mut watch, from, 299, MINUTES), Look::Changed(_)), "the time begins again");
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
    async fn a_reason_from_the_guard_for_its_end_overrides_the_observed_one() {
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
        let word = GuardEnd::new("so it was agreed").with_was_agreed(true);
        watch.announced_end(word.clone());
        assert_eq!(watch.ended(None).await.unwrap().state, GuardState::Gone(word));
    }
}
