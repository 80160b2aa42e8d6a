//! The port at which the ranks of a job without a store meet: no other process listens there from when it is chosen,
//! and whatever a program has listen there can.

#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

#[path = "support/jobs.rs"]
mod jobs;
mod support;

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jobs::{batch, exits, local, restarted, world};
use taskd_core::job::{JobSpec, ProcId, Rank, WorkerSpec, World};
use taskd_core::kernel::Outcome;
use taskd_core::launch::{Launcher, LocalLauncher};
use taskd_core::runtime::Runtime;
use taskd_core::testing::python::system;
use taskd_core::{detect, recover};
use taskd_pytorch::TorchLauncher;

/// Tries to listen at the port that it reads, in every way, until it reads another line; then it prints how often it
/// has tried and how often it has succeeded.
const SQUATTER: &str = "
import os, socket, sys, threading
os.setgroups([]), os.setgid(65534), os.setuid(65534)  # not before Python is loaded, which may lie where others must not look
port, tries, won = int(sys.stdin.readline()), 0, 0
ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.readline(), ended.set()), daemon=True).start()
def listens(host, reuse):
    with socket.socket(socket.AF_INET6 if ':' in host else socket.AF_INET) as one:
        for option in reuse:
            one.setsockopt(socket.SOL_SOCKET, option, 1)
        if ':' in host:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        try:
            one.bind((host, port))
            one.listen()
        except OSError:
            return False
        return True
ways = [[], [socket.SO_REUSEADDR], [socket.SO_REUSEPORT], [socket.SO_REUSEADDR, socket.SO_REUSEPORT]]
while not ended.is_set():
    for reuse in ways:
        for host in ('127.0.0.1', '0.0.0.0', '::'):
            tries, won = tries + 1, won + listens(host, reuse)
print(tries, won, flush=True)
";

/// Rank 0 hosts the store late, so that rank 1 dials first.
const TRAIN: &str = "
import os, time, torch, torch.distributed as dist
if os.environ['RANK'] == '0':
    time.sleep(1)
dist.init_process_group('gloo')
dist.all_reduce(torch.ones(1000))
mark = lambda name: os.path.join(os.environ['MARKS'], name + os.environ['TORCHELASTIC_RESTART_COUNT'])
open(mark('trains.%d.' % dist.get_rank()), 'w').close()
while not os.path.exists(mark('end')):
    time.sleep(0.01)
os._exit(0)
";

/// Another user's process that wants the port of a generation.
struct Squatter(Child);

impl Squatter {
    fn new() -> Squatter {
        let mut command = Command::new(system());
        command.args(["-c", SQUATTER]);
        Squatter(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap())
    }

