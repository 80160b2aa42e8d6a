//! The kills: the process, its moment, and the expected behavior of the job.
//!
//! It receives kind and dice, and finds its victims from outside, as any process could.

use super::account::Kill;
use super::job::{Awaits, Job};
use super::plan::{Injection, Kind, is_to_keep};
use crate::outside::census::{Part, Process, imports_torch, is_listened_at};
use crate::outside::decks::within_ms;
use crate::outside::job::Watched;
use crate::outside::notes::{Victim, now_ns};
use rand::RngExt;
use rand::rngs::StdRng;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::io;
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use taskd_examples::digits::RANKS;
use taskd_examples::program::Failure;

/// Minimum and maximum time of training between two faults, in milliseconds.
const BETWEEN_MS: (u64, u64) = (200, 1500);
/// Maximum time until a process is killed, from its start, or from its first mapped library of torch, in milliseconds.
const SPAWNED_MS_MAX: u64 = 100;
const IMPORTING_MS_MAX: u64 = 1000;
/// Typical time until ranks have stopped, and until new ones train, in milliseconds.
const STOPPING_MS_MAX: u64 = 300;
const STARTING_MS_MAX: u64 = 5000;
/// Time limit of a wait for a checkpoint: one is written every few steps.
const CHECKPOINT_WITHIN: Duration = Duration::from_secs(20);
/// Time limit for the end of a job whose supervisor has died and whose guard does not keep it.
const GONE_BOUND_MS: f64 = 1000.0;

