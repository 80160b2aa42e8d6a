//! The training program as real processes under real kills: after all disturbances it ends in the same state.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitCode, ExitStatus, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use clap::Parser;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, Signal, kill_process, pidfd_open, setrlimit};
use taskd_examples::trainer::{self, TrainerOutcome, TrainerSettings, read_metrics};

const WORLD_SIZE: u32 = 4;
/// Time limit of each wait: only a stall takes longer, even on a loaded machine.
const STALLED: Duration = Duration::from_secs(60);

// ---- One rank -------------------------------------------------------------------------------------------------------

/// The command line of [`rank_process`], one argument a line.
const ARGS: &str = "TRAINER_TEST_ARGS";
/// The largest file that a rank can write, in bytes.
const FILE_LIMIT: &str = "TRAINER_TEST_FILE_LIMIT";

#[derive(Debug, Parser)]
struct RankArgs {
    #[command(flatten)]
    settings: TrainerSettings,
}

/// Runs as one rank if [`World`] has started this program again; in an ordinary test run it does nothing. Prints each
/// completed step on a line of its own.
#[test]
fn rank_process() {
    let Ok(args) = std::env::var(ARGS) else { return };
    if let Ok(limit) = std::env::var(FILE_LIMIT) {
        let at_most = |bytes| Rlimit { current: Some(bytes), maximum: Some(bytes) };
        setrlimit(Resource::Fsize, at_most(limit.parse().unwrap())).unwrap();
        setrlimit(Resource::Core, at_most(0)).unwrap();
    }
    let args = RankArgs::parse_from(["rank"].into_iter().chain(args.lines()));
    let exit = trainer::run_as_process(args.settings, |step| {
        let _ = writeln!(std::io::stdout(), "step {step}");
    });
    std::process::exit(if exit == ExitCode::SUCCESS { 0 } else { 1 });
}

// ---- All ranks of a generation --------------------------------------------------------------------------------------

/// The ranks of one generation, killed when this is dropped.
struct World {
    generation: u64,
    ranks: Vec<Child>,
    /// Output of rank 0.
    steps: BufReader<ChildStdout>,
    dir: PathBuf,
}

/// The special behavior of rank 0.
#[derive(Clone, Copy, PartialEq)]
enum Rank0 {
    Ordinary,
    /// A write of more than this many bytes into a file kills it, in the middle of the write.
    DiesBeyond(u64),
    /// A write of more than this many bytes into a file fails after as much as fits, as on a full disk.
    DiskFullBeyond(u64),
}

impl World {
    fn start(settings: &TrainerSettings, generation: u64, rank_0: Rank0) -> Self {
        let dir = settings.out_dir.clone();
        let mut ranks: Vec<Child> = (0..WORLD_SIZE)
            .map(|rank| {
                let mut command = rank_command(if rank == 0 { rank_0 } else { Rank0::Ordinary });
                let args = settings.to_args().into_iter().map(|arg| arg.into_string().unwrap());
                command.env(ARGS, args.collect::<Vec<_>>().join("\n"));
                command.env("TASKD_JOB", "test").env("TASKD_GENERATION", generation.to_string());
                command.env("TASKD_RANK", rank.to_string()).env("TASKD_WORLD_SIZE", WORLD_SIZE.to_string());
                command.stdin(Stdio::null()).stderr(File::create(stderr_path(&dir, generation, rank)).unwrap());
                command.stdout(if rank == 0 { Stdio::piped() } else { Stdio::null() });
                command.spawn().unwrap()
            })
            .collect();
        let steps = BufReader::new(ranks[0].stdout.take().unwrap());
        Self { generation, ranks, steps, dir }
    }

    /// Returns the next step that rank 0 completes; `None` if it completes none within `within` or has ended.
    fn next_step(&mut self, within: Duration) -> Option<u64> {
        loop {
            if self.steps.buffer().is_empty() && !readable(self.steps.get_ref(), within) {
                return None;
            }
            let mut line = String::new();
            if self.steps.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            // The test harness in the rank prints text of its own, also at the beginning of a line.
            if let Some((_, step)) = line.trim_end().rsplit_once("step ") {
                return Some(step.parse().unwrap());
            }
        }
    }

    fn after_steps(&mut self, count: u64) {
        for _ in 0..count {
            let step = self.next_step(STALLED);
            assert!(step.is_some(), "no step was completed: {}", self.stderr(0));
        }
    }

    fn signal(&self, rank: u32, signal: Signal) {
        kill_process(Pid::from_child(&self.ranks[rank as usize]), signal).unwrap();
    }

