//! Both servers as processes: taskd's, which is this program started again, and torch's own in a Python process.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};
use taskd_core::job::Generation;
use taskd_examples::program::Failure;
use taskd_pytorch::store::{StoreControl, StoreProgram};

/// torch's server, which runs until its input ends. It listens at all addresses, as taskd's does here.
const TORCHS: &str = "import sys, torch.distributed as dist\n\
    store = dist.TCPStore('127.0.0.1', 0, None, True, wait_for_workers=False, use_libuv=True)\n\
    print(store.port, flush=True)\n\
    sys.stdin.read()";
/// Runs a command with name look-ups from files only, if the system permits that.
const WITHOUT_NAMES: &str = r#"printf 'hosts: files\n' > nsswitch.conf
    mount --bind nsswitch.conf /etc/nsswitch.conf && echo none || echo asked
    exec "$@""#;

/// Time limit for the start of a server, which imports torch.
const START_WITHIN: Duration = Duration::from_secs(120);

/// A server in a process of its own, which ends when this is dropped.
pub(crate) struct Server {
    process: Child,
    pub(crate) address: SocketAddr,
    /// True if it looks up names elsewhere than in files.
    pub(crate) asks_name_service: bool,
    _input: Option<ChildStdin>,
    _control: Option<StoreControl>,
}

impl Server {
    /// Starts taskd's server, at a port of its own.
    pub(crate) async fn ours(dir: &Path) -> Result<Server, Failure> {
        let path = dir.join("control");
        let command = StoreProgram::ReexecSelf.command(Some(&path))?;
        let process = Command::new(&command[0]).args(&command[1..]).spawn()?;
        let begun = Instant::now();
        let mut control = loop {
            match StoreControl::connect(&path).await {
                Ok(control) => break control,
                Err(error) if begun.elapsed() > START_WITHIN => return Err(error.into()),
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        };
        let listener = TcpListener::bind("[::]:0").or_else(|_| TcpListener::bind("0.0.0.0:0"))?;
        let address = at(listener.local_addr()?.port());
        control.serve(Generation(1), listener).await?;
        Ok(Server { process, address, asks_name_service: false, _input: None, _control: Some(control) })
    }

    /// Starts torch's own server, with libuv, which is the default. Its look-ups of every client's name are answered
    /// from files, if possible: otherwise the name service would be measured rather than the server.
    pub(crate) fn torchs(python: &Path, dir: &Path) -> Result<Server, Failure> {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c", WITHOUT_NAMES, "sh"]).arg(python);
        command.args(["-c", TORCHS]).current_dir(dir).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.env("TORCH_CPP_LOG_LEVEL", "ERROR").spawn()?;
        let input = process.stdin.take();
        let output = process.stdout.take().ok_or("no pipe to torch's server")?;
        let mut lines = BufReader::new(output).lines();
        let mut line = || lines.next().ok_or("torch's server has ended before it served")?.map_err(Failure::from);
        let asks_name_service = line()? != "none";
        let address = at(line()?.parse()?);
        Ok(Server { process, address, asks_name_service, _input: input, _control: None })
    }

    /// Returns its user time, in clock ticks.
    pub(crate) fn user_ticks(&self) -> Result<u64, Failure> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process.id()))?;
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        Ok(fields.split_whitespace().nth(11).ok_or("no user time in /proc/PID/stat")?.parse()?)
    }

    /// Returns its private memory in bytes.
    pub(crate) fn memory(&self) -> Result<u64, Failure> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let kib = line.ok_or("no RssAnon in /proc/PID/status")?.trim().trim_end_matches(" kB");
        Ok(kib.parse::<u64>()? * 1024)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill(); // an error means that it has ended already
        let _ = self.process.wait();
    }
}

fn at(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}
