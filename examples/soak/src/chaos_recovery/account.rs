//! The account of a soak run: the faults, their consequences, and everything that should not have happened.
//!
//! It never touches a job.

use super::growth::Grown;
use super::kind::Kind;
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use taskd_examples::program::Failure;
use taskd_examples::recover::Strategy;
use taskd_examples::samples::Samples;

/// Descriptors, and threads, that a process may hold for each abandoned group that has not ended yet.
const EACH_GROUP_MAX: i64 = 5;
/// Additional variation of both that is tolerated.
const BESIDES: i64 = 16;
/// Tolerated growth of a process's memory from its first recoveries to its last, in KiB.
const RSS_GROWTH_KIB_MAX: i64 = 64 << 10;

/// Kinds of children (`children.py`) that may be left without control groups, when a rank ends or the guard is killed:
/// they have an environment and a session of their own, and their parents have ended.
const ESCAPES: [&str; 4] = ["session", "daemon", "other-user", "chain"];

/// The result of one job.
#[derive(Debug, Serialize)]
pub(crate) struct JobAccount {
    pub(crate) strategy: Strategy,
    #[serde(skip)]
    pub(crate) dir: PathBuf,
    /// Faults that were requested.
    pub(crate) wanted: u32,
    /// Faults that were injected; a kill of two ranks at once counts as two.
    pub(crate) faults: u32,
    /// Injections by kind.
    pub(crate) kinds: BTreeMap<Kind, u32>,
    /// Faults by rank.
    pub(crate) positions: BTreeMap<u32, u32>,
    /// How incidents ended.
    pub(crate) how: BTreeMap<String, u32>,
    /// Faults after which not all ranks completed a step within the bound.
    pub(crate) stalls: u32,
    /// The error because of which the job did not complete.
    pub(crate) failed: Option<String>,
    /// From each fault to the first step that all ranks have completed after it.
    #[serde(serialize_with = "in_short")]
    pub(crate) ms: Vec<f64>,
    pub(crate) orphans: usize,
    pub(crate) zombies: usize,
    /// Children that have outlived their ranks, by kind; and by the fault that preceded.
    pub(crate) left: BTreeMap<&'static str, usize>,
    pub(crate) left_after: BTreeMap<String, usize>,
    /// True if all guards had a control group: without one, children of the kinds in [`ESCAPES`] may be left.
    pub(crate) contained: bool,
    /// The newest step.
    pub(crate) steps: u64,
    #[serde(skip)]
    pub(crate) ended_at: Option<u64>,
    pub(crate) steps_compared: usize,
    pub(crate) state_equal: bool,
    pub(crate) loss_bit_equal: bool,
    /// True if all ranks have ended with the same parameters, for a job whose world was smaller for a while: nothing
    /// else of it is compared.
    pub(crate) replicas_equal: bool,
    pub(crate) differences: Vec<String>,
    pub(crate) grown: Grown,
    pub(crate) abandoned_groups_max: u64,
}

fn in_short<S: Serializer>(ms: &[f64], to: S) -> Result<S::Ok, S::Error> {
    let samples: Samples = ms.iter().copied().collect();
    to.serialize_str(&samples.to_string())
}

impl JobAccount {
    /// Returns the result of the comparison with the undisturbed run as text.
    fn compared(&self) -> String {
        if !self.strategy.keeps_world() {
            let how = if self.replicas_equal { "the same" } else { "DIFFERENT" };
            return format!("  its world was smaller for a time; all ranks have ended with {how} parameters");
        }
        let equal = |so: bool| if so { "equal" } else { "DIFFERS" };
        let (state, loss, steps) = (equal(self.state_equal), equal(self.loss_bit_equal), self.steps_compared);
        format!("  as undisturbed in {steps} steps of single ranks: state {state}, loss {loss}")
    }

    /// Returns true if children have outlived their rank that must not.
    fn has_left_children(&self) -> bool {
        let may_be_left = |kind: &&'static str| !self.contained && ESCAPES.contains(kind);
        self.left.keys().any(|kind| !may_be_left(kind))
    }

    pub(crate) fn of(strategy: Strategy, dir: PathBuf, wanted: u32) -> JobAccount {
        JobAccount {
            strategy,
            dir,
            wanted,
            faults: 0,
            kinds: BTreeMap::new(),
            positions: BTreeMap::new(),
            how: BTreeMap::new(),
            stalls: 0,
            failed: None,
            ms: Vec::new(),
            orphans: 0,
            zombies: 0,
            left: BTreeMap::new(),
            left_after: BTreeMap::new(),
            contained: true,
            steps: 0,
            ended_at: None,
            steps_compared: 0,
            state_equal: false,
            loss_bit_equal: false,
            replicas_equal: true,
            differences: Vec::new(),
            grown: Grown::default(),
            abandoned_groups_max: 0,
        }
    }
}