    /// Returns the exit status of `rank`, which ends by itself or because the test has killed it.
    fn end_of(&mut self, rank: u32) -> ExitStatus {
        let child = &mut self.ranks[rank as usize];
        if let Some(end) = child.try_wait().unwrap() {
            return end;
        }
        assert!(readable(&pidfd(child), STALLED), "rank {rank} of generation {} stalled", self.generation);
        child.wait().unwrap()
    }

    fn ends(&mut self) -> Vec<ExitStatus> {
        (0..WORLD_SIZE).map(|rank| self.end_of(rank)).collect()
    }

    /// Returns what `rank` has printed on stderr.
    fn stderr(&self, rank: u32) -> String {
        fs::read_to_string(stderr_path(&self.dir, self.generation, rank)).unwrap()
    }

    /// Waits until training is done, and returns the result.
    fn finish(mut self) -> TrainerOutcome {
        for (rank, end) in (0..).zip(self.ends()) {
            assert_eq!(end.code(), Some(0), "rank {rank}: {}", self.stderr(rank));
        }
        let result = TrainerOutcome::read(&self.dir.join("result.json")).unwrap();
        assert_eq!(result.generation, self.generation);
        result
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for rank in &mut self.ranks {
            // Both calls have no effect on ranks that have ended.
            let _ = rank.kill();
            let _ = rank.wait();
        }
    }
}

/// Returns the command of this program as [`rank_process`].
fn rank_command(rank_0: Rank0) -> Command {
    let program = std::env::current_exe().unwrap();
    let mut command = match rank_0 {
        Rank0::Ordinary | Rank0::DiesBeyond(_) => Command::new(program),
        // The signal is what kills; if it is ignored, the write fails instead. It stays ignored across exec.
        Rank0::DiskFullBeyond(_) => {
            let mut shell = Command::new("/bin/sh");
            shell.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""]).arg(program);
            shell
        }
    };
    if let Rank0::DiesBeyond(bytes) | Rank0::DiskFullBeyond(bytes) = rank_0 {
        command.env(FILE_LIMIT, bytes.to_string());
    }
    command.args(["--exact", "rank_process", "--nocapture", "--test-threads=1"]);
    command
}

fn stderr_path(dir: &Path, generation: u64, rank: u32) -> PathBuf {
    dir.join(format!("stderr-{generation}-{rank}"))
}

fn pidfd(child: &Child) -> OwnedFd {
    pidfd_open(Pid::from_child(child), PidfdFlags::empty()).unwrap()
}

/// Waits until `fd` is readable, for a process descriptor until its end; returns `false` after `within`.
fn readable(fd: &impl AsFd, within: Duration) -> bool {
    let timeout = Timespec::try_from(within).unwrap();
    poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&timeout)).unwrap() > 0
}

fn settings(dir: &Path) -> TrainerSettings {
    TrainerSettings { steps: 100, checkpoint_every: 5, step_time_us: 4000, ..TrainerSettings::in_dir(dir) }
}

/// The result that every disturbed run must have. It is made at full speed: the pace must not matter.
static UNDISTURBED: LazyLock<TrainerOutcome> = LazyLock::new(|| {
    let dir = tempfile::tempdir().unwrap();
    let result =
        World::start(&TrainerSettings { step_time_us: 0, ..settings(dir.path()) }, 0, Rank0::Ordinary).finish();
    assert_eq!((result.step, result.world_size, result.setbacks), (100, WORLD_SIZE, 0));
    result
});

fn assert_undisturbed(result: &TrainerOutcome) {
    let what_counts = |outcome: &TrainerOutcome| (outcome.step, outcome.state_sha256.clone(), outcome.loss);
    assert_eq!(what_counts(result), what_counts(&UNDISTURBED));
}

// ---- The tests ------------------------------------------------------------------------------------------------------

/// When a rank is killed.
#[derive(Debug, Clone, Copy)]
enum Moment {
    /// At once: possibly before it has met the other ranks.
    Starting,
    /// `then_us` microseconds after rank 0 has completed `steps` steps.
    Training { steps: u64, then_us: u64 },
    /// When rank 0 begins to write its next checkpoint, after `after_steps` steps.
    Checkpoint { after_steps: u64 },
}

