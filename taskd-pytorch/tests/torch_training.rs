//! Real torch trainings under the real runtime, which end with the bits of an undisturbed one. A rank is replaced,
//! in the first steps as well; or all start again from a checkpoint that is no older than it has to be: when a rank is
//! killed and no process may take its place, the others save; when all are killed, what they had in memory is still
//! there; when the supervisor is ordered to leave, all save.

#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use taskd_core::detect;
use taskd_core::job::{InMemoryCheckpoints, JobSpec, Name, Permission, Policy, Rank, WorkerSpec};
use taskd_core::kernel::{Event, JobReport, Outcome};
use taskd_core::launch::{GuardProgram, LocalLauncher};
use taskd_core::recover;
use taskd_core::runtime::{Runtime, RuntimeHandle, ShutdownMode};
use taskd_pytorch::store::StoreProgram;
use taskd_pytorch::{TorchLauncher, with_store};
use tokio::sync::OnceCell;

const RANKS: u32 = 3;

/// Everything that is waited for comes in far less, or the test fails.
const PATIENCE: Duration = Duration::from_secs(180);

const TRAIN: &str = "
import hashlib, os, random, time, torch, torch.distributed as dist, taskd
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group('gloo')
rank = dist.get_rank()
torch.manual_seed(7)
random.seed(rank)
net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.BatchNorm1d(32), torch.nn.Dropout(0.2), torch.nn.Linear(32, 4))
# Where all start again DDP's buckets must not be made again in the second step: it would be another one.
kept = {'broadcast_buffers': False} if os.environ['OWN_BUFFERS'] else {}  # what BatchNorm has seen is each rank's own then
model = DistributedDataParallel(net, bucket_cap_mb=0.001, find_unused_parameters=os.environ['BUCKETS'] != 'anew', **kept)
if os.environ['ZERO']:
    from torch.distributed.optim import ZeroRedundancyOptimizer
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam)
else:
    optimizer = torch.optim.Adam(model.parameters())
is_odd = os.environ['ODD'] == str(rank) and 'TASKD_JOIN' in os.environ  # in the place of a lost one, while others live
average = torch.nn.Linear(32, 5 if is_odd else 4)
torch.manual_seed(100 + rank)
loader = torch.utils.data.DataLoader(torch.randn(60, 8), batch_size=8, shuffle=True)
mark = lambda name: os.environ['RESULT'] + name
ballast = torch.nn.ParameterList([torch.zeros(int(os.environ['BALLAST_MIB']) << 18)])  # to copy it takes a while
state = {'model': model, 'optimizer': optimizer, 'average': average, 'ballast': ballast}
start = taskd.load_checkpoint(state) or 0
def declared(memory):
    limit = time.monotonic() + 30
    while memory is not None and not memory.copying.locked() and memory.pending is not None and time.monotonic() < limit:
        time.sleep(0.001)  # a copy that this rank has made is not known to be one of all yet
def die(step):
    from taskd import _session
    memory = getattr(getattr(_session.current, 'loop', None), 'memory', None)
    declared(memory)
    fated = [name for name in os.environ['DIE'].split() if name.endswith(':%d' % step.number)]
    name = '%d:%d' % (rank, step.number)
    if name in fated and not step.warming and not os.path.exists(mark(name)):
        open(mark(name), 'w').close()  # its replacement lives
        if memory is not None and memory.copying.locked():
            open(mark(name + ':copying'), 'w').close()
        while not all(os.path.exists(mark(name)) for name in fated):
            time.sleep(0.001)  # or it would be ended with the first of them, and its own end would come in the next try
        os.kill(os.getpid(), 9)
def saved(directory, step):
    if os.environ['DIE_SAVING'] == str(rank) and not os.path.exists(mark('saved')):
        open(mark('saved'), 'w').close()
        os.kill(os.getpid(), 9)
def lacks_memory(step):
    if os.environ['SHORT'] == '%d:%d' % (rank, step.number) and not os.path.exists(mark('short')):
        open(mark('short'), 'w').close()
        raise MemoryError('there is no memory for these gradients')