impl Job<'_> {
    /// Carries out one injection; `after` are the ones to come.
    pub(crate) async fn inject(&mut self, injection: Injection, after: &[Injection]) -> Result<(), Failure> {
        let (kind, mut dice) = (injection.kind, injection.dice());
        if kind.is_at_start_up() {
            return self.hit_at_start_up(kind, &mut dice).await;
        }
        self.trains().await?;
        self.pass(within_ms(&mut dice, BETWEEN_MS.0, BETWEEN_MS.1)).await;
        let ranks = self.all_ranks().await?;
        let any = dice.random_range(0..ranks.len());
        match kind {
            Kind::TwoAtOnce => {
                let other = (any + dice.random_range(1..ranks.len())) % ranks.len();
                self.strike(kind, &[ranks[any].clone(), ranks[other].clone()]);
            }
            Kind::RankZero => self.strike(kind, &ranks[..1]),
            Kind::Checkpoint => self.hit_checkpoint(&ranks[0]).await?,
            Kind::TwiceInASecond => self.hit_twice(&ranks[any]).await?,
            Kind::SupervisorKeep => self.hit_supervisor_kept(&ranks, after).await?,
            Kind::SupervisorMidRecovery | Kind::GuardMidRecovery => {
                self.strike(Kind::MidStep, &ranks[any..=any]);
                self.hit_mid_recovery(kind, &ranks, after, &mut dice).await?;
            }
            Kind::SupervisorKillTree => self.hit_supervisor(&ranks, after).await?,
            Kind::Guard => self.hit_guard(kind, &ranks)?,
            Kind::SupervisorAndGuard => {
                let supervisor = self.supervised.supervisor()?;
                self.hit_guard(kind, &ranks)?;
                supervisor.signal(Signal::KILL)?;
                self.books.one_more_signal();
                self.supervised.bury_supervisor().await?;
                self.supervised.start_supervisor(is_to_keep(after))?;
            }
            _ => self.strike(kind, &ranks[any..=any]),
        }
        Ok(())
    }

    /// Returns all ranks of the newest generation, in order.
    async fn all_ranks(&mut self) -> Result<Vec<Process>, Failure> {
        self.until("all ranks ran", |job| Some(job.ranks()).filter(|ranks| ranks.len() == RANKS as usize)).await
    }

    /// Kills ranks, all of one generation.
    fn strike(&mut self, kind: Kind, ranks: &[Process]) {
        let at_ns = now_ns();
        let killed = ranks.iter().filter(|rank| rank.signal(Signal::KILL).is_ok()).count();
        if killed > 0 {
            self.book(kind, victims(ranks), killed, generation(ranks), at_ns);
        }
    }

    fn book(&mut self, kind: Kind, victims: Vec<Victim>, signals: usize, generation: u64, at_ns: u64) {
        let awaits = if kind == Kind::SupervisorKeep { Awaits::NextOwner } else { Awaits::After(generation) };
        let signals = signals.try_into().unwrap_or(u32::MAX);
        let named = BTreeSet::new();
        self.struck(Kill { kind, victims, signals, named, at_ns, seen_ns: None, again_ns: None }, awaits);
    }

    /// Kills a rank of the start that is under way; if the job trains, it first kills a rank to cause a start.
    async fn hit_at_start_up(&mut self, kind: Kind, dice: &mut StdRng) -> Result<(), Failure> {
        if self.awaits.is_none() {
            self.pass(within_ms(dice, BETWEEN_MS.0, BETWEEN_MS.1)).await;
            let ranks = self.all_ranks().await?;
            let any = dice.random_range(0..ranks.len());
            self.strike(Kind::MidStep, &ranks[any..=any]);
        }
        let Some(Awaits::After(before)) = self.awaits else { return Ok(()) };
        let rank = dice.random_range(0..RANKS);
        let there = |process: &Process| match process.part {
            Part::Rank { victim, generation, port } => {
                let come_to = match kind {
                    Kind::StartImport => imports_torch(process.pid),
                    Kind::StartRendezvous => is_listened_at(port),
                    _ => true,
                };
                victim.rank == rank && generation > before && come_to
            }
            _ => false,
        };
        let victim = self.until("the start reached this phase", |job| job.ranks().into_iter().find(there)).await?;
        self.pass(match kind {
            Kind::StartSpawn => within_ms(dice, 0, SPAWNED_MS_MAX),
            Kind::StartImport => within_ms(dice, 0, IMPORTING_MS_MAX),
            _ => Duration::ZERO,
        })
        .await;
        let trains = self.last.is_some_and(|line| line.generation >= generation(std::slice::from_ref(&victim)));
        self.strike(if trains { Kind::MidStep } else { kind }, &[victim]);
        Ok(())
    }

    async fn hit_checkpoint(&mut self, writer: &Process) -> Result<(), Failure> {
        let (dir, victim) = (self.digits.out.clone(), writer.clone());
        let killed = tokio::task::spawn_blocking(move || kill_at_checkpoint(&dir, &victim)).await??;
        let Some(at_ns) = killed else {
            self.say("no checkpoint was written, or its writer was gone: no rank was hit");
            return Ok(());
        };
        let rank = std::slice::from_ref(writer);
        self.book(Kind::Checkpoint, victims(rank), 1, generation(rank), at_ns);
        if is_torn(&self.digits.out) {
            self.books.findings.checkpoints_torn += 1;
        }
        Ok(())
    }

    async fn hit_twice(&mut self, rank: &Process) -> Result<(), Failure> {
        let first = now_ns();
        self.strike(Kind::TwiceInASecond, std::slice::from_ref(rank));
        let Some((Victim { rank, incarnation }, _)) = rank.rank() else { return Ok(()) };
        let is_successor = |p: &Process| p.rank().is_some_and(|(v, _)| v.rank == rank && v.incarnation > incarnation);
        let successor =
            self.until("the rank's successor ran", |job| job.ranks().into_iter().find(is_successor)).await?;
        self.strike(Kind::TwiceInASecond, &[successor]);
        if now_ns() - first <= 1_000_000_000 {
            self.books.findings.twice_in_a_second += 1;
        }
        Ok(())
    }

    async fn hit_supervisor_kept(&mut self, ranks: &[Process], after: &[Injection]) -> Result<(), Failure> {
        let at_ns = now_ns();
        self.supervised.supervisor()?.signal(Signal::KILL)?;
        self.book(Kind::SupervisorKeep, Vec::new(), 1, generation(ranks), at_ns);
        self.supervised.bury_supervisor().await?;
        self.supervised.start_supervisor(is_to_keep(after))?;
        self.trains().await?;
        let now = self.ranks();
        self.books.findings.not_kept += ranks.iter().filter(|rank| !now.iter().any(|p| p.pid == rank.pid)).count();
        Ok(())
    }

    /// Hits in half of the cases while ranks are being stopped and started, otherwise at any moment until they train.
    async fn hit_mid_recovery(
        &mut self,
        kind: Kind,
        before: &[Process],
        after: &[Injection],
        dice: &mut StdRng,
    ) -> Result<(), Failure> {
        let ms_max = if dice.random() { STOPPING_MS_MAX } else { STARTING_MS_MAX };
        self.pass(within_ms(dice, 0, ms_max)).await;
        if kind == Kind::GuardMidRecovery {
            return self.hit_guard(kind, before);
        }
        let at_ns = now_ns();
        self.supervised.supervisor()?.signal(Signal::KILL)?;
        self.book(kind, Vec::new(), 1, generation(before), at_ns);
        self.supervised.bury_supervisor().await?;
        self.supervised.start_supervisor(is_to_keep(after))
    }

    async fn hit_supervisor(&mut self, ranks: &[Process], after: &[Injection]) -> Result<(), Failure> {
        let (at_ns, began) = (now_ns(), Instant::now());
        self.supervised.supervisor()?.signal(Signal::KILL)?;
        self.book(Kind::SupervisorKillTree, victims(ranks), 1, generation(ranks), at_ns);
        self.supervised.bury_supervisor().await?;
        let is_gone =
            |job: &mut Job<'_>| job.supervised.census.take().iter().all(|p| p.state == 'Z').then(|| began.elapsed());
        let gone_ms = self.until("all processes of the job were gone", is_gone).await?.as_secs_f64() * 1e3;
        let findings = &mut self.books.findings;
        findings.gone_ms_max = findings.gone_ms_max.max(gone_ms);
        findings.gone_late += u32::from(gone_ms > GONE_BOUND_MS);
        self.supervised.start_supervisor(is_to_keep(after))
    }

    /// `ranks` are those before the recovery, if there is one: then their successors die with the guard.
    fn hit_guard(&mut self, kind: Kind, ranks: &[Process]) -> Result<(), Failure> {
        let guard = self.supervised.census.take().into_iter().find(|p| p.part == Part::Guard && p.state != 'Z');
        let at_ns = now_ns();
        guard.ok_or("there is no guard")?.signal(Signal::KILL)?;
        let mut fallen = victims(ranks);
        if kind == Kind::GuardMidRecovery {
            fallen.iter_mut().for_each(|victim| victim.incarnation += 1);
        }
        self.book(kind, fallen, 1, generation(ranks), at_ns);
        Ok(())
    }
}