/// Starts a generation and kills `victims` at `moment`. All others end by themselves.
fn killed_generation(settings: &TrainerSettings, generation: u64, moment: Moment, victims: &[u32]) {
    let within_ms = if matches!(moment, Moment::Starting) { 500 } else { settings.rendezvous_within_ms };
    let settings = TrainerSettings { rendezvous_within_ms: within_ms, ..settings.clone() };
    let mut world = World::start(&settings, generation, Rank0::Ordinary);
    match moment {
        Moment::Starting => {}
        Moment::Training { steps, then_us } => {
            world.after_steps(steps);
            readable(&pidfd(&world.ranks[0]), Duration::from_micros(then_us));
        }
        Moment::Checkpoint { after_steps } => {
            world.after_steps(after_steps);
            let new_files = inotify::init(inotify::CreateFlags::CLOEXEC).unwrap();
            inotify::add_watch(&new_files, &settings.checkpoint_dir, inotify::WatchFlags::CREATE).unwrap();
            assert!(readable(&new_files, STALLED), "no checkpoint was begun");
        }
    }
    for &victim in victims {
        world.signal(victim, Signal::KILL);
    }
    for (rank, end) in (0..).zip(world.ends()) {
        let expected = if victims.contains(&rank) { (Some(9), None) } else { (None, Some(1)) };
        assert_eq!((end.signal(), end.code()), expected, "{moment:?}, rank {rank}: {}", world.stderr(rank));
    }
}

#[test]
fn kills_at_any_moment_change_nothing() {
    for seed in 0..3 {
        let mut rng = StdRng::seed_from_u64(seed);
        let dir = tempfile::tempdir().unwrap();
        let settings = settings(dir.path());
        // A few of many steps before each kill: training must not be near its end before the last one.
        let moments = [
            Moment::Training { steps: rng.random_range(1..13), then_us: rng.random_range(0..3000) },
            Moment::Checkpoint { after_steps: rng.random_range(1..8) },
            Moment::Starting,
            Moment::Training { steps: rng.random_range(1..13), then_us: rng.random_range(0..3000) },
        ];
        for (generation, moment) in (0..).zip(moments) {
            // Only rank 0 writes checkpoints; at other moments the victim is any rank, and sometimes two.
            let first = rng.random_range(0..WORLD_SIZE);
            let victims = match moment {
                Moment::Checkpoint { .. } => vec![0],
                _ if rng.random_bool(0.25) => vec![first, (first + 1) % WORLD_SIZE],
                _ => vec![first],
            };
            killed_generation(&settings, generation, moment, &victims);
        }
        let result = World::start(&settings, 4, Rank0::Ordinary).finish();
        assert_undisturbed(&result);
        check_metrics(&settings);
    }
}

/// Checks that the steps of each generation follow each other, and that a repeated step has the same loss.
fn check_metrics(settings: &TrainerSettings) {
    let lines = read_metrics(&settings.metrics_path()).unwrap();
    for pair in lines.windows(2) {
        assert!(pair[0].generation <= pair[1].generation && pair[0].t_ms <= pair[1].t_ms, "{pair:?}");
        assert!(pair[0].generation < pair[1].generation || pair[0].step + 1 == pair[1].step, "{pair:?}");
    }
    let mut losses = BTreeMap::new();
    for line in &lines {
        assert_eq!(*losses.entry(line.step).or_insert(line.loss), line.loss, "step {}", line.step);
    }
    assert!(losses.into_keys().eq(1..=settings.steps));
}

#[test]
fn dying_in_the_middle_of_writing_a_checkpoint_leaves_the_one_before() {
    let dir = tempfile::tempdir().unwrap();
    let settings = TrainerSettings { checkpoint_every: 10, ..settings(dir.path()) };
    // One generation ends with a complete checkpoint. The next dies in its first: a file has room for 8 KiB.
    World::start(&TrainerSettings { steps: 10, ..settings.clone() }, 0, Rank0::Ordinary).finish();
    let mut world = World::start(&settings, 1, Rank0::DiesBeyond(8192));
    let ends = world.ends();
    assert_eq!(ends[0].signal(), Some(Signal::XFSZ.as_raw()), "{}", world.stderr(0));
    assert!(ends[1..].iter().all(|end| end.code() == Some(1)));
    assert_eq!(file_names(&settings.checkpoint_dir), ["step-10.ckpt", "step-20.ckpt.g1.partial"]);
    assert_eq!(fs::metadata(settings.checkpoint_dir.join("step-20.ckpt.g1.partial")).unwrap().len(), 8192);

    let mut world = World::start(&settings, 2, Rank0::Ordinary);
    assert_eq!(world.next_step(STALLED), Some(11));
    assert_undisturbed(&world.finish());
    assert_eq!(file_names(&settings.checkpoint_dir), ["step-100.ckpt", "step-80.ckpt", "step-90.ckpt"]);
}

