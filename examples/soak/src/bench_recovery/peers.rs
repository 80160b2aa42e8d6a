//! The systems that taskd is compared with: their Python environments, and their starts with the fastest settings for
//! this benchmark.
//!
//! If a setting trades speed for tolerance of a slow network, speed is chosen: nothing here is slow except the measured
//! system.

use super::Failure;
use super::candidates::Candidate;
use super::processes::Start;
use std::path::{Path, PathBuf};
use taskd_core::launch::python::venv::VenvSpec;
use taskd_pytorch::venv;

/// Disk space: 7 GB installed, and what pip unpacks meanwhile.
const NEEDS_BYTES: u64 = 11_000_000_000;
const TAKES: &str = "about 7 GB, once, about 2 minutes";

/// Environment of `ft_launcher` and the in-process restart.
static NVRX: VenvSpec = VenvSpec {
    what: "NVIDIA's resiliency extension",
    takes: TAKES,
    requirements: include_str!("../../python/bench_recovery/requirements-nvrx.txt"),
    modules: &["nvidia_resiliency_ext", "torch", "numpy"],
    versions: &[(3, 12), (3, 11), (3, 10)],
    needs_bytes: NEEDS_BYTES,
    variable: "TASKD_PYTHON_NVRX",
};

static TORCHFT: VenvSpec = VenvSpec {
    what: "torchft",
    takes: TAKES,
    requirements: include_str!("../../python/bench_recovery/requirements-torchft.txt"),
    modules: &["torchft", "torch", "numpy"],
    versions: &[(3, 13), (3, 12), (3, 11), (3, 10)],
    needs_bytes: NEEDS_BYTES,
    variable: "TASKD_PYTHON_TORCHFT",
};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/python/bench_recovery/train.py");
const LOOP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/python/bench_recovery/loop.sh");

/// Polling intervals of NVRx's in-process restart, in seconds; the default of each is 1.
const INPROC_SECONDS: &str = r#""seconds":{"monitor_thread_interval":0.05,"monitor_process_interval":0.05,"heartbeat_interval":0.1,"progress_watchdog_interval":0.1,"last_call_wait":0.05}"#;

/// Environment of each rank, whichever system starts it.
pub(crate) const ENVIRONMENT: [(&str, &str); 3] =
    [("OMP_NUM_THREADS", "1"), ("GLOO_SOCKET_IFNAME", "lo"), ("TORCH_CPP_LOG_LEVEL", "ERROR")];

/// Returns the interpreter of a candidate's ranks; a missing environment is created.
pub(crate) async fn python_of(candidate: Candidate) -> Result<PathBuf, Failure> {
    let mut log = |line: &str| println!("python        {line}");
    let located = tokio::task::spawn_blocking(move || match candidate.system() {
        "ft_launcher" | "nvrx-inprocess" => NVRX.locate(&mut log).map(|env| env.python().to_owned()),
        "torchft" => TORCHFT.locate(&mut log).map(|env| env.python().to_owned()),
        _ => venv::locate(&mut log),
    });
    Ok(located.await??)
}

/// One job of the script.
#[derive(Clone, Debug)]
pub(crate) struct Script<'a> {
    pub(crate) python: &'a Path,
    pub(crate) dir: &'a Path,
    pub(crate) ranks: u32,
    pub(crate) state_mib: u32,
    pub(crate) pace_ms: u32,
}