def hold(step):
    if os.environ['HOLD'] == str(step.number) and not os.path.exists(mark('held%d' % rank)):
        open(mark('held%d' % rank), 'w').close()
        from taskd import _session
        while not _session.current.given_up:
            time.sleep(0.001)
callbacks = {'save': saved}
if os.environ['EXITS']:
    callbacks['exit'] = lambda code: open(mark('exit.%d' % rank), 'w').write(str(code))
def fails(*_):
    raise RuntimeError('no room for it')
if os.environ['FAILS']:
    callbacks[os.environ['FAILS']] = fails
for step in taskd.steps(state, data=loader, start=start, until=40, callbacks=callbacks):
    with step:
        if ballast[0].numel():
            die(step)  # at once: the copy has just begun
        time.sleep(float(os.environ['PAUSE']))
        hold(step)
        optimizer.zero_grad()
        loss = model(step.next() + random.random()).square().mean()
        die(step)
        lacks_memory(step)
        loss.backward()
        optimizer.step()
digest = hashlib.sha256(repr(random.getstate()).encode() + torch.get_rng_state().numpy().tobytes())
for one in list(net.state_dict().values()) + [v for s in getattr(optimizer, 'optim', optimizer).state.values() for v in s.values()]:
    digest.update(one.numpy().tobytes())
open(os.environ['RESULT'] + '.' + str(rank), 'w').write('%d %s' % (start, digest.hexdigest()))
";

/// A pipeline by hand, whose stages have one shape and begin with the same parameters. Ranks are killed as in the other
/// program.
const STAGES: &str = "
import hashlib, os, torch, torch.distributed as dist, taskd
dist.init_process_group('gloo')
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(7)
stage = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Linear(16, 16))
optimizer = torch.optim.Adam(stage.parameters(), lr=1e-2)
given = torch.randn(32, 16)
def die(step):
    name = '%d:%d' % (rank, step.number)
    mark = os.environ['RESULT'] + name
    if name in os.environ['DIE'].split() and not step.warming and not os.path.exists(mark):
        open(mark, 'w').close()
        os.kill(os.getpid(), 9)
for step in taskd.steps({'model': stage, 'optimizer': optimizer}, until=40):
    with step:
        optimizer.zero_grad()
        die(step)
        before = given if rank == 0 else torch.empty(32, 16)
        if rank > 0:
            dist.recv(before, rank - 1)
            before.requires_grad_(True)
        after = stage(before)
        if rank + 1 < size:
            dist.send(after.detach(), rank + 1)
            grad = torch.empty_like(after)
            dist.recv(grad, rank + 1)
            after.backward(grad)
        else:
            (after - given.sin()).square().mean().backward()
        if rank > 0:
            dist.send(before.grad, rank - 1)
        optimizer.step()
digest = hashlib.sha256()
for one in list(stage.state_dict().values()) + [v for s in optimizer.state.values() for v in s.values()]:
    digest.update(one.numpy().tobytes())
open(os.environ['RESULT'] + '.' + str(rank), 'w').write('0 %s' % digest.hexdigest())
";

/// Replicas that part in the middle of their loop.
const AVERAGED: &str = include_str!("recovery/averaged.py");

/// The report, and with what each rank has begun and ended. `DIE=RANK:STEP` kills that rank in that step; those of one
/// step die at once.
async fn train(
    python: &Path,
    dir: &Path,
    env: &[(&str, &str)],
    change: impl FnOnce(&mut JobSpec),
) -> (JobReport, Vec<(u64, String)>) {
    let runtime = runtime(python, dir, env, change).await;
    let mut events = runtime.handle().events();
    let report = tokio::time::timeout(PATIENCE, runtime.run()).await.expect("it ends");
    while let Ok(event) = events.try_recv() {
        match &event.event {
            Event::Failed { strategy, reason, .. } => {
                println!("{strategy} failed: {reason}");
                fs::write(dir.join("failed"), reason).unwrap();
            }
            Event::Decided(decision) => {
                let refused =
                    decision.refused.iter().map(|refusal| format!("{}: {}\n", refusal.strategy, refusal.reason));
                fs::write(dir.join("refused"), refused.collect::<String>()).unwrap();
            }
            _ => {}
        }
    }
    let results = results(dir, &report, ranks(env));
    (report, results)
}

