//! What must hold, checked after every step of the kernel.
//!
//! Each invariant is one file. It judges from what went into the kernel, what came out, and the world's truth; it never
//! asks the kernel why. Their order matters: the first that is broken names the violation.
//!
//! | file | what must hold |
//! |---|---|
//! | `order` | time never goes back; nothing is commanded after the end |
//! | `exclusion` | no two recoveries touch one domain at a time |
//! | `incarnations` | no process starts twice; no two wanted processes of one rank live at a time |
//! | `stages` | a start has only ended when its ranks are really there |
//! | `reasons` | nothing is done without an incident or a request |
//! | `budget` | no recovery without a token for it |
//! | `blame` | nobody is blamed who was not injected |
//! | `answers` | every injected fault is decided about in time |
//! | `orders` | every order is answered once, hosts that were left stay left, what has to be held is held |
//! | `observing` | in a job that is only observed no process is touched |
//! | `directives` | processes are told what they can do, in order; nobody waits for who cannot answer any more |
//! | `kept` | whom a recovery keeps it does not stop, and it starts nobody who was not lost |
//! | `replicas` | those who begin together have the state of one step, and the newest that lived |
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

/// One step of the kernel, with the truth beside it.
pub(super) struct Moment<'a> {
    pub(super) now: JobTime,
    pub(super) input: &'a Input,
    pub(super) commands: &'a [Command],
    /// As it is after the step.
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
        self.budget.told = m.kernel.budget_left();
        if m.config.drops_at_once { self.drops.check(m.kernel) } else { Ok(()) }
    }

    /// Judges ranks that begin to train together.
    pub(super) fn gang_forms(&self, training: &Training, loops: &Loops) -> Result<(), Violation> {
        replicas::gang_forms(training, loops)
    }

    /// Judges the kernel's own account at the end of its life.
    pub(super) fn end(&self, kernel: &Kernel) -> Result<(), Violation> {
        self.drops.check(kernel)
    }

    /// Whether an open incident has seen a recovery fail.
    pub(super) fn has_failed_attempts(&self) -> bool {
        self.books.has_failed_attempts()
    }

    /// Whether a recovery of an incident has begun.
    pub(super) fn has_begun(&self, incident: IncidentId) -> bool {
        self.books.begun.contains(&incident)
    }

    /// Whether all that was found of an incident is what an operator wants.
    pub(super) fn is_wish(&self, incident: IncidentId) -> bool {
        !self.books.real.contains(&incident)
    }

    /// Incidents that are open.
    pub(super) fn open_incidents(&self) -> usize {
        self.books.open.len()
    }
}
