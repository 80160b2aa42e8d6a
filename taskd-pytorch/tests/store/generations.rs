//! The store in a whole job: real ranks without torch meet at it, one is lost, and the others go on in the next
//! generation.

use crate::raw::{GET, NUM_KEYS, Raw, string};
use crate::service::{PATIENCE, program};
use rustix::process::{Pid, Signal, kill_process};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use taskd_core::job::{JobSpec, Rank, Role, WorkerSpec};
use taskd_core::kernel::Event;
use taskd_core::launch::python::Standbys;
use taskd_core::launch::{GuardProgram, Launcher, LocalLauncher};
use taskd_core::runtime::{Runtime, RuntimeHandle};
use taskd_core::testing::python::system;
use taskd_core::{detect, recover};
use taskd_pytorch::{TorchLauncher, with_store};

#[tokio::test]
async fn clients_of_an_earlier_generation_are_disconnected() {
    let dir = tempfile::tempdir().unwrap();
    let local = LocalLauncher::builder(dir.path().join("run")).guard(GuardProgram::None).build().await.unwrap();
    let launcher = Arc::new(TorchLauncher::new(local, dir.path().join("torch")).standbys(Standbys::none()));
    let rank = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/store/rank.py");
    let mut spec = with_store(JobSpec::new("stand-in", 2, WorkerSpec::new([system(), rank])), &program()).unwrap();
    spec.policy.termination_grace_period = Duration::ZERO;
    let runtime = Runtime::builder()
        .job(spec)
        .detectors(detect::defaults())
        .strategies(recover::defaults())
        .launcher(Arc::clone(&launcher))
        .build()
        .unwrap();
    let (handle, mut events) = (runtime.handle(), runtime.handle().events());
    let running = tokio::spawn(runtime.run());
    all_in_loop(&handle).await;

    let one = store_of(dir.path(), 1);
    let (mut old, mut waits) = (Raw::client(one), Raw::client(one));
    old.set("k", b"of the first generation");
    old.ping();
    waits.say(&[&[GET], &string(b"never set here")[..]].concat());
    let procs = launcher.list().await.unwrap().procs;
    let lost =
        procs.iter().find(|status| status.proc.role == Role::Rank(Rank(1))).and_then(|status| status.pid).unwrap();
    kill_process(Pid::from_raw(i32::try_from(lost).unwrap()).unwrap(), Signal::KILL).unwrap();
    let closed = async {
        loop {
            if let Event::Closed { how, .. } = &events.recv().await.unwrap().event {
                return how.clone();
            }
        }
    };
    let how = tokio::time::timeout(PATIENCE, closed).await.expect("the incident is closed");
    assert_eq!(how, "recovered by recover-in-place", "the store's process has stayed");

    assert!(old.is_closed() && waits.is_closed());
    assert!(TcpStream::connect(one).is_err(), "nor does a client come in again");
    let mut new = Raw::client(store_of(dir.path(), 2));
    new.say(&[NUM_KEYS]);
    assert_eq!(new.receive(8), 0u64.to_le_bytes(), "nothing of it is left");
    handle.stop("enough").await.unwrap();
    tokio::time::timeout(PATIENCE, running).await.expect("it ends").unwrap();
}

/// Waits until both ranks can receive directives.
async fn all_in_loop(handle: &RuntimeHandle) {
    let looking = async {
        while handle.status().await.unwrap().in_loop < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, looking).await.expect("both ranks are in their loops");
}

/// Where the newest generation meets, which must be this one.
fn store_of(dir: &Path, generation: u64) -> SocketAddr {
    let text = std::fs::read_to_string(dir.join("torch/port")).unwrap();
    let (newest, port) = text.trim().split_once(' ').unwrap();
    assert_eq!(newest, generation.to_string());
    ([127, 0, 0, 1], port.parse().unwrap()).into()
}