fn victims(ranks: &[Process]) -> Vec<Victim> {
    ranks.iter().filter_map(|p| Some(p.rank()?.0)).collect()
}

fn generation(ranks: &[Process]) -> u64 {
    ranks.iter().filter_map(|p| Some(p.rank()?.1)).max().unwrap_or_default()
}

/// Kills the writer as soon as it has opened a new checkpoint, and returns the time. Blocks.
fn kill_at_checkpoint(dir: &Path, writer: &Process) -> io::Result<Option<u64>> {
    let watch = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
    inotify::add_watch(&watch, dir, inotify::WatchFlags::CREATE)?;
    let until = Instant::now() + CHECKPOINT_WITHIN;
    let mut buffer = [MaybeUninit::uninit(); 4096];
    loop {
        let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).map_err(io::Error::other)?;
        if poll(&mut [PollFd::new(&watch, PollFlags::IN)], Some(&left))? == 0 {
            return Ok(None);
        }
        let mut events = inotify::Reader::new(&watch, &mut buffer);
        while let Ok(event) = events.next() {
            if event.file_name().is_some_and(|name| name.to_bytes().ends_with(b".tmp")) {
                let at_ns = now_ns();
                return Ok(writer.signal(Signal::KILL).ok().map(|()| at_ns));
            }
        }
    }
}

/// Returns true if there is an incomplete checkpoint.
fn is_torn(dir: &Path) -> bool {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).any(|path: PathBuf| path.extension().is_some_and(|e| e == "tmp"))
}
