//! A rank of a real job is killed and nobody may take its place: the others save, and all start again from that, in real torch
//! processes under the real runtime.

#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

mod support;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use taskd_core::detect;
use taskd_core::job::{JobSpec, Name, Permission, WorkerSpec};
use taskd_core::kernel::JobReport;
use taskd_core::launch::{GuardProgram, LocalLauncher};
use taskd_core::recover;
use taskd_core::runtime::Runtime;
use taskd_pytorch::TorchLauncher;

const RANKS: u32 = 3;

/// Everything that is waited for comes in far less, or the test fails.
const PATIENCE: Duration = Duration::from_secs(180);

const TRAIN: &str = "
import hashlib, os, random, torch, torch.distributed as dist, taskd
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group('gloo')
rank = dist.get_rank()
torch.manual_seed(7)
random.seed(rank)
net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.BatchNorm1d(32), torch.nn.Dropout(0.2), torch.nn.Linear(32, 4))
model = DistributedDataParallel(net, find_unused_parameters=True)  # its buckets are those of a fresh one for ever
optimizer = torch.optim.Adam(model.parameters())
torch.manual_seed(100 + rank)
loader = torch.utils.data.DataLoader(torch.randn(60, 8), batch_size=8, shuffle=True)
state = {'model': model, 'optimizer': optimizer}
start = taskd.load_dump(state) or 0
for step in taskd.steps(state, data=loader, start=start, until=40):
    with step:
        optimizer.zero_grad()
        loss = model(step.next() + random.random()).square().mean()
        if 'DIES' in os.environ and (rank, step.number, start) == (1, 23, 0):
            os.kill(os.getpid(), 9)
        loss.backward()
        optimizer.step()
digest = hashlib.sha256(repr(random.getstate()).encode() + torch.get_rng_state().numpy().tobytes())
for one in list(net.state_dict().values()) + [v for s in optimizer.state.values() for v in s.values()]:
    digest.update(one.numpy().tobytes())
open(os.environ['RESULT'] + '.' + str(rank), 'w').write('%d %s' % (start, digest.hexdigest()))
";

/// The report, and with what each rank has begun and ended.
async fn train(python: &Path, dir: &Path, dies: bool) -> (JobReport, Vec<(u64, String)>) {
    let local = LocalLauncher::builder(dir.join("run")).guard(GuardProgram::None).build().await.unwrap();
    let local = Arc::new(local);
    let result = dir.join("result");
    let worker = WorkerSpec::new([python.to_str().unwrap(), "-W", "ignore", "-c", TRAIN])
        .with_env("OMP_NUM_THREADS", "1")
        .with_env("RESULT", result.to_str().unwrap());
    let mut spec = JobSpec::new("dumps", RANKS, if dies { worker.with_env("DIES", "1") } else { worker });
    spec.policy.stop_grace = Duration::ZERO;
    spec.policy.dump_dir = Some(dir.join("dumps"));
    for name in ["recover-in-place", "recover", "shrink", "restart"] {
        spec.policy.strategies.insert(Name::new(name), Permission::Never);
    }
    let runtime = Runtime::builder()
        .job(spec)
        .source(local.heartbeats(Duration::from_secs(1)))
        .detectors(detect::defaults())
        .strategies(recover::defaults())
        .launcher(TorchLauncher::new(Arc::clone(&local), dir.join("torch")))
        .build()
        .unwrap();
    let report = tokio::time::timeout(PATIENCE, runtime.run()).await.expect("it ends");
    let read = |rank| {
        let text =
            fs::read_to_string(result.with_extension(format!("{rank}"))).unwrap_or_else(|_| panic!("{report:#?}"));
        let (start, digest) = text.split_once(' ').unwrap();
        (start.parse().unwrap(), digest.to_owned())
    };
    let results = (0..RANKS).map(read).collect();
    (report, results)
}

#[tokio::test]
async fn a_job_that_lost_a_rank_ends_with_the_bits_of_one_that_lost_none() {
    let test = "a_job_that_lost_a_rank_ends_with_the_bits_of_one_that_lost_none";
    let Some(python) = support::torch_python(test) else { return };
    let (disturbed, undisturbed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (report, found) = train(&python, disturbed.path(), true).await;
    let (_, expected) = train(&python, undisturbed.path(), false).await;
    assert_eq!((report.restarts, report.incidents.len()), (1, 1), "{report:#?}");
    assert_eq!(report.incidents[0].strategy, Some(recover::DUMP), "{report:#?}");
    let (starts, digests): (Vec<u64>, Vec<String>) = found.into_iter().unzip();
    assert_eq!(starts, [23; RANKS as usize], "the step in flight is done again, and no other");
    assert_eq!(digests, expected.into_iter().map(|(_, digest)| digest).collect::<Vec<_>>());
    let whole = fs::read_dir(disturbed.path().join("dumps")).unwrap().map(|entry| entry.unwrap().path());
    let whole: Vec<_> = whole.filter(|dir| dir.join("manifest.json").is_file()).collect();
    assert_eq!(whole.len(), 1, "{whole:?}");
}
