//! Invariants, checked after every step of the kernel.
//!
//! Each invariant is one file. It judges from the kernel's inputs, its commands, and the true state of the world; it
//! never reads the kernel's reasoning. Their order matters: the first broken invariant names the violation.
//!
//! | file | invariant |
//! |---|---|
//! | `order` | time never goes back; there are no commands after the end |
//! | `exclusion` | no two recoveries touch one domain at the same time |
//! | `incarnations` | no process starts twice; no two wanted processes of one rank are alive at the same time |
//! | `stages` | a start succeeds only when its ranks really exist |
//! | `reasons` | every action belongs to an incident or a request |
//! | `budget` | every recovery takes a token |
//! | `blame` | only ranks with an injected fault are blamed |
//! | `answers` | every injected fault is decided about in time |
//! | `orders` | every order is answered once, drained hosts stay unused, decisions are held when required |
//! | `observing` | in a job that is only observed no process is touched |
//! | `directives` | processes receive only directives that they can carry out, in order; no stage waits for a process that cannot reply |
//! | `kept` | a recovery does not stop the processes that it keeps, and starts only ranks that were lost |
//! | `replicas` | ranks that begin together have the state of one step, and the newest that survived |
//! | `drops` | everything that must be dropped is dropped, and counted |

mod answers;
mod blame;
mod books;
mod budget;
mod directives;
mod drops;
mod exclusion;
mod incarnations;
mod kept;
mod observing;
mod order;
mod orders;
mod reasons;
mod replicas;
mod stages;

use super::SimConfig;
use super::chaos::Deeds;
use super::fleet::Fleet;
use super::outcome::Violation;
use super::step_loop::Loops;
use super::training::Training;
use crate::job::{IncidentId, JobTime};
use crate::kernel::{Command, Input, Kernel};
use books::Books;
use std::time::Duration;

/// One step of the kernel, with the true state of the world.
pub(super) struct Moment<'a> {
    pub(super) now: JobTime,
    pub(super) input: &'a Input,
    pub(super) commands: &'a [Command],
    /// The kernel after the step.
    pub(super) kernel: &'a Kernel,
    pub(super) fleet: &'a Fleet,
    pub(super) training: &'a Training,
    pub(super) loops: &'a Loops,
    pub(super) deeds: &'a Deeds,
    pub(super) away_total: Duration,
    pub(super) config: &'a SimConfig,
}

/// All invariants of one job.
#[derive(Debug, Default)]
pub(super) struct Audit {
    books: Books,
    order: order::Order,
    incarnations: incarnations::Incarnations,
    stages: stages::Stages,
    reasons: reasons::Reasons,
    budget: budget::Budget,
    answers: answers::Answers,
    orders: orders::Orders,
    directives: directives::Directives,
    kept: kept::Kept,
    replicas: replicas::Replicas,
    drops: drops::Drops,
}

impl Audit {
    /// Judges one step.
    pub(super) fn take(&mut self, m: &Moment<'_>) -> Result<(), Violation> {
        self.order.check(m)?;
        self.drops.input(m);
        self.budget.pass(m, &self.books);
        self.reasons.input(m, &self.books);
        self.orders.input(m)?;
        self.directives.input(m);
        if !m.commands.is_empty() {
            for command in m.commands {
                observing::check(m, command)?;
                self.orders.check(m, command, &self.books)?;
                exclusion::check(m, command, &self.books)?;
                self.incarnations.check(m, command)?;
                self.stages.check(m, command)?;
                self.reasons.check(m, command, &self.books)?;
                self.budget.check(m, command, &self.books)?;
                blame::check(m, command)?;
                self.answers.command(m, command);
                self.directives.command(m, command)?;
                self.kept.check(m, command)?;
                self.replicas.check(m, command)?;
                self.drops.command(command, &self.books);
                self.books.enter(command);
            }
        }
        self.orders.step_done()?;
        self.directives.step_done(m)?;
        self.answers.check(m)?;
        self.budget.reported = m.kernel.budget_left();
        if m.config.drops_at_once { self.drops.check(m.kernel) } else { Ok(()) }
    }

    /// Judges ranks that begin to train together.
    pub(super) fn gang_forms(&self, training: &Training, loops: &Loops) -> Result<(), Violation> {
        replicas::gang_forms(training, loops)
    }

    /// Judges the kernel's own counters at the end of its life.
    pub(super) fn end(&self, kernel: &Kernel) -> Result<(), Violation> {
        self.drops.check(kernel)
    }

    /// Returns true if a recovery of an open incident has failed.
    pub(super) fn has_failed_attempts(&self) -> bool {
        self.books.has_failed_attempts()
    }

    /// Returns true if a recovery of the incident has begun.
    pub(super) fn has_begun(&self, incident: IncidentId) -> bool {
        self.books.begun.contains(&incident)
    }

    /// Returns true if the incident contains only an operator's order.
    pub(super) fn is_wish(&self, incident: IncidentId) -> bool {
        !self.books.real.contains(&incident)
    }

    /// Returns the number of open incidents.
    pub(super) fn open_incidents(&self) -> usize {
        self.books.open.len()
    }
}