/// The account.
#[derive(Debug, Serialize)]
pub(crate) struct Account {
    seed: u64,
    pub(crate) seconds: f64,
    faults: u32,
    stalls: u32,
    /// Jobs that did not complete.
    failed: usize,
    /// True if every step of every job that kept its world had the undisturbed run's state. Jobs that resume from a
    /// checkpoint are compared with a run of their own, in which gradients are summed in the same order by a new and by
    /// a resumed DDP.
    state_equal: bool,
    loss_bit_equal: bool,
    orphans: usize,
    zombies: usize,
    pub(crate) shm_left: Vec<String>,
    pub(crate) leaked_files: Vec<String>,
    rss_growth_kib: i64,
    fd_growth: i64,
    thread_growth: i64,
    abandoned_groups_max: u64,
    jobs: Vec<JobAccount>,
}

impl Account {
    pub(crate) fn of(seed: u64, jobs: Vec<JobAccount>) -> Account {
        let most = |of: fn(&Grown) -> i64| jobs.iter().map(|job| of(&job.grown)).max().unwrap_or(0);
        Account {
            seed,
            seconds: 0.0,
            faults: jobs.iter().map(|job| job.faults).sum(),
            stalls: jobs.iter().map(|job| job.stalls).sum(),
            failed: jobs.iter().filter(|job| job.failed.is_some()).count(),
            state_equal: jobs.iter().all(|job| job.state_equal || !job.strategy.keeps_world()),
            loss_bit_equal: jobs.iter().all(|job| job.loss_bit_equal || !job.strategy.keeps_world()),
            orphans: jobs.iter().map(|job| job.orphans).sum(),
            zombies: jobs.iter().map(|job| job.zombies).sum(),
            shm_left: Vec::new(),
            leaked_files: Vec::new(),
            rss_growth_kib: most(|grown| grown.rss_growth_kib),
            fd_growth: most(|grown| grown.fd_growth),
            thread_growth: most(|grown| grown.thread_growth),
            abandoned_groups_max: jobs.iter().map(|job| job.abandoned_groups_max).max().unwrap_or(0),
            jobs,
        }
    }

    /// Returns true if the jobs' files are needed for an investigation.
    pub(crate) fn wants_a_look(&self) -> bool {
        self.judge().is_err()
    }

    /// Returns the account as text.
    pub(crate) fn table(&self) -> String {
        let mut out = String::new();
        for job in &self.jobs {
            let samples: Samples = job.ms.iter().copied().collect();
            let _ = writeln!(
                out,
                "\n{:?}: {} faults, {} stalls; trained again after, ms: {samples}",
                job.strategy, job.faults, job.stalls
            );
            let _ = writeln!(out, "  kinds       {:?}", job.kinds);
            let _ = writeln!(out, "  positions   {:?}", job.positions);
            let _ = writeln!(out, "  how         {:?}", job.how);
            let _ = writeln!(out, "{}", job.compared());
            job.differences.iter().for_each(|line| _ = writeln!(out, "    {line}"));
            let Grown { rss_growth_kib, fd_growth, thread_growth, by, lived } = &job.grown;
            let _ = writeln!(out, "  growth      memory {rss_growth_kib} KiB ({})", by[0]);
            let _ =
                writeln!(out, "              descriptors {fd_growth} ({}), threads {thread_growth} ({})", by[1], by[2]);
            let _ = writeln!(out, "              recoveries survived by one process, at most: {lived:?}");
            let _ = writeln!(out, "  abandoned groups that still exist, at most: {}", job.abandoned_groups_max);
            if !job.left.is_empty() {
                let how = if job.contained { "" } else { " (without a control group)" };
                let _ = writeln!(out, "  children left{how}: {:?}, after {:?}", job.left, job.left_after);
            }
            if let Some(why) = &job.failed {
                let _ = writeln!(out, "  FAILED: {why}");
            }
        }
        let Account { orphans, zombies, shm_left, leaked_files, .. } = self;
        let _ = writeln!(
            out,
            "\norphans {orphans}, zombies {zombies}, shared memory left {shm_left:?}, files left {leaked_files:?}"
        );
        out
    }

    /// Checks that the run is as expected.
    ///
    /// # Errors
    /// What is not.
    pub(crate) fn judge(&self) -> Result<(), Failure> {
        let held = i64::try_from(self.abandoned_groups_max).unwrap_or(i64::MAX).saturating_mul(EACH_GROUP_MAX);
        let held = held.saturating_add(BESIDES);
        let wrong = [
            (self.jobs.iter().any(|job| job.faults < job.wanted), "not all faults were injected"),
            (self.stalls > 0, "a job stalled"),
            (self.failed > 0, "a job did not complete"),
            (!self.state_equal || !self.loss_bit_equal, "a job differs from the undisturbed run"),
            (self.jobs.iter().any(|job| !job.replicas_equal), "ranks of a job ended with different parameters"),
            (self.orphans + self.zombies > 0, "processes outlived their job"),
            (self.jobs.iter().any(JobAccount::has_left_children), "children of ranks outlived them"),
            (!self.shm_left.is_empty(), "shared memory was left"),
            (self.fd_growth > held, "descriptors grow with recoveries"),
            (self.thread_growth > held, "threads grow with recoveries"),
            (self.rss_growth_kib > RSS_GROWTH_KIB_MAX, "memory grows with recoveries"),
        ];
        let wrong: Vec<&str> = wrong.iter().filter(|(so, _)| *so).map(|(_, what)| *what).collect();
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ").into()) }
    }
}