/// The number of ranks of a job, from `RANKS`.
fn ranks(env: &[(&str, &str)]) -> u32 {
    env.iter().find(|(name, _)| *name == "RANKS").map_or(RANKS, |(_, ranks)| ranks.parse().unwrap())
}

fn results(dir: &Path, report: &JobReport, ranks: u32) -> Vec<(u64, String)> {
    let read = |rank| {
        let result = dir.join(format!("result.{rank}"));
        let text = fs::read_to_string(result).unwrap_or_else(|_| panic!("{report:#?}"));
        let (start, digest) = text.split_once(' ').unwrap();
        (start.parse().unwrap(), digest.to_owned())
    };
    (0..ranks).map(read).collect()
}

/// A job of that program.
async fn runtime(python: &Path, dir: &Path, env: &[(&str, &str)], change: impl FnOnce(&mut JobSpec)) -> Runtime {
    let local = LocalLauncher::builder(dir.join("run")).guard(GuardProgram::None).build().await.unwrap();
    let local = Arc::new(local);
    let is_set = |variable: &str| env.iter().any(|(name, _)| *name == variable);
    let program = if is_set("STAGES") {
        STAGES
    } else if is_set("LOCAL") {
        AVERAGED
    } else {
        TRAIN
    };
    let worker = WorkerSpec::new([python.to_str().unwrap(), "-W", "ignore", "-c", program])
        .with_env("OMP_NUM_THREADS", "1")
        .with_env("DIE", "")
        .with_env("DIE_SAVING", "")
        .with_env("BUCKETS", "")
        .with_env("ZERO", "")
        .with_env("OWN_BUFFERS", "")
        .with_env("SHORT", "")
        .with_env("HOLD", "")
        .with_env("ODD", "")
        .with_env("BALLAST_MIB", "0")
        .with_env("PAUSE", "0")
        .with_env("EXITS", "")
        .with_env("FAILS", "")
        .with_env("RESULT", dir.join("result").to_str().unwrap());
    let worker = env.iter().fold(worker, |worker, (name, value)| worker.with_env(*name, *value));
    let store = StoreProgram::Path(env!("CARGO_BIN_EXE_taskd-store").into());
    let mut spec = with_store(JobSpec::new("training", ranks(env), worker), &store).unwrap();
    spec.policy.termination_grace_period = Duration::ZERO;
    change(&mut spec);
    Runtime::builder()
        .job(spec)
        .source(local.heartbeats(Duration::from_secs(1)))
        .detectors(detect::defaults())
        .strategies(recover::defaults())
        .launcher(TorchLauncher::new(Arc::clone(&local), dir.join("torch")))
        .build()
        .unwrap()
}

/// Every ten steps all ranks keep copies in memory, and no process takes a dead one's place while not all are dead yet.
fn copies(spec: &mut JobSpec) {
    spec.policy.in_memory_checkpoints = NonZeroU64::new(10).map(InMemoryCheckpoints::every);
    forbid(&mut spec.policy, &["recover-in-place", "recover", "shrink"]);
}

/// Returns the first `few` cases, or all of them in a soak run (`TASKD_SOAK=1`).
fn few_or_all<T: Copy>(cases: &[T], few: usize) -> Vec<T> {
    let is_soak = std::env::var("TASKD_SOAK").is_ok_and(|soak| soak == "1");
    cases[..if is_soak { cases.len() } else { few }].to_vec()
}

