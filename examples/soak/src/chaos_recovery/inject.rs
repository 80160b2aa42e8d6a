//! The faults: the victim, the moment and the kind of each.
//!
//! It receives kind and dice, and finds its victims from outside, as any process could.

use super::fire::Fire;
use super::kind::Kind;
use crate::outside::census::{Part, Process};
use crate::outside::decks::within_ms;
use crate::outside::job::Watched;
use rand::RngExt;
use rand::rngs::StdRng;
use rustix::process::{Pid, Signal};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};
use taskd_examples::hosts::kill_host_of;
use taskd_examples::program::Failure;
use taskd_examples::recover::{Strategy, cut, now};

/// Maximum time from the start of a recovery until it is hit, in milliseconds: half of the faults hit while ranks
/// abort, the others at any moment.
const SOON_MS_MAX: u64 = 100;
const LATER_MS_MAX: u64 = 1500;
/// How long the script may take to carry out an order.
const STRUCK_WITHIN: Duration = Duration::from_secs(20);
/// Maximum time from a rank's commit until a rank is killed, in milliseconds: the script waits there for 500.
const COMMIT_MS_MAX: u64 = 400;

impl Fire<'_> {
    /// Injects a fault; returns the time of its last part. `None`: there was no process to hit, or the script has not
    /// carried out its order.
    pub(crate) async fn inject(&mut self, kind: Kind, dice: &mut StdRng) -> Result<Option<f64>, Failure> {
        let least = if self.job.strategy.keeps_world() { self.job.ranks as usize } else { 1 };
        let ranks = self.until("the ranks ran", |fire| Some(fire.ranks()).filter(|ranks| ranks.len() >= least)).await?;
        let living: Vec<u32> = ranks.keys().copied().collect();
        let at = dice.random_range(0..living.len());
        let next = dice.random_range(1..self.job.ranks as usize); // in a smaller world this can be the same rank
        let (any, other) = (living[at], living[(at + next) % living.len()]);
        let at = match kind {
            Kind::Kill => self.kill(&ranks, &[any]),
            Kind::RankZero => self.kill(&ranks, &[0]),
            Kind::TwoAtOnce => self.kill(&ranks, &[any, other]),
            Kind::AllAtOnce => self.kill(&ranks, &(0..self.job.ranks).collect::<Vec<u32>>()),
            Kind::Stop => self.signal(&ranks, &[any], Signal::STOP),
            Kind::Exception => self.order(any, "exception").await?,
            Kind::Collective => self.order(any, "collective").await?,
            Kind::Nan => self.order(any, "nan").await?,
            Kind::Cut => self.cut(&ranks, any),
            Kind::Store => self.kill_part(&Part::Store),
            Kind::Standby => self.kill_part(&Part::Standby),
            Kind::Guard => self.kill_host(&ranks, any),
            Kind::MidDump => self.mid_dump(&ranks, any, other).await?,
            Kind::BetweenCommits => self.between_commits(&ranks, any, other, dice).await?,
            Kind::MidRecovery => self.mid_recovery(&ranks, any, dice).await?,
            Kind::Supervisor => self.supervisor().await?,
            Kind::SupervisorMidRecovery => {
                if self.first_blow(&ranks, any).await?.is_none() {
                    return Ok(None);
                }
                self.pass(mid(dice)).await;
                self.supervisor().await?
            }
        };
        Ok(at)
    }

    fn kill(&mut self, ranks: &BTreeMap<u32, Process>, victims: &[u32]) -> Option<f64> {
        self.signal(ranks, victims, Signal::KILL)
    }

    fn signal(&mut self, ranks: &BTreeMap<u32, Process>, victims: &[u32], signal: Signal) -> Option<f64> {
        let at = now();
        let mut hit = false;
        for rank in victims {
            if ranks.get(rank).is_some_and(|process| process.signal(signal).is_ok()) {
                *self.account.positions.entry(*rank).or_default() += 1;
                self.account.faults += 1;
                hit = true;
            }
        }
        hit.then_some(at)
    }

    fn kill_part(&mut self, part: &Part) -> Option<f64> {
        let process =
            self.supervised.census.take().into_iter().find(|process| process.part == *part && process.state != 'Z')?;
        let at = now();
        process.signal(Signal::KILL).ok()?;
        self.account.faults += 1;
        Some(at)
    }

    /// Kills the guard of a rank's host.
    fn kill_host(&mut self, ranks: &BTreeMap<u32, Process>, rank: u32) -> Option<f64> {
        let (pid, at) = (Pid::from_raw(ranks.get(&rank)?.pid)?, now());
        kill_host_of(pid).ok()?;
        self.account.faults += 1;
        Some(at)
    }

    /// Kills a rank, and another one as soon as a rank has begun a checkpoint.
    async fn mid_dump(&mut self, ranks: &BTreeMap<u32, Process>, any: u32, other: u32) -> Result<Option<f64>, Failure> {
        let before = begun(&self.job.dir);
        let Some(first) = self.kill(ranks, &[any]) else { return Ok(None) };
        let began = Instant::now();
        while begun(&self.job.dir).is_subset(&before) {
            if began.elapsed() > STRUCK_WITHIN {
                return Ok(Some(first)); // no rank saved its state: another strategy recovered the job
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(self.kill(ranks, &[other]).or(Some(first)))
    }

    async fn supervisor(&mut self) -> Result<Option<f64>, Failure> {
        let at = now();
        self.replace_supervisor().await?;
        self.account.faults += 1;
        Ok(Some(at))
    }

    fn cut(&mut self, ranks: &BTreeMap<u32, Process>, rank: u32) -> Option<f64> {
        let pid = |rank: u32| Pid::from_raw(ranks.get(&rank)?.pid);
        let (one, next) = (pid(rank)?, pid((rank + 1) % self.job.ranks)?);
        let at = now();
        match cut(one, next) {
            Ok(connections) if connections > 0 => {}
            Ok(_) => return None,
            Err(error) => {
                self.say(&format!("connections of rank {rank} cannot be cut: {error}"));
                return None;
            }
        }
        self.account.faults += 1;
        *self.account.positions.entry(rank).or_default() += 1;
        Some(at)
    }

    /// Orders the script to cause the fault `name` in a later step; returns the time of the fault.
    async fn order(&mut self, rank: u32, name: &str) -> Result<Option<f64>, Failure> {
        let path = |what: &str| self.job.dir.join(format!("{what}.{rank}"));
        let (fault_file, new, struck) = (path("fault"), path("fault.new"), path("struck"));
        fs::write(&new, name)?;
        fs::rename(&new, &fault_file)?;
        let began = Instant::now();
        while began.elapsed() < STRUCK_WITHIN {
            if let Ok(at) = fs::read_to_string(&struck) {
                fs::remove_file(&struck)?;
                self.account.faults += 1;
                *self.account.positions.entry(rank).or_default() += 1;
                return Ok(Some(at.trim().parse()?));
            }
            self.pass(Duration::from_millis(2)).await;
        }
        let _ = fs::remove_file(&fault_file); // an error means that the script has taken it just now
        Ok(None)
    }

    /// One rank fails alone, before or during its commit, while the others commit; or it is held during its commit, and
    /// it, another rank, or both are killed.
    async fn between_commits(
        &mut self,
        ranks: &BTreeMap<u32, Process>,
        any: u32,
        other: u32,
        dice: &mut StdRng,
    ) -> Result<Option<f64>, Failure> {
        let alone = ["late", "torn"][dice.random_range(0..2)];
        if self.job.strategy == Strategy::Retry || dice.random_range(0..3) == 0 {
            return self.order(any, alone).await;
        }
        if self.order(any, "commit").await?.is_none() {
            return Ok(None);
        }
        self.pass(within_ms(dice, 0, COMMIT_MS_MAX)).await;
        let victims = [vec![any], vec![other], vec![any, other]];
        Ok(self.kill(ranks, &victims[dice.random_range(0..victims.len())]))
    }

    /// Injects a fault whose recovery is to be hit.
    async fn first_blow(&mut self, ranks: &BTreeMap<u32, Process>, any: u32) -> Result<Option<f64>, Failure> {
        if self.job.strategy == Strategy::Retry {
            self.order(any, "exception").await
        } else {
            Ok(self.kill(ranks, &[any]))
        }
    }

    async fn mid_recovery(
        &mut self,
        ranks: &BTreeMap<u32, Process>,
        any: u32,
        dice: &mut StdRng,
    ) -> Result<Option<f64>, Failure> {
        let Some(first) = self.first_blow(ranks, any).await? else { return Ok(None) };
        self.pass(mid(dice)).await;
        if self.job.strategy == Strategy::Retry {
            return Ok(self.kill_part(&Part::Store).or(Some(first)));
        }
        let there = self.ranks();
        let victims: Vec<u32> = there.keys().copied().collect();
        let Some(victim) = victims.get(dice.random_range(0..victims.len().max(1))) else { return Ok(Some(first)) };
        Ok(self.kill(&there, &[*victim]).or(Some(first)))
    }
}

/// Returns the checkpoints of a job, complete or not.
fn begun(dir: &Path) -> BTreeSet<OsString> {
    fs::read_dir(dir.join("dumps")).into_iter().flatten().flatten().map(|entry| entry.file_name()).collect()
}

fn mid(dice: &mut StdRng) -> Duration {
    let most = if dice.random() { SOON_MS_MAX } else { LATER_MS_MAX };
    within_ms(dice, 0, most)
}
