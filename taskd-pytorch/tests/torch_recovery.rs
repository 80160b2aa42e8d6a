//! Real PyTorch under the launcher: a killed peer, a fresh rendezvous, a lost race for the port.

#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

#[path = "support/jobs.rs"]
mod jobs;
mod support;

use std::time::Duration;

use jobs::{batch, exits, local, restarted, world};
use taskd_core::job::{ProcId, Rank, Termination, WorkerSpec};
use taskd_core::launch::Launcher;

const ALL_REDUCE: &str = "
import os, torch, torch.distributed as dist
dist.init_process_group('gloo')
for step in range(10):
    dist.all_reduce(torch.ones(100000))
    if (os.environ['TORCHELASTIC_RESTART_COUNT'], os.environ['RANK'], step) == ('0', '1', 5):
        os.kill(os.getpid(), 9)
dist.barrier()
os._exit(0)  # rank 0 hosts the store, and its end is not to be reported
";

#[tokio::test]
async fn after_the_death_of_a_peer_the_next_generation_does_not_stall() {
    let Some(torch) = support::torch_python("after_the_death_of_a_peer_the_next_generation_does_not_stall") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let launcher = local(dir.path()).await;
    let spec = WorkerSpec::new([torch.to_str().unwrap(), "-c", ALL_REDUCE]);
    let first = world(2);
    launcher.start(&batch(&first, |_| spec.clone())).await.unwrap();
    let (survivor, victim) = (ProcId::rank(0, 1), ProcId::rank(1, 1));
    let (_, ended) = exits(&launcher, &[survivor.clone(), victim.clone()]).await;
    assert_eq!(ended[&victim].how, Termination::Signal { number: 9, core_dumped: false });
    assert_eq!(ended[&victim].error, None);
    let error = ended[&survivor].error.as_deref().unwrap();
    assert!(error.follow_up && !error.retry_free, "{error:?}");
    assert_eq!(error.code, "RuntimeError");

    let second = restarted(&first);
    launcher.start(&batch(&second, |_| spec.clone())).await.unwrap();
    let procs = [ProcId::rank(0, 2), ProcId::rank(1, 2)];
    let (_, ended) = exits(&launcher, &procs).await;
    assert!(ended.values().all(|exit| exit.how.is_success()), "{ended:?}");
}

#[tokio::test]
async fn a_lost_race_for_the_port_is_retried_free() {
    let Some(torch) = support::torch_python("a_lost_race_for_the_port_is_retried_free") else { return };
    let torch = torch.to_str().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let launcher = local(dir.path()).await;
    // Rank 1 is a program that asks for this very port, and rank 0 waits until it has it.
    let squats = "
import os, socket, time
server = socket.create_server(('0.0.0.0', int(os.environ['MASTER_PORT'])))
time.sleep(600)";
    let hosts = "
import os, socket, time, torch.distributed as dist
while True:
    try: socket.create_connection(('127.0.0.1', int(os.environ['MASTER_PORT']))).close(); break
    except ConnectionRefusedError: time.sleep(0.01)
dist.init_process_group('gloo')";
    let world = world(2);
    let programs = [hosts, squats];
    // Without the helper: with it no process could listen there first.
    let spec = |rank: u32| WorkerSpec::new([torch, "-c", programs[rank as usize]]).with_env("TASKD_HOOKS", "0");
    launcher.start(&batch(&world, |Rank(rank)| spec(rank))).await.unwrap();
    let (host, squatter) = (ProcId::rank(0, 1), ProcId::rank(1, 1));
    let (_, ended) = exits(&launcher, std::slice::from_ref(&host)).await;
    let error = ended[&host].error.as_deref().unwrap();
    assert!(error.retry_free && !error.follow_up, "{error:?}");
    launcher.stop(std::slice::from_ref(&squatter), Duration::ZERO).await.unwrap();
    exits(&launcher, &[squatter]).await;
}