fn forbid(policy: &mut Policy, strategies: &[&'static str]) {
    policy.strategies.extend(strategies.iter().map(|name| (Name::new(name), Permission::Never)));
}

/// The report, and with what each rank has begun again, of a job that ends with the bits of one that lost no rank.
async fn ends_as_undisturbed(
    python: &Path,
    dir: &Path,
    env: &[(&str, &str)],
    change: impl FnOnce(&mut JobSpec),
) -> (JobReport, Vec<u64>) {
    let (report, found) = train(python, dir, env, change).await;
    let shows = env.iter().find(|(name, _)| SHOWS.contains(name));
    let starts = are_undisturbed(python, shows.copied(), found).await;
    (report, starts)
}

/// With what each rank has begun, where their bits are those of a job that lost no rank.
async fn are_undisturbed(python: &Path, shows: Option<(&str, &str)>, found: Vec<(u64, String)>) -> Vec<u64> {
    let (starts, digests): (Vec<u64>, Vec<String>) = found.into_iter().unzip();
    let kind = shows.and_then(|(name, _)| SHOWS.iter().position(|known| *known == name)).map_or(0, |at| at + 1);
    let expected = UNDISTURBED[kind].get_or_init(async || {
        let dir = tempfile::tempdir().unwrap();
        let (_, found) = train(python, dir.path(), &shows.into_iter().collect::<Vec<_>>(), |_| ()).await;
        found.into_iter().map(|(_, digest)| digest).collect()
    });
    assert_eq!(digests, *expected.await);
    starts
}

/// Waits until all ranks have completed `steps` steps.
async fn reach(handle: &RuntimeHandle, steps: u64) {
    let reached = async {
        while handle.status().await.unwrap().steps.is_none_or(|(least, _)| least < steps) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, reached).await.expect("it trains");
}

/// What shows in the bits, of all settings of a job.
const SHOWS: [&str; 4] = ["BUCKETS", "ZERO", "OWN_BUFFERS", "STAGES"];

/// With what the ranks of a job end that nothing befalls: as usual, and with each of these.
static UNDISTURBED: [OnceCell<Vec<String>>; 5] = [const { OnceCell::const_new() }; 5];

#[tokio::test]
async fn ranks_that_die_in_the_first_two_steps_are_replaced() {
    let test = "ranks_that_die_in_the_first_two_steps_are_replaced";
    let Some(python) = support::torch_python(test) else { return };
    let dir = tempfile::tempdir().unwrap();
    let env = [("DIE", "1:0 2:1"), ("BUCKETS", "anew")];
    let (report, starts) = ends_as_undisturbed(&python, dir.path(), &env, |_| ()).await;
    // One incident, where the second dies before it is known that all train again after the first.
    let recovers = Some(Name::new("recover-in-place"));
    assert!(report.incidents.iter().all(|incident| incident.strategy == recovers), "{report:#?}");
    let mut blamed: Vec<Rank> = report.incidents.iter().flat_map(|incident| incident.blamed.clone()).collect();
    blamed.sort_unstable();
    assert_eq!(blamed, [Rank(1), Rank(2)], "{report:#?}");
    assert_eq!(starts, [0; RANKS as usize]);
}

/// The strategy of each incident.
fn strategies(report: &JobReport) -> Vec<Option<Name>> {
    report.incidents.iter().map(|incident| incident.strategy.clone()).collect()
}

/// A script around the program that does not exec it.
fn wrapped(spec: &mut JobSpec) {
    let looks_first = "\"$1\" -c 'import torch' && \"$@\"; exit $?";
    let argv = &mut Arc::make_mut(&mut spec.worker).argv;
    let program = std::mem::take(argv);
    *argv = ["sh", "-c", looks_first, "sh"].into_iter().map(String::from).chain(program).collect();
}

#[tokio::test]
async fn a_rank_behind_a_script_that_does_not_exec_it_is_replaced_in_place() {
    let test = "a_rank_behind_a_script_that_does_not_exec_it_is_replaced_in_place";
    let Some(python) = support::torch_python(test) else { return };
    let dir = tempfile::tempdir().unwrap();
    let (report, starts) = ends_as_undisturbed(&python, dir.path(), &[("DIE", "1:23")], wrapped).await;
    assert_eq!(strategies(&report), [Some(Name::new("recover-in-place"))], "{report:#?}");
    assert_eq!(starts, [0; RANKS as usize]);
}

#[tokio::test]
async fn pipeline_stage_does_not_get_the_state_of_a_similar_stage() {
    let test = "pipeline_stage_does_not_get_the_state_of_a_similar_stage";
    let Some(python) = support::torch_python(test) else { return };
    for die in few_or_all(&["1:2", "2:20", "0:1"], 2) {
        let dir = tempfile::tempdir().unwrap();
        let (report, _) = ends_as_undisturbed(&python, dir.path(), &[("DIE", die), ("STAGES", "1")], |_| ()).await;
        assert_eq!(strategies(&report), [Some(Name::new("restart"))], "{die}: {report:#?}");
        let refused = fs::read_to_string(dir.path().join("refused")).unwrap();
        let why = refused.lines().find(|line| line.starts_with("recover-in-place: ")).unwrap_or_default();
        assert!(why.contains("is proven"), "{die}: {refused}");
    }
}

/// How the program parts its replicas, `RANK:STEP` of the kill, the strategy that recovers from it, and why the rank is
/// not replaced in place. The first four have one row for each reason.
const PARTED: [(&str, &str, &str, &str, &str); 10] = [
    ("ddp", "3", "1:12", "recover-in-place", ""),
    // Equal at step 24, but not before; the other ranks may not have reported step 24 yet.
    ("ddp", "3", "2:24", "restart", "no replica of rank 2 is proven"),
    ("hand", "3", "1:26", "restart", "is proven"),
    (
        "power",
        "3",
        "1:12",
        "restart",
        "the communication hook powerSGD_hook of a module of DDP may keep a state of its own",
    ),
    ("ddp", "3", "1:21", "restart", "is proven"),
    ("hand", "3", "1:12", "recover-in-place", ""),
    ("always", "3", "1:9", "restart", "is proven"),
    // Where one rank is left no other can be compared with it.
    ("flat", "2", "1:26", "restart", "is proven"),
    ("quiet", "2", "1:20", "restart", "is proven"),
    (
        "hook",
        "3",
        "1:27",
        "restart",
        "the communication hook post_localSGD_hook of a module of DDP may keep a state of its own",
    ),
];

#[tokio::test]
async fn replicas_that_part_in_their_loop_are_none_from_there_on() {
    let test = "replicas_that_part_in_their_loop_are_none_from_there_on";
    let Some(python) = support::torch_python(test) else { return };
    let mut undisturbed = BTreeMap::new();
    for (how, ranks, die, by, why) in few_or_all(&PARTED, 4) {
        if !undisturbed.contains_key(how) {
            let dir = tempfile::tempdir().unwrap();
            undisturbed.insert(how, train(&python, dir.path(), &[("LOCAL", how), ("RANKS", ranks)], |_| ()).await.1);
        }
        let dir = tempfile::tempdir().unwrap();
        let hold = if how == "quiet" { "20" } else { "" };
        let env = [("LOCAL", how), ("RANKS", ranks), ("DIE", die), ("HOLD", hold)];
        let (report, found) = train(&python, dir.path(), &env, |_| ()).await;
        assert_eq!(strategies(&report), [Some(Name::new(by))], "{how} {die}: {report:#?}");
        assert_eq!(found, undisturbed[how], "{how} {die}");
        let refused = fs::read_to_string(dir.path().join("refused")).unwrap_or_default();
        let shown = refused.lines().find(|line| line.starts_with("recover-in-place: ")).unwrap_or_default();
        assert!(shown.contains(why), "{how} {die}: {refused}");
    }
}

#[tokio::test]
async fn replicas_with_buffers_of_their_own_are_recovered_in_place() {
    let test = "replicas_with_buffers_of_their_own_are_recovered_in_place";
    let Some(python) = support::torch_python(test) else { return };
    let dir = tempfile::tempdir().unwrap();
    let (report, starts) =
        ends_as_undisturbed(&python, dir.path(), &[("DIE", "1:23"), ("OWN_BUFFERS", "1")], |_| ()).await;
    assert_eq!(strategies(&report), [Some(Name::new("recover-in-place"))], "{report:#?}");
    assert_eq!(starts, [0; RANKS as usize]);
    let checks = report.replicas.expect("ranks have reported checksums");
    println!("{} checksums took {} us each", checks.checks, checks.took_us / checks.checks);
}

#[tokio::test]
async fn a_job_that_lost_a_rank_ends_with_the_bits_of_one_that_lost_none() {
    let test = "a_job_that_lost_a_rank_ends_with_the_bits_of_one_that_lost_none";
    let Some(python) = support::torch_python(test) else { return };
    let dir = tempfile::tempdir().unwrap();
    let saves = |spec: &mut JobSpec| {
        (spec.rendezvous_service, spec.services) = (None, BTreeMap::new()); // so that no strategy tries
        spec.policy.checkpoint_dir = Some(dir.path().join("dumps"));
        forbid(&mut spec.policy, &["restart"]);
    };
    let (report, starts) = ends_as_undisturbed(&python, dir.path(), &[("DIE", "1:23")], saves).await;
    assert_eq!((report.restarts, report.incidents.len()), (1, 1), "{report:#?}");
    assert_eq!(report.incidents[0].strategy, Some(recover::DUMP), "{report:#?}");
    assert_eq!(starts, [23; RANKS as usize], "the step in flight is done again, and no other");
    let whole = fs::read_dir(dir.path().join("dumps")).unwrap().map(|entry| entry.unwrap().path());
    let whole: Vec<_> = whole.filter(|dir| dir.join("manifest.json").is_file()).collect();
    assert_eq!(whole.len(), 1, "{whole:?}");
}

#[tokio::test]
async fn a_job_that_lost_all_ranks_goes_on_from_what_they_had_in_memory() {
    let test = "a_job_that_lost_all_ranks_goes_on_from_what_they_had_in_memory";
    let Some(python) = support::torch_python(test) else { return };
    let dir = tempfile::tempdir().unwrap();
    let env = [("DIE", "0:23 1:23 2:23")];
    let (report, starts) = ends_as_undisturbed(&python, dir.path(), &env, copies).await;
    assert_eq!((report.restarts, report.incidents.len()), (1, 1), "{report:#?}");
    assert_eq!(starts, [20; RANKS as usize], "the newest step whose state all had in memory");
}

#[tokio::test]
async fn ranks_that_die_while_their_state_is_copied_leave_the_copy_before() {
    let test = "ranks_that_die_while_their_state_is_copied_leave_the_copy_before";
    let Some(python) = support::torch_python(test) else { return };
    let dir = tempfile::tempdir().unwrap();
    let env = [("DIE", "0:30 1:30 2:30"), ("BALLAST_MIB", "64")];
    let (report, starts) = ends_as_undisturbed(&python, dir.path(), &env, copies).await;
    let copying = |rank: &u32| dir.path().join(format!("result{rank}:30:copying")).exists();
    assert!((0..RANKS).any(|rank| copying(&rank)), "no rank was in the middle of a copy");
    assert_eq!((report.restarts, starts), (1, vec![20; RANKS as usize]), "all have the one of step 20");
}

#[tokio::test]
async fn replacement_with_another_state_shape_is_refused_and_all_restart() {
    let test = "replacement_with_another_state_shape_is_refused_and_all_restart";
    let Some(python) = support::torch_python(test) else { return };
    let dir = tempfile::tempdir().unwrap();
    let keeps_all = |spec: &mut JobSpec| forbid(&mut spec.policy, &["recover", "shrink"]);
    let env = [("DIE", "1:7"), ("ODD", "1")];
    let (report, starts) = ends_as_undisturbed(&python, dir.path(), &env, keeps_all).await;
    assert_eq!((report.incidents.len(), starts), (1, vec![0; RANKS as usize]), "{report:#?}");
    let incident = &report.incidents[0];
    assert_eq!(incident.strategy, Some(Name::new("restart")), "{report:#?}");
    let why = fs::read_to_string(dir.path().join("failed")).unwrap();
    assert!(why.contains("average/weight is (4, 32) torch.float32 on rank 0 and (5, 32) torch.float32 here"), "{why}");
}

#[tokio::test]
async fn a_job_that_saved_before_it_was_stopped_goes_on_from_there() {
    let test = "a_job_that_saved_before_it_was_stopped_goes_on_from_there";
    let Some(python) = support::torch_python(test) else { return };
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let saves = |spec: &mut JobSpec| spec.policy.checkpoint_dir = Some(first.path().join("dumps"));
    let runtime = runtime(&python, first.path(), &[("PAUSE", "0.1")], saves).await; // 40 steps take 4 s
    let handle = runtime.handle();
    let running = tokio::spawn(runtime.run());
    reach(&handle, 10).await;
    handle.shutdown(ShutdownMode::CheckpointThenTerminate { within: PATIENCE, grace: Duration::ZERO }).await.unwrap();
    let report = tokio::time::timeout(PATIENCE, running).await.expect("it ends").unwrap();
    assert_eq!((report.outcome, report.restarts), (Outcome::Stopped, 0), "{report:#?}");
    let (_, starts) = ends_as_undisturbed(&python, second.path(), &[], saves).await;
    assert!((10..40).contains(&starts[0]) && starts.iter().all(|start| *start == starts[0]), "{starts:?}");
}

#[tokio::test]
async fn rank_lost_during_an_operator_checkpoint_costs_only_that_one() {
    let test = "rank_lost_during_an_operator_checkpoint_costs_only_that_one";
    let Some(python) = support::torch_python(test) else { return };
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let saves = |spec: &mut JobSpec| spec.policy.checkpoint_dir = Some(first.path().join("dumps"));
    let env = [("PAUSE", "0.1"), ("DIE_SAVING", "1")];
    let runtime = runtime(&python, first.path(), &env, saves).await;
    let handle = runtime.handle();
    let running = tokio::spawn(runtime.run());
    reach(&handle, 5).await;
    handle.checkpoint_now("before the maintenance").await.unwrap();
    let saved = first.path().join("resultsaved");
    let until = Instant::now() + PATIENCE;
    while !saved.exists() {
        let status = handle.status().await.expect("a rank dies as it saves, ahead of the job's end");
        assert!(Instant::now() < until, "no rank died: {:#?}, {:#?}", status.orders, status.recent);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    reach(&handle, 15).await;
    handle.checkpoint_now("once more").await.unwrap();
    let report = tokio::time::timeout(PATIENCE, running).await.expect("it ends").unwrap();
    assert_eq!((report.outcome, report.restarts), (Outcome::Completed, 1), "{report:#?}");
    let starts = are_undisturbed(&python, None, results(first.path(), &report, RANKS)).await;
    assert_eq!(starts, [0; RANKS as usize], "two of them live");
    let (_, starts) = ends_as_undisturbed(&python, second.path(), &[], saves).await;
    assert!((15..40).contains(&starts[0]) && starts.iter().all(|start| *start == starts[0]), "{starts:?}");
}

#[tokio::test]
async fn a_step_with_a_sharded_optimizer_is_done_again_by_the_same_processes() {
    let test = "a_step_with_a_sharded_optimizer_is_done_again_by_the_same_processes";
    let Some(python) = support::torch_python(test) else { return };
    let dir = tempfile::tempdir().unwrap();
    let env = [("ZERO", "1"), ("SHORT", "1:7")];
    let (report, starts) = ends_as_undisturbed(&python, dir.path(), &env, |_| ()).await;
    let incidents: Vec<_> = report.incidents.iter().map(|incident| incident.strategy.clone()).collect();
    assert_eq!((incidents, starts), (vec![Some(Name::new("retry"))], vec![0; RANKS as usize]), "{report:#?}");
}

#[tokio::test]
async fn lost_optimizer_shard_is_restored_from_in_memory_checkpoints() {
    let test = "lost_optimizer_shard_is_restored_from_in_memory_checkpoints";
    let Some(python) = support::torch_python(test) else { return };
    let dir = tempfile::tempdir().unwrap();
    let env = [("ZERO", "1"), ("DIE", "1:23")];
    let keeps =
        |spec: &mut JobSpec| spec.policy.in_memory_checkpoints = NonZeroU64::new(10).map(InMemoryCheckpoints::every);
    let (report, starts) = ends_as_undisturbed(&python, dir.path(), &env, keeps).await;
    assert_eq!((report.restarts, report.incidents.len()), (1, 1), "{report:#?}");
    assert_eq!(report.incidents[0].strategy, Some(Name::new("restart")), "{report:#?}");
    assert_eq!(starts, [20; RANKS as usize], "the newest step whose state all had in memory");
    assert!(!dir.path().join("failed").exists(), "nothing was tried that could only fail");
    let refused = fs::read_to_string(dir.path().join("refused")).unwrap();
    let why = refused.lines().find(|line| line.starts_with("recover-in-place: ")).unwrap_or_default();
    assert!(why.contains("optimizer is sharded"), "{refused}");
}

#[tokio::test]
async fn a_job_that_is_stopped_has_its_exit_callbacks_called_within_the_grace() {
    let test = "a_job_that_is_stopped_has_its_exit_callbacks_called_within_the_grace";
    let Some(python) = support::torch_python(test) else { return };
    let dir = tempfile::tempdir().unwrap();
    let env = [("PAUSE", "0.1"), ("EXITS", "1")];
    let runtime = runtime(&python, dir.path(), &env, |spec| spec.policy.termination_grace_period = PATIENCE).await;
    let handle = runtime.handle();
    let running = tokio::spawn(runtime.run());
    reach(&handle, 5).await;
    handle.stop("the host is needed").await.unwrap();
    let report = tokio::time::timeout(PATIENCE, running).await.expect("it ends").unwrap();
    assert_eq!((report.outcome, report.incidents.len()), (Outcome::Stopped, 0), "{report:#?}");
    for rank in 0..RANKS {
        let called = fs::read_to_string(dir.path().join(format!("resultexit.{rank}"))).expect("it was called");
        assert_eq!(called, "143", "rank {rank}");
        assert!(!dir.path().join(format!("result.{rank}")).exists(), "rank {rank} has not trained to the end");
    }
}

#[tokio::test]
async fn operator_checkpoint_of_a_sharded_optimizer_saves_all_shards() {
    let test = "operator_checkpoint_of_a_sharded_optimizer_saves_all_shards";
    let Some(python) = support::torch_python(test) else { return };
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let saves = |spec: &mut JobSpec| spec.policy.checkpoint_dir = Some(first.path().join("dumps"));
    let zero = ("ZERO", "1");
    let runtime = runtime(&python, first.path(), &[zero, ("HOLD", "12")], saves).await; // all are in that step then
    let handle = runtime.handle();
    let running = tokio::spawn(runtime.run());
    reach(&handle, 12).await;
    handle.checkpoint_now("before the maintenance").await.unwrap();
    let report = tokio::time::timeout(PATIENCE, running).await.expect("it ends").unwrap();
    assert_eq!((report.outcome, report.restarts), (Outcome::Completed, 0), "{report:#?}");
    let starts = are_undisturbed(&python, Some(zero), results(first.path(), &report, RANKS)).await;
    assert_eq!(starts, [0; RANKS as usize], "the same processes");
    let (_, starts) = ends_as_undisturbed(&python, second.path(), &[zero], saves).await;
    assert_eq!(starts, [12; RANKS as usize]);
}

#[tokio::test]
async fn callback_that_raises_fails_the_recovery_with_its_message() {
    let test = "callback_that_raises_fails_the_recovery_with_its_message";
    let Some(python) = support::torch_python(test) else { return };
    let dir = tempfile::tempdir().unwrap();
    let in_place_only = |spec: &mut JobSpec| forbid(&mut spec.policy, &["recover", "shrink"]);
    let env = [("DIE", "1:7"), ("FAILS", "rollback")];
    let (report, starts) = ends_as_undisturbed(&python, dir.path(), &env, in_place_only).await;
    assert_eq!((report.incidents.len(), starts), (1, vec![0; RANKS as usize]), "{report:#?}");
    assert_eq!(report.incidents[0].strategy, Some(Name::new("restart")), "{report:#?}");
    let why = fs::read_to_string(dir.path().join("failed")).unwrap();
    assert!(why.contains("sync-state failed: RuntimeError: no room for it"), "{why}");
}