impl Script<'_> {
    /// Returns the script's arguments in this mode.
    pub(crate) fn words(&self, mode: &str) -> Vec<String> {
        let (dir, mib, pace) = (self.dir.display().to_string(), self.state_mib.to_string(), self.pace_ms.to_string());
        [SCRIPT, mode, "--dir", &dir, "--state-mib", &mib, "--pace-ms", &pace].map(str::to_owned).into()
    }

    /// Returns the interpreter and the script's arguments.
    pub(crate) fn command(&self, mode: &str) -> Vec<String> {
        [self.python.display().to_string(), "-u".into()].into_iter().chain(self.words(mode)).collect()
    }

    /// Returns the processes to start for a candidate other than taskd; the ports from `port` on are free.
    pub(crate) fn starts(&self, candidate: Candidate, port: u16) -> Vec<Start> {
        match candidate {
            Candidate::Torchrun => vec![self.torchrun()],
            Candidate::FtLauncher => vec![self.ft_launcher()],
            Candidate::NvrxShrink => self.inproc(port, self.ranks, ""),
            Candidate::NvrxReserve => self.inproc(port, self.ranks + 1, &format!(r#","active":{}"#, self.ranks)),
            Candidate::TorchftShrink | Candidate::TorchftRejoin => self.torchft(port),
            _ => vec![self.floor(port, None)],
        }
    }

    /// Starts the ranks in a shell loop, with the next port each time.
    pub(crate) fn floor(&self, port: u16, steps: Option<u64>) -> Start {
        let (ranks, port) = (self.ranks.to_string(), port.to_string());
        let words = ["bash", LOOP, "ranks", &ranks, &port].map(str::to_owned);
        let end = steps.map(|steps| ["--steps".to_owned(), steps.to_string()]);
        Start::new(words.into_iter().chain(self.command("plain")).chain(end.into_iter().flatten()))
    }

    fn torchrun(&self) -> Start {
        let (python, ranks) = (self.python.display().to_string(), self.ranks.to_string());
        let words = [&python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", &ranks];
        let words = words.into_iter().chain(["--max-restarts", "3", "--monitor-interval", "0.01"]).map(str::to_owned);
        // A separate store for each attempt: with the shared one ranks find addresses of dead processes, and hang.
        Start::new(words.chain(self.words("plain"))).env("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    }

    fn ft_launcher(&self) -> Start {
        let (launcher, ranks) = (self.beside_python("ft_launcher"), self.ranks.to_string());
        let words = [&launcher, "--standalone", "--nproc-per-node", &ranks, "--max-restarts", "3"].into_iter();
        let words = words.chain(["--monitor-interval", "0.02", "--ft-param-workload_check_interval", "0.1"]);
        let words = words.chain(["--workers-stop-timeout", "1"]).map(str::to_owned);
        Start::new(words.chain(self.words("plain")))
    }

    /// Without a launcher, which would end all ranks when one ends.
    fn inproc(&self, port: u16, processes: u32, active: &str) -> Vec<Start> {
        let one = |rank: u32| {
            let tuning = ["--tuning".to_owned(), format!("{{{INPROC_SECONDS}{active}}}")];
            let start = Start::new(self.command("inproc").into_iter().chain(tuning));
            let start = start.env("RANK", rank).env("LOCAL_RANK", rank).env("WORLD_SIZE", processes);
            start.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port).env("TRAIN_PORT", port + 8)
        };
        (0..processes).map(one).collect()
    }

    /// A lighthouse, and replicas of one rank, each of which a shell loop restarts at once.
    fn torchft(&self, port: u16) -> Vec<Start> {
        let (program, bind) = (self.beside_python("torchft_lighthouse"), format!("127.0.0.1:{port}"));
        let words = [&program, "--bind", &bind, "--min_replicas", "1", "--quorum_tick_ms", "10"].into_iter();
        let words = words.chain(["--join_timeout_ms", "100", "--heartbeat_timeout_ms", "500"]).map(str::to_owned);
        let lighthouse = Start::new(words);
        let replica = |rank: u32| {
            let words = ["bash", LOOP, "one"].map(str::to_owned).into_iter().chain(self.command("torchft"));
            let start = Start::new(words.chain(["--tuning".to_owned(), r#"{"heartbeat_ms":50}"#.to_owned()]));
            start.env("REPLICA_GROUP_ID", rank).env("TORCHFT_LIGHTHOUSE", format!("http://{bind}"))
        };
        std::iter::once(lighthouse).chain((0..self.ranks).map(replica)).collect()
    }

    fn beside_python(&self, program: &str) -> String {
        self.python.with_file_name(program).display().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starts(candidate: Candidate) -> Vec<Start> {
        let (python, dir) = (Path::new("/env/bin/python"), Path::new("/job"));
        Script { python, dir, ranks: 2, state_mib: 1, pace_ms: 20 }.starts(candidate, 7000)
    }

    fn words(start: &Start) -> String {
        start.words().join(" ")
    }

    #[test]
    fn each_is_started_with_what_serves_it_best() {
        let torchrun = starts(Candidate::Torchrun);
        assert!(words(&torchrun[0]).contains("--nproc-per-node 2 --max-restarts 3 --monitor-interval 0.01"));
        assert_eq!(torchrun[0].variable("TORCH_DISABLE_SHARE_RDZV_TCP_STORE"), Some("1"));
        let ft = words(&starts(Candidate::FtLauncher)[0]);
        assert!(
            ft.starts_with("/env/bin/ft_launcher --standalone") && ft.contains("--workers-stop-timeout 1 "),
            "{ft}"
        );
        let shrink = starts(Candidate::NvrxShrink);
        let reserve = starts(Candidate::NvrxReserve);
        assert_eq!((shrink.len(), reserve.len()), (2, 3));
        assert!(words(&reserve[2]).contains(r#""active":2}"#) && !words(&shrink[1]).contains("active"));
        assert_eq!((reserve[2].variable("RANK"), reserve[2].variable("WORLD_SIZE")), (Some("2"), Some("3")));
        let torchft = starts(Candidate::TorchftRejoin);
        assert_eq!(torchft.len(), 3);
        assert!(words(&torchft[0]).contains("--heartbeat_timeout_ms 500"), "{torchft:?}");
        let floor = starts(Candidate::Floor);
        assert!(words(&floor[0]).contains("loop.sh ranks 2 7000 /env/bin/python -u"), "{floor:?}");
    }

    #[test]
    fn in_process_restart_tuning_is_json() {
        for candidate in [Candidate::NvrxShrink, Candidate::NvrxReserve] {
            for start in starts(candidate) {
                let tuning = start.words().last().expect("the tuning");
                assert!(serde_json::from_str::<serde_json::Value>(tuning).is_ok(), "{tuning}");
            }
        }
    }
}
