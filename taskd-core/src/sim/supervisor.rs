//! The supervisor under test: the real kernel behind the real mailbox, asleep, or gone and started again.
//!
//! It plays the shell's part: what the kernel commands is handed to the launcher and the sources of this world.

use super::audit::Moment;
use super::event::Event;
use super::outcome::Violation;
use super::world::World as Sim;
use crate::job::{Domain, JobTime};
use crate::kernel::{Command, Input, Kernel, Mailbox, Request, Start};
use crate::recover::{Action, Failure, Output};
use crate::trace::switches::Mode;
use std::time::Duration;

/// Steps of the kernel at one instant after which it is said to spin.
const STEPS_AT_ONCE_MAX: u32 = 200_000;

/// The kernel, its mailbox, and whether it runs.
pub(super) struct Supervisor {
    pub(super) kernel: Kernel,
    pub(super) mailbox: Mailbox,
    /// Counts the starts of the supervisor.
    pub(super) life: u32,
    pub(super) away: Away,
    /// All the time that it was away.
    pub(super) away_total: Duration,
    /// It is to be killed in the middle of carrying out its next commands.
    pub(super) doomed: bool,
}

/// Whether the supervisor runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Away {
    No,
    /// Stopped, suspended or starved since then; what comes in waits for it.
    Asleep(JobTime),
    /// Gone since then; what comes in is lost.
    Gone(JobTime),
}

