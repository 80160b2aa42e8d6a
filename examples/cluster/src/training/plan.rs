//! What a training consists of, and the command lines of its programs.

use super::PATIENCE;
use crate::hosts::{Host, Hosts};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Port at which a manager listens on its host.
const PORT: u16 = 9601;
/// More steps than any job trains: a job is ordered to end.
const STEPS_MAX: u64 = 10_000_000;
/// The training script.
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../python/train_recover.py");

/// What a training consists of.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The Python interpreter, with torch.
    pub python: PathBuf,
    /// Ranks. They begin on the first hosts that have room.
    pub ranks: u32,
    /// Fewest ranks with which the job trains, if hosts are lost.
    pub min_ranks: u32,
    /// Ranks that each host can hold, from `h1` on; the last number counts for all further hosts.
    pub slots: Vec<u32>,
    /// Hosts of the job.
    pub hosts: usize,
    /// Hosts that vote on the manager; the first one forms the job and is its first manager. If there are none, `h1` is
    /// the only manager.
    pub voters: Vec<String>,
    /// Hosts under the leaf switch `l1`; the others are under `l2`. If there are any, a policy of membership decides which
    /// hosts train, and the first hosts state their node ranks.
    pub leaf: Vec<String>,
    /// Lease of a host.
    pub lease: Duration,
    /// Pause in each step, in milliseconds.
    pub pace_ms: u64,
}

impl Plan {
    /// Returns true if any of several hosts can be the manager.
    #[must_use]
    pub fn has_voters(&self) -> bool {
        !self.voters.is_empty()
    }

    /// Returns the ranks that a host can hold.
    fn slots_of(&self, host: &str) -> u32 {
        let number: usize = host.trim_start_matches('h').parse().unwrap_or(1);
        self.slots.get(number.saturating_sub(1)).or(self.slots.last()).copied().unwrap_or(1)
    }

    /// Returns the arguments of the program on host `at`, which states this job and this host name.
    pub(super) fn arguments(&self, hosts: &Hosts, at: &str, job: &str, host_name: &str) -> io::Result<Vec<String>> {
        let host = hosts.get(at)?;
        let is_manager = at == "h1" && job == "job" && !self.has_voters();
        let mut arguments = vec![if self.has_voters() {
            "train".to_owned()
        } else {
            if is_manager { "manager" } else { "agent" }.to_owned()
        }];
        arguments.extend(self.common(job, host_name, host));
        if self.has_voters() {
            let voter = |name: &String| Ok(format!("{name}={}:{PORT}", hosts.get(name)?.address()));
            let voters = self.voters.iter().map(voter).collect::<io::Result<Vec<_>>>()?;
            arguments.extend(["--voters".into(), voters.join(",")]);
        } else if is_manager {
            arguments.extend(["--listen".into(), format!("{}:{PORT}", host.address())]);
        } else {
            arguments.extend(["--manager".into(), format!("{}:{PORT}", hosts.get("h1")?.address())]);
        }
        if is_manager || self.has_voters() {
            arguments.extend(self.job(&super::dir(hosts)));
        }
        Ok(arguments)
    }

    /// Returns the options of all roles for a program on this host.
    fn common(&self, job: &str, host_name: &str, host: &Host) -> Vec<String> {
        let (dir, address) = (host.dir().display().to_string(), host.address().to_string());
        let (slots, lease) = (self.slots_of(host.name()).to_string(), self.lease.as_millis().to_string());
        let options = [
            ("--job", job),
            ("--host", host_name),
            ("--dir", &dir),
            ("--address", &address),
            ("--slots", &slots),
            ("--lease-ms", &lease),
        ];
        let options = options.iter().flat_map(|(name, value)| [(*name).to_owned(), (*value).to_owned()]);
        options.chain(self.place(host_name)).collect()
    }

    /// Returns the options that state the place of a host.
    fn place(&self, host: &str) -> Vec<String> {
        if self.leaf.is_empty() {
            return Vec::new();
        }
        let leaf = if self.leaf.iter().any(|under| under == host) { "leaf=l1" } else { "leaf=l2" };
        let mut options = vec!["--label".to_owned(), leaf.to_owned()];
        let number = host.trim_start_matches('h').parse::<u32>().ok().and_then(|number| number.checked_sub(1));
        if let Some(number) = number.filter(|number| *number < self.ranks) {
            options.extend(["--node-rank".to_owned(), number.to_string()]);
        }
        options
    }

    /// Returns the options of a manager, or of a candidate, with the command of a rank.
    fn job(&self, dir: &Path) -> Vec<String> {
        let numbers = [
            ("--hosts", self.hosts as u64),
            ("--ranks", self.ranks.into()),
            ("--min-ranks", self.min_ranks.into()),
            ("--wait-s", PATIENCE.as_secs()),
        ];
        let numbers = numbers.iter().flat_map(|(name, value)| [(*name).to_owned(), value.to_string()]);
        let (python, dir) = (self.python.display().to_string(), dir.display().to_string());
        let (steps, pace, timeout) = (STEPS_MAX.to_string(), self.pace_ms.to_string(), PATIENCE.as_secs().to_string());
        let words = ["--json", "--", &python, "-u", SCRIPT, "--dir", &dir, "--steps", &steps, "--state-mib", "1"];
        let words = words.into_iter().chain(["--pace-ms", &pace, "--timeout-s", &timeout]);
        let spares = (self.hosts as u64).saturating_sub(self.ranks.into()).to_string();
        let spares = ["--spares".to_owned(), spares, "--last-call-s".to_owned(), PATIENCE.as_secs().to_string()];
        let spares = spares.into_iter().filter(|_| !self.leaf.is_empty());
        numbers.chain(spares).chain(words.map(str::to_owned)).collect()
    }
}