fn file_names(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.collect::<BTreeSet<_>>().into_iter().collect()
}

#[test]
fn a_full_disk_is_logged_once_and_failed_checkpoints_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let settings = settings(dir.path());
    let mut world = World::start(&settings, 0, Rank0::DiskFullBeyond(16_384));
    world.ends();
    let output = world.stderr(0);
    let result = world.finish();
    assert_undisturbed(&result);
    assert_eq!(result.setbacks, settings.steps / settings.checkpoint_every);
    let place = format!("{}/", settings.checkpoint_dir.display());
    let expected = format!(
        "rank 0: cannot write checkpoint step-{}.ckpt: File too large (os error 27); raise the limit on file sizes \
         (ulimit -f): training continues, and counts further failures of this kind",
        settings.checkpoint_every
    );
    let sentences: Vec<String> = output.lines().map(|line| line.replace(&place, "")).collect();
    assert_eq!(sentences.iter().filter(|line| **line == expected).count(), 1, "{output}");
    assert_eq!(output.matches("cannot write checkpoint").count(), 1, "{output}");
    // The partial files were deleted.
    assert!(file_names(&settings.checkpoint_dir).is_empty());
}

#[test]
fn an_unsound_checkpoint_is_passed_over_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let settings = settings(dir.path());
    World::start(&settings, 0, Rank0::Ordinary).finish();
    let [cut_short, flipped] = ["step-100.ckpt", "step-95.ckpt"].map(|name| settings.checkpoint_dir.join(name));
    File::options().write(true).open(&cut_short).unwrap().set_len(10_000).unwrap();
    let mut bytes = fs::read(&flipped).unwrap();
    bytes[12_345] ^= 1;
    fs::write(&flipped, bytes).unwrap();

    let mut world = World::start(&settings, 1, Rank0::Ordinary);
    assert_eq!(world.next_step(STALLED), Some(91));
    world.ends();
    let output = world.stderr(0);
    let place = format!("{}/", settings.checkpoint_dir.display());
    let sentences: Vec<String> = output.lines().take(3).map(|line| line.replace(&place, "")).collect();
    let expected = [
        "rank 0: checkpoint step-100.ckpt is skipped: it was truncated or extended: it has 10000 bytes instead of \
         19352",
        "rank 0: checkpoint step-95.ckpt is skipped: it is damaged: its digest does not match its content",
        "rank 0: continuing from step-90.ckpt",
    ];
    assert_eq!(sentences, expected, "{output}");
    assert_undisturbed(&world.finish());
}

#[test]
fn a_frozen_rank_makes_the_others_wait() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::start(&settings(dir.path()), 0, Rank0::Ordinary);
    world.after_steps(5);
    world.signal(2, Signal::STOP);
    // Steps that were under way at the freeze arrive; then nothing.
    while world.next_step(Duration::from_millis(300)).is_some() {}
    assert!(world.ranks.iter().all(|rank| !readable(&pidfd(rank), Duration::ZERO)), "a rank did not wait");
    world.signal(2, Signal::CONT);
    assert_undisturbed(&world.finish());
}

#[test]
fn the_death_of_a_rank_ends_the_others_though_one_is_frozen() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::start(&settings(dir.path()), 0, Rank0::Ordinary);
    world.after_steps(5);
    world.signal(1, Signal::STOP);
    world.signal(3, Signal::KILL);
    for (rank, lost) in [(0, "lost rank 3"), (2, "lost rank 0")] {
        assert_eq!(world.end_of(rank).code(), Some(1));
        assert!(world.stderr(rank).contains(lost), "rank {rank}: {}", world.stderr(rank));
    }
    world.signal(1, Signal::CONT);
    assert_eq!(world.end_of(1).code(), Some(1));
}

#[test]
fn another_seed_is_another_run_and_never_goes_on_from_this_one() {
    let dir = tempfile::tempdir().unwrap();
    let other = TrainerSettings { seed: 2, step_time_us: 0, ..settings(dir.path()) };
    let result = World::start(&other, 0, Rank0::Ordinary).finish();
    assert_ne!(result.state_sha256, UNDISTURBED.state_sha256);

    let mut world = World::start(&settings(dir.path()), 1, Rank0::Ordinary);
    assert!(world.ends().iter().all(|end| end.code() == Some(1)));
    assert!(world.stderr(0).contains("step-100.ckpt has seed 2, but this run has 1"), "{}", world.stderr(0));
}
