//! Process groups over the store: several ranks, several generations, a rank that is killed.

use crate::raw::Raw;
use crate::service::Store;
use crate::support::torch_python;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use taskd_core::job::Generation;
use taskd_pytorch::store::Query;

/// A rank in a process of its own, which is killed with this.
struct Rank {
    process: Child,
    to: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Rank {
    fn start(python: &Path, rank: usize, size: usize, ports: &[u16]) -> Rank {
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/store/group.py");
        let mut command = Command::new(python);
        command.arg(program).args([rank, size].map(|n| n.to_string())).args(ports.iter().map(u16::to_string));
        command.env("OMP_NUM_THREADS", "1").env("TORCH_CPP_LOG_LEVEL", "ERROR");
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let (to, output) = (process.stdin.take().unwrap(), BufReader::new(process.stdout.take().unwrap()));
        Rank { process, to, output }
    }

    /// Its next line; gloo prints some of its own.
    fn line(&mut self) -> String {
        loop {
            let mut line = String::new();
            self.output.read_line(&mut line).unwrap();
            if !line.starts_with("[Gloo]") {
                return line.trim().to_owned();
            }
        }
    }

    /// It may join the next group.
    fn join(&mut self) {
        self.to.write_all(b"\n").unwrap();
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gloo_groups_join_in_every_generation_after_a_kill() {
    let Some(python) = torch_python("groups_of_gloo_join_in_every_generation") else { return };
    let mut store = Store::start().await;
    let mut ports = Vec::new();
    for generation in 1..=3 {
        ports.push(store.serve(generation).await.port());
    }
    let mut ranks: Vec<Rank> = (0..3).map(|rank| Rank::start(&python, rank, 3, &ports)).collect();
    let lines =
        |ranks: &mut [Rank]| tokio::task::block_in_place(|| ranks.iter_mut().map(Rank::line).collect::<Vec<_>>());

    // The first: everything goes well.
    assert_eq!(lines(&mut ranks), vec![format!("at {}", ports[0]); 3]);
    ranks.iter_mut().for_each(Rank::join);
    assert_eq!(lines(&mut ranks), vec![format!("done {}", ports[0]); 3]);

    // The second: two ranks wait for the third. One of them is killed where it waits, and no other rank is affected.
    assert_eq!(lines(&mut ranks), vec![format!("at {}", ports[1]); 3]);
    ranks[0].join();
    ranks[1].join();
    let waits =
        |stats: &taskd_pytorch::store::Stats| stats.generations.iter().find(|g| g.generation.0 == 2).unwrap().waits;
    store.until("two waits", |stats| waits(stats) == 2).await;
    let before = store.control.stats().await.unwrap();
    drop(ranks.remove(1));
    let stats = store.until("one wait less", |stats| waits(stats) == 1).await;
    assert!(stats.left + stats.lost > before.left + before.lost, "it is known to be gone");
    assert!(store.control.retire(Generation(2)).await.unwrap());
    assert_eq!(tokio::task::block_in_place(|| ranks[0].line()), format!("failed {} DistNetworkError", ports[1]));
    assert!(std::net::TcpStream::connect(("127.0.0.1", ports[1])).is_err(), "no rank joins what is over");

    // The third: all ranks again, as after a restart. (Torch counts a process's groups: a rank with more behind it than
    // others looks for other keys.)
    drop(ranks);
    let mut all: Vec<Rank> = (0..3).map(|rank| Rank::start(&python, rank, 3, &ports[2..])).collect();
    assert_eq!(lines(&mut all), vec![format!("at {}", ports[2]); 3]);
    all.iter_mut().for_each(Rank::join);
    assert_eq!(lines(&mut all), vec![format!("done {}", ports[2]); 3]);
    drop(all);
    let stats = store.until("no client", |stats| stats.clients == 0).await;
    assert_eq!(stats.generations.iter().map(|held| held.generation.0).collect::<Vec<_>>(), [1, 3]);
}

#[tokio::test]
async fn client_killed_in_a_wait_does_not_disturb_other_waits() {
    let mut store = Store::start().await;
    let address = store.serve(1).await;
    let (mut other, mut setter) = (Raw::client(address), Raw::client(address));
    other.wait("k");
    // A process of its own, so that the system closes its socket in the middle of whatever it was about to do.
    let program = "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n\
                   s.sendall(bytes.fromhex('00cef7853c') + bytes.fromhex('06' + '01' + '00' * 7 + '01' + '00' * 7) + b'k')\n\
                   s.sendall(bytes.fromhex('01ff'))\n\
                   sys.stdin.read()";
    let mut command = Command::new(taskd_core::testing::python::system());
    let mut killed = command.args(["-c", program, &address.port().to_string()]).stdin(Stdio::piped()).spawn().unwrap();
    store.until("two waits", |stats| stats.generations[0].waits == 2).await;
    killed.kill().unwrap();
    killed.wait().unwrap();
    let stats = store.until("one wait", |stats| stats.generations[0].waits == 1).await;
    assert_eq!((stats.left + stats.lost, stats.requested(Query::Set)), (1, 0), "what it had begun to say is forgotten");
    setter.set("k", b"1");
    assert_eq!(other.receive(1), [0], "a rank that still waits is notified");
    assert_eq!(other.get("k"), b"1");
    assert_eq!(store.control.stats().await.unwrap().buffer_bytes, 0);
}