    /// Begins as soon as the port stands in the launcher's directory, while ranks start.
    fn begin(&mut self, file: PathBuf, generation: u64) -> tokio::task::JoinHandle<()> {
        let mut stdin = std::fs::File::from(self.0.stdin.as_ref().unwrap().as_fd().try_clone_to_owned().unwrap());
        tokio::spawn(async move {
            let until = Instant::now() + Duration::from_secs(60);
            while Instant::now() < until {
                let text = std::fs::read_to_string(&file).unwrap_or_default();
                if let Some(port) = text.strip_prefix(&format!("{generation} ")) {
                    return stdin.write_all(port.as_bytes()).unwrap();
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
    }

    /// How often it has tried, and succeeded.
    fn end(mut self) -> (u64, u64) {
        self.0.stdin.as_mut().unwrap().write_all(b"end\n").unwrap();
        let mut line = String::new();
        BufReader::new(self.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let (tries, won) = line.trim().split_once(' ').unwrap();
        self.0.wait().unwrap();
        (tries.parse().unwrap(), won.parse().unwrap())
    }
}

fn procs(world: &World) -> Vec<ProcId> {
    world.members().iter().map(|(rank, member)| ProcId::rank(rank.0, member.incarnation.0)).collect()
}

fn is_root(test: &str) -> bool {
    let is = rustix::process::geteuid().is_root();
    if !is {
        support::say(&format!("skipped: {test} (only root can act as another user)"));
    }
    is
}

async fn trains(marks: &Path, launcher: &TorchLauncher<LocalLauncher>, world: &World) {
    let until = Instant::now() + Duration::from_secs(120);
    while !(0..2).all(|rank| marks.join(format!("trains.{rank}.{}", world.restarts())).exists()) {
        let listing = launcher.list().await.unwrap();
        assert!(
            listing.procs.iter().filter(|status| procs(world).contains(&status.proc)).all(|s| !s.phase.is_over()),
            "{listing:?}"
        );
        assert!(Instant::now() < until, "{listing:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn another_user_never_listens_at_the_port_of_a_generation() {
    let test = "another_user_never_listens_at_the_port_of_a_generation";
    let Some(torch) = support::torch_python(test).filter(|_| is_root(test)) else { return };
    let dir = tempfile::tempdir().unwrap();
    let launcher = local(dir.path()).await;
    let spec = WorkerSpec::new([torch.to_str().unwrap(), "-c", TRAIN]).with_env("MARKS", dir.path().to_str().unwrap());
    let mut world = world(2);
    for _ in 0..5 {
        let mut squatter = Squatter::new();
        let begun = squatter.begin(dir.path().join("torch/port"), world.generation().0);
        launcher.start(&batch(&world, |_| spec.clone())).await.unwrap();
        trains(dir.path(), &launcher, &world).await;
        begun.await.unwrap();
        let (tries, won) = squatter.end();
        assert!(tries > 100 && won == 0, "{}: {won} of {tries}", world.generation());
        std::fs::write(dir.path().join(format!("end{}", world.restarts())), "").unwrap();
        let (_, ended) = exits(&launcher, &procs(&world)).await;
        assert!(ended.values().all(|exit| exit.how.is_success()), "{ended:?}");
        world = restarted(&world);
    }

    // No process could take a listener here: the port is bound, and the same process of another user has it in no time.
    let mut squatter = Squatter::new();
    let begun = squatter.begin(dir.path().join("torch/port"), world.generation().0);
    let bound = spec.with_env("TASKD_HOOKS", "0");
    launcher.start(&batch(&world, |_| bound.clone())).await.unwrap();
    begun.await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let (tries, won) = squatter.end();
    assert!(won > 0, "{won} of {tries}");
    launcher.stop(&procs(&world), Duration::ZERO).await.unwrap();
    exits(&launcher, &procs(&world)).await;
}

#[tokio::test]
async fn a_job_whose_rank_0_is_killed_goes_on_at_another_port() {
    let Some(torch) = support::torch_python("a_job_whose_rank_0_is_killed_goes_on_at_another_port") else { return };
    let program = "
import os, torch, torch.distributed as dist
dist.init_process_group('gloo')
for step in range(10):
    dist.all_reduce(torch.ones(1000))
    if (os.environ['TORCHELASTIC_RESTART_COUNT'], os.environ['RANK'], step) == ('0', '0', 5):
        os.kill(os.getpid(), 9)
if os.environ['RANK'] == '0':
    listening = [line.split()[1] for line in open('/proc/net/tcp') if line.split()[3] == '0A']
    assert '0100007F:%04X' % int(os.environ['MASTER_PORT']) in listening, listening
dist.barrier()
os._exit(0)";
    let dir = tempfile::tempdir().unwrap();
    let launcher = Arc::new(local(dir.path()).await);
    let job = JobSpec::new("job", 2, WorkerSpec::new([torch.to_str().unwrap(), "-c", program]));
    let runtime = Runtime::builder().job(job).launcher(Arc::clone(&launcher));
    let runtime = runtime.detectors(detect::defaults()).strategies(recover::defaults()).build().unwrap();
    let report = runtime.run().await;
    assert_eq!(report.outcome, Outcome::Completed, "{report}");
    let port = std::fs::read_to_string(dir.path().join("torch/port")).unwrap();
    assert!(port.starts_with("2 "), "{port}");
}

/// Without the helper no process could take the listener: then the port is bound, as it was, and another user may be
/// first.
#[tokio::test]
async fn rank_without_the_helper_listens_on_the_port_itself() {
    let Some(torch) = support::torch_python("rank_without_the_helper_listens_on_the_port_itself") else { return };
    let dir = tempfile::tempdir().unwrap();
    let launcher = local(dir.path()).await;
    let program = "import torch.distributed as dist\ndist.init_process_group('gloo')\ndist.barrier()\ndist.destroy_process_group()";
    let without = |options: &[&str]| {
        WorkerSpec::new(
            [&[torch.to_str().unwrap()], options, &["-c", program]].concat().iter().map(|word| word.to_string()),
        )
    };
    let first = world(2);
    launcher.start(&batch(&first, |_| without(&["-E"]))).await.unwrap();
    let (_, ended) = exits(&launcher, &procs(&first)).await;
    assert!(ended.values().all(|exit| exit.how.is_success()), "{ended:?}");

    let second = restarted(&first);
    launcher.start(&batch(&second, |_| without(&[]).with_env("TASKD_HOOKS", "0"))).await.unwrap();
    let (_, ended) = exits(&launcher, &procs(&second)).await;
    assert!(ended.values().all(|exit| exit.how.is_success()), "{ended:?}");

    // What has no helper without a sign of it fails once, and is without a listener from then on.
    let third = restarted(&second);
    let shell =
        WorkerSpec::new(["sh".to_owned(), "-c".to_owned(), format!("exec {} -E -c \"{program}\"", torch.display())]);
    launcher
        .start(&batch(&third, |Rank(rank)| if rank == 0 { shell.clone() } else { WorkerSpec::new(["true"]) }))
        .await
        .unwrap();
    let (_, ended) = exits(&launcher, &procs(&third)).await;
    let error = ended[&ProcId::rank(0, 3)].error.as_deref().unwrap();
    assert!(error.retry_free, "{error:?}");
    let fourth = restarted(&third);
    launcher.start(&batch(&fourth, |_| shell.clone())).await.unwrap();
    let (_, ended) = exits(&launcher, &procs(&fourth)).await;
    assert!(ended.values().all(|exit| exit.how.is_success()), "{ended:?}");
}

/// Runs two ranks of a program in turn, in one generation each.
async fn all_succeed(programs: &[&str]) {
    let Some(torch) = support::torch_python("programs that listen at the port in their own way") else { return };
    let dir = tempfile::tempdir().unwrap();
    let launcher = local(dir.path()).await;
    let mut world = world(2);
    for program in programs {
        let path = dir.path().join(format!("program{}.py", world.generation().0));
        std::fs::write(&path, program).unwrap();
        let spec = WorkerSpec::new([torch.to_str().unwrap(), path.to_str().unwrap()]);
        launcher.start(&batch(&world, |_| spec.clone())).await.unwrap();
        let (_, ended) = exits(&launcher, &procs(&world)).await;
        assert!(ended.values().all(|exit| exit.how.is_success()), "{program}\n{ended:?}");
        world = restarted(&world);
    }
}

/// A store by hand, by an address and by a name that is not the launcher's; something of Python's; a process that the
/// rank has started; a store of a torch that takes no listener; a store that is made again.
#[tokio::test]
async fn whatever_a_program_has_listen_at_the_port_can() {
    let by_hand = |host: &str| {
        format!(
            "
import os, torch.distributed as dist
rank, port = int(os.environ['RANK']), int(os.environ['MASTER_PORT'])
store = dist.TCPStore('{host}', port, 2, rank == 0)
dist.init_process_group('gloo', store=store, rank=rank, world_size=2)
dist.barrier()"
        )
    };
    let sockets = "
import os, socket, time
port = int(os.environ['MASTER_PORT'])
if os.environ['RANK'] == '0':
    server = socket.create_server(('', port))
    server.accept()[0].sendall(b'x')
else:
    while True:
        try:
            got = socket.create_connection(('127.0.0.1', port)).recv(1)
        except OSError:
            got = b''
        if got: break
        time.sleep(0.01)";
    let started = "
import os, multiprocessing, torch.distributed as dist
def work():
    dist.init_process_group('gloo')
    dist.barrier()
if __name__ == '__main__':
    process = multiprocessing.get_context('spawn').Process(target=work)
    process.start()
    process.join()
    raise SystemExit(process.exitcode)";
    let older = "
import os, _socket, _taskd_framework, _taskd_port
class Store:
    def __init__(self, host_name, port, world_size=None, is_master=False):
        self.socket = _socket.socket()
        self.socket.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
        self.socket.bind(('0.0.0.0', port))
        self.socket.listen()
if os.environ['RANK'] == '0':
    _taskd_framework.host_with_listener(Store, _taskd_port)
    Store('127.0.0.1', int(os.environ['MASTER_PORT']), 2, True)";
    let again = "
import os, torch.distributed as dist
for _ in range(3 if os.environ['RANK'] == '0' else 0):
    dist.init_process_group('gloo', world_size=1)
    dist.barrier()
    dist.destroy_process_group()";
    all_succeed(&[&by_hand("127.0.0.1"), &by_hand("localhost"), sockets, started, older, again]).await;
}

/// The store listens where its ranks dial, and nowhere else.
#[tokio::test]
async fn the_store_of_ranks_on_one_host_is_reached_by_loopback_alone() {
    let program = "
import os, torch.distributed as dist
dist.init_process_group('gloo')
port = '%04X' % int(os.environ['MASTER_PORT'])
listening = [line.split()[1] for name in ('tcp', 'tcp6') for line in open('/proc/net/' + name) if line.split()[3] == '0A']
assert [at for at in listening if at.endswith(':' + port)] == ['0100007F:' + port], listening
dist.barrier()";
    all_succeed(&[program]).await;
}
