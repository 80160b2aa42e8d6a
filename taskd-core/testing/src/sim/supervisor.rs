//! The supervisor under test: the real kernel behind the real mailbox. It may be asleep, or gone and restarted.
//!
//! This module takes the part of the shell: it passes the kernel's commands to the launcher and the sources of this
//! world.

use super::audit::Moment;
use super::event::Event;
use super::outcome::Violation;
use super::world::World as Sim;
use crate::job::{Domain, JobTime};
use crate::kernel::Effect;
use crate::kernel::{Command, Input, Kernel, Mailbox, Request, Start};
use crate::recover::{Action, Failure, TargetReply};
use crate::trace::switches::Mode;
use std::time::Duration;

/// Largest number of kernel steps at one instant; beyond it, the kernel counts as spinning.
const STEPS_AT_ONCE_MAX: u32 = 200_000;

/// Wall-clock time at which a simulated job with a history of hosts begins, in milliseconds of Unix time.
const EPOCH_MS: u64 = 1_782_907_200_000;

/// The kernel, its mailbox, and whether it runs.
pub(super) struct Supervisor {
    pub(super) kernel: Kernel,
    pub(super) mailbox: Mailbox,
    /// Number of starts of the supervisor.
    pub(super) life: u32,
    pub(super) away: Away,
    /// Total time for which the supervisor was away.
    pub(super) away_total: Duration,
    /// True if the supervisor is to be killed while it carries out its next commands.
    pub(super) doomed: bool,
}

/// Whether the supervisor runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Away {
    No,
    /// The supervisor is stopped, suspended or starved since this time; its inputs wait.
    Asleep(JobTime),
    /// The supervisor is gone since this time; its inputs are lost.
    Gone(JobTime),
}

impl Sim<'_> {
    /// Starts the supervisor: for the first time, or with the log of an earlier one.
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
            self.links_begin_again();
        }
        self.returns();
        self.wire.cut();
        let at = self.now + self.dice.ms(1, 200);
        self.queue.push(at, Event::Listed { life: self.supervisor.life });
        self.supervisor.mailbox.push(Input::Start(Box::new(Start {
            spec: self.scene.spec.clone(),
            trace: Some(Mode::Native),
            rendezvous_service: None,
            resume: None,
        })));
        if let Some(history) = &self.config.host_history {
            let unix_ms = EPOCH_MS + u64::try_from(self.now.since(JobTime::START).as_millis()).unwrap_or(u64::MAX);
            self.supervisor.mailbox.push(Input::HostHistory(Box::new(history.clone())));
            self.supervisor.mailbox.push(Input::WallClock { unix_ms });
        }
    }

    /// Lets the supervisor run again after a sleep. A short sleep goes unnoticed.
    pub(super) fn wake(&mut self) {
        let Away::Asleep(since) = self.supervisor.away else { return };
        self.returns();
        let slept = self.now.since(since);
        if slept > self.scene.spec.policy.suspend_threshold {
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

    /// Returns how long the supervisor has been away in total.
    pub(super) fn away_total(&self) -> Duration {
        match self.supervisor.away {
            Away::No => self.supervisor.away_total,
            Away::Asleep(since) | Away::Gone(since) => self.supervisor.away_total + self.now.since(since),
        }
    }

    /// Returns true if an input for this start of the supervisor reaches it.
    pub(super) fn receives(&self, life: u32) -> bool {
        life == self.supervisor.life && !matches!(self.supervisor.away, Away::Gone(_))
    }

    /// Returns the kernel's deadline, if the kernel can be called.
    pub(super) fn kernel_due(&self) -> Option<JobTime> {
        (self.supervisor.away == Away::No).then(|| self.supervisor.kernel.deadline()).flatten()
    }

    /// Passes the waiting inputs to the kernel.
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

    /// Passes one input to the kernel, audits the commands that the kernel returns, and carries them out.
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
        let acts = |c: &Command| {
            matches!(
                c.effect,
                Effect::Act(Action::Start { .. })
                    | Effect::Act(Action::Stop { .. })
                    | Effect::Act(Action::SendDirectives(_))
            )
        };
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

    /// Carries out a command of the kernel in the simulated world, as the runtime does in the real one.
    fn carry_out(&mut self, command: Command) {
        let life = self.supervisor.life;
        let soon = self.now + self.dice.ms(0, 4);
        match command.effect {
            Effect::Act(Action::Start { batch, .. }) => {
                self.recovery_acts();
                self.reports_what_is_past(&batch);
                let at = soon + self.launcher_delay();
                self.queue.push(at, Event::Start { life, id: command.id, batch: Box::new(batch) });
            }
            Effect::Act(Action::Stop { procs, grace, .. }) => {
                self.recovery_acts();
                self.stop_takes_time(&procs, grace);
                self.queue.push(soon, Event::Stop { procs, grace });
            }
            Effect::Act(Action::Enter(world)) => self.queue.push(soon, Event::Joins(world)),
            Effect::Act(Action::Collect(ask)) => self.collect(command.id, &ask),
            Effect::Act(Action::SendDirectives(batch)) => {
                self.queue.push(soon, Event::Direct { life, id: command.id, batch: Box::new(batch) });
            }
            Effect::Acknowledge(proc) => self.queue.push(soon, Event::Acknowledge(proc)),
            Effect::Reply { order, result } => self.replied(order, &result),
            Effect::Publish(_) | Effect::Act(Action::Cordon { .. }) | Effect::Switch { .. } => {}
            Effect::Act(Action::Finish { ok, .. }) => self.finished = Some((self.now, ok)),
            Effect::Act(other) => panic!("the simulated shell has no handler for {other:?}"),
        }
    }

    /// Kills the supervisor, and schedules the start of the next one.
    pub(super) fn kill_supervisor(&mut self) {
        self.supervisor.doomed = false;
        if self.supervisor.away == Away::No {
            self.supervisor.away = Away::Gone(self.now);
            let at = self.now + self.dice.ms(100, 15_000);
            self.queue.push(at, Event::Boot);
        }
    }

    /// Answers a command: in parts, late, or twice, depending on the weather.
    pub(super) fn answer(
        &mut self,
        life: u32,
        id: crate::job::CommandId,
        mut results: Vec<(Domain, Result<TargetReply, Failure>)>,
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