impl Sim<'_> {
    /// The supervisor starts: for the first time, or with what an earlier one has left in the log.
    pub(super) fn boot(&mut self) {
        let fresh = self.supervisor.life == 0;
        self.supervisor.life += 1;
        self.supervisor.mailbox = Mailbox::new(self.config.checks.clone());
        if fresh {
            if !self.scene.observed {
                self.first_start_may_fail();
            }
            self.orders_may_come_early();
        } else {
            let snapshot = self.supervisor.kernel.snapshot();
            if let Ok((kernel, _cold)) = Kernel::restore(self.plugins(), &snapshot) {
                self.supervisor.kernel = kernel.with_checks(self.config.checks.clone());
            }
            self.log.restored();
            self.links_begin_anew();
        }
        self.returns();
        self.wire.cut();
        let at = self.now + self.dice.ms(1, 200);
        self.queue.push(at, Event::Listed { life: self.supervisor.life });
        self.supervisor.mailbox.push(Input::Start(Box::new(Start {
            spec: self.scene.spec.clone(),
            trace: Some(Mode::Native),
            meets_at: None,
        })));
    }

    /// The supervisor has slept and runs again. A short sleep goes unnoticed.
    pub(super) fn wake(&mut self) {
        let Away::Asleep(since) = self.supervisor.away else { return };
        self.returns();
        let slept = self.now.since(since);
        if slept > self.scene.spec.policy.slept_over {
            let nanos = u64::try_from(slept.as_nanos()).unwrap_or(u64::MAX);
            self.supervisor.mailbox.push_first(Input::Slept { nanos });
        }
    }

    fn returns(&mut self) {
        if let Away::Asleep(since) | Away::Gone(since) = self.supervisor.away {
            self.supervisor.away_total += self.now.since(since);
        }
        self.supervisor.away = Away::No;
    }

    /// How long the supervisor has been away until now.
    pub(super) fn away_total(&self) -> Duration {
        match self.supervisor.away {
            Away::No => self.supervisor.away_total,
            Away::Asleep(since) | Away::Gone(since) => self.supervisor.away_total + self.now.since(since),
        }
    }

    /// Whether something that is meant for this start of the supervisor reaches it at all.
    pub(super) fn hears(&self, life: u32) -> bool {
        life == self.supervisor.life && !matches!(self.supervisor.away, Away::Gone(_))
    }

    /// When the kernel wants to be called, if it can be.
    pub(super) fn kernel_due(&self) -> Option<JobTime> {
        (self.supervisor.away == Away::No).then(|| self.supervisor.kernel.deadline()).flatten()
    }

    /// Gives the kernel what waits for it.
    pub(super) fn supervise(&mut self) -> Result<(), Violation> {
        let mut steps = 0;
        while self.supervisor.away == Away::No {
            let deadline = self.supervisor.kernel.deadline();
            let Some((at, input)) = self.supervisor.mailbox.next(self.now, deadline) else { break };
            self.give(at, input)?;
            steps += 1;
            if steps > STEPS_AT_ONCE_MAX {
                return Err(Violation::Spins { at: self.now, deadline });
            }
        }
        Ok(())
    }

    /// One step of the kernel, watched.
    fn give(&mut self, now: JobTime, input: Input) -> Result<(), Violation> {
        let commands = self.supervisor.kernel.step(now, &input);
        self.log.entry(now, &input, &commands);
        let moment = Moment {
            now,
            input: &input,
            commands: &commands,
            kernel: &self.supervisor.kernel,
            fleet: &self.fleet,
            training: &self.training,
            loops: &self.loops,
            deeds: &self.deeds,
            away_total: self.away_total(),
            config: self.config,
        };
        self.audit.take(&moment)?;
        let acts = |c: &Command| matches!(c.action, Action::Start { .. } | Action::Stop { .. } | Action::Direct(_));
        let killed_at = if self.supervisor.doomed && commands.iter().any(acts) {
            self.dice.below(commands.len() + 1)
        } else {
            usize::MAX
        };
        for (index, command) in commands.into_iter().enumerate() {
            if index == killed_at {
                break;
            }
            self.carry_out(command);
        }
        if killed_at != usize::MAX {
            self.kill_supervisor();
        }
        Ok(())
    }

    /// What the shell does with a command.
    fn carry_out(&mut self, command: Command) {
        let life = self.supervisor.life;
        let soon = self.now + self.dice.ms(0, 4);
        match command.action {
            Action::Start { batch, .. } => {
                self.recovery_acts();
                self.says_what_is_past(&batch);
                let at = soon + self.launcher_delay();
                self.queue.push(at, Event::Start { life, id: command.id, batch: Box::new(batch) });
            }
            Action::Stop { procs, grace, .. } => {
                self.recovery_acts();
                self.stop_takes_time(&procs, grace);
                self.queue.push(soon, Event::Stop { procs, grace });
            }
            Action::Enter(world) => self.queue.push(soon, Event::Joins(world)),
            Action::Collect(ask) => self.collect(command.id, &ask),
            Action::Direct(batch) => {
                self.queue.push(soon, Event::Direct { life, id: command.id, batch: Box::new(batch) });
            }
            Action::Acknowledge(proc) => self.queue.push(soon, Event::Acknowledge(proc)),
            Action::Reply { order, result } => self.replied(order, &result),
            Action::Announce(_) | Action::Cordon { .. } | Action::Switch { .. } => {}
            Action::Finish { ok, .. } => self.finished = Some((self.now, ok)),
        }
    }

    /// The supervisor is killed; another one comes.
    pub(super) fn kill_supervisor(&mut self) {
        self.supervisor.doomed = false;
        if self.supervisor.away == Away::No {
            self.supervisor.away = Away::Gone(self.now);
            let at = self.now + self.dice.ms(100, 15_000);
            self.queue.push(at, Event::Boot);
        }
    }

    /// Answers a command: in parts, late, or twice, as the weather is.
    pub(super) fn answer(
        &mut self,
        life: u32,
        id: crate::job::CommandId,
        mut results: Vec<(Domain, Result<Output, Failure>)>,
        at: JobTime,
    ) {
        let mut parts = Vec::new();
        if self.dice.chance(self.weather.answer_in_parts) && results.len() > 1 {
            self.dice.shuffle(&mut results);
            let cut = 1 + self.dice.below(results.len() - 1);
            parts.push(results.split_off(cut));
        }
        parts.push(results);
        for results in parts {
            let at = at + self.dice.ms(0, 5);
            let input = Input::Answered { id, results };
            if self.dice.chance(self.weather.answer_twice) {
                let again = at + self.dice.ms(0, 5_000);
                self.queue.push(again, Event::Urgent { life, input: Box::new(input.clone()) });
            }
            self.queue.push(at, Event::Urgent { life, input: Box::new(input) });
        }
    }

    pub(super) fn request(&mut self, request: Request) {
        let input = Box::new(Input::Requested(request));
        self.queue.push(self.now, Event::Urgent { life: self.supervisor.life, input });
    }
}
