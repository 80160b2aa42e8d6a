//! A job without processes: kernel, and logs if a directory is given, receive synthetic observations.

use super::Failure;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use taskd_core::detect;
use taskd_core::job::{Domain, Generation, Incarnation, JobSpec, JobTime, Name, ProcId, Rank, Role, WorkerSpec};
use taskd_core::journal::{Header, Journal, JournalConfig};
use taskd_core::kernel::Effect;
use taskd_core::kernel::{Checks, Input, Kernel, Mailbox, Plugins, Start};
use taskd_core::launch::{Change, Listing, Phase, ProcStatus};
use taskd_core::recover::{Action, ExitStrategy, Restart, TargetReply};
use taskd_core::trace::{Fact, Signal};

/// Ranks whose facts arrive in one batch.
const RANKS_PER_BATCH: u32 = 500;
/// Time between two heartbeats of a rank, and between two of its steps.
const BEAT_EVERY: Duration = Duration::from_secs(1);
/// Time limit of a round for writing its last record.
const WRITE_WITHIN: Duration = Duration::from_secs(60);
/// A job that is running from the kernel's point of view.
pub(crate) struct Job {
    kernel: Kernel,
    mailbox: Mailbox,
    journal: Option<Journal>,
    ranks: u32,
    now: JobTime,
    step: u64,
}

impl Job {
    /// Creates a job all of whose ranks have been started, with logs if a directory is given.
    pub(crate) fn up(ranks: u32, logs: Option<&Path>) -> Result<Job, Failure> {
        let journal = logs.map(|dir| Journal::open(dir, header(ranks), JournalConfig::default())).transpose()?;
        let mut job = Job {
            kernel: Kernel::new(plugins()),
            mailbox: Mailbox::new(Checks::default()),
            journal: journal.map(|(journal, _)| journal),
            ranks,
            now: JobTime::START,
            step: 0,
        };
        let spec = Arc::new(JobSpec::new("bench", ranks, WorkerSpec::new(["train"])));
        job.give(Input::Start(Box::new(Start { spec, trace: None, rendezvous_service: None, resume: None })));
        let start = job.give(Input::Listed(Listing::default())).ok_or("the kernel starts nothing")?;
        let accepted = (0..ranks).map(|rank| (domain(rank), Ok(TargetReply::Accepted))).collect();
        job.give(Input::Answered { id: start, results: accepted });
        for rank in 0..ranks {
            let (proc, instance) = (ProcId::rank(rank, 1), Name::new("host"));
            let status = ProcStatus::new(proc, instance, Phase::Running).with_pid(rank + 1);
            job.give(Input::Changed(Change::Proc(status)));
        }
        Ok(job)
    }

    /// Returns the kernel; the logs are closed.
    pub(crate) fn into_kernel(self) -> Kernel {
        self.kernel
    }

    /// Gives the kernel an input, and returns the id of a start if it orders one.
    fn give(&mut self, input: Input) -> Option<taskd_core::job::CommandId> {
        self.mailbox.push(input);
        self.run()
    }

    /// Steps the kernel with all pending inputs, as the shell does.
    fn run(&mut self) -> Option<taskd_core::job::CommandId> {
        let mut start = None;
        while let Some((now, input)) = self.mailbox.next(self.now, self.kernel.deadline()) {
            let commands = self.kernel.step(now, &input);
            if let Some(journal) = &mut self.journal {
                journal.append(self.kernel.seq(), now, &input, &commands);
                if journal.snapshot_due() {
                    journal.snapshot(&self.kernel.snapshot());
                }
            }
            let ordered = commands.iter().find(|c| matches!(c.effect, Effect::Act(Action::Start { .. })));
            start = start.or(ordered.map(|command| command.id));
        }
        start
    }

    /// Feeds `observations` observations, rounded up to whole batches.
    pub(crate) fn feed(&mut self, observations: u32) {
        let mut left = observations;
        while left > 0 {
            self.now = self.now + BEAT_EVERY;
            self.step += 1;
            for first in (0..self.ranks).step_by(RANKS_PER_BATCH as usize) {
                let ranks = first..self.ranks.min(first + RANKS_PER_BATCH);
                let step = self.step;
                let facts =
                    ranks.flat_map(|rank| [Signal::Heartbeat, Signal::Progress { step }].map(|s| fact(rank, s)));
                let observed: Vec<_> = facts.map(|fact| fact.into_observation(self.now)).collect();
                left = left.saturating_sub(u32::try_from(observed.len()).unwrap_or(u32::MAX));
                self.mailbox.push_facts(self.now, observed);
                self.run();
            }
        }
    }

    /// Waits until all records are written. Fails if the kernel has not taken all facts.
    pub(crate) fn settle(&self) -> Result<(), Failure> {
        let taken =
            |rank| self.kernel.view().proc(&Role::Rank(Rank(rank))).is_some_and(|proc| proc.step == Some(self.step));
        if let Some(rank) = (0..self.ranks).find(|rank| !taken(*rank)) {
            return Err(format!("the kernel has not taken the facts about rank {rank}").into());
        }
        let Some(journal) = &self.journal else { return Ok(()) };
        let settled = journal.flush(WRITE_WITHIN);
        match journal.counts().lost {
            0 if settled => Ok(()),
            0 => Err(format!("the logs were not written within {WRITE_WITHIN:?}").into()),
            lost => Err(format!("the logs lost {lost} records: the disk is full, or far too slow").into()),
        }
    }
}

fn domain(rank: u32) -> Domain {
    Domain::Process(Role::Rank(Rank(rank)))
}

fn fact(rank: u32, signal: Signal) -> Fact {
    Fact::new(domain(rank), signal).with_incarnation(Incarnation(1)).with_generation(Generation(1))
}

pub(crate) fn plugins() -> Plugins {
    Plugins { detectors: detect::defaults(), strategies: vec![Box::new(Restart::new()), Box::new(ExitStrategy::new())] }
}

/// Returns the header of the logs.
pub(crate) fn header(ranks: u32) -> Header {
    Header { job: Name::new("bench"), job_id: "1".into(), ranks, started_unix_ms: 0, plugins: Vec::new() }
}
