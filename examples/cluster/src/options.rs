//! The options of the program.

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use taskd_core::cluster::ClusterSettings;
use taskd_examples::program::number;

/// Trains a PyTorch script on many hosts. Start `train` with the same options on every host; or `manager` on one host, and
/// `agent` on every other one.
#[derive(Debug, Parser)]
pub struct Options {
    /// What this process is.
    #[command(subcommand)]
    pub role: Role,
}

/// What a process is.
#[derive(Debug, Subcommand)]
pub enum Role {
    /// A host of a job that survives the loss of any host: the manager is elected.
    Train(TrainOptions),
    /// A voter without ranks on a third machine, for jobs of two hosts.
    Witness(WitnessOptions),
    /// The manager of the job, together with the agent of its host. The job ends with it.
    Manager(ManagerOptions),
    /// The agent of a host.
    Agent(AgentOptions),
}

/// Options of both roles.
#[derive(Clone, Debug, Args)]
pub struct Common {
    /// Name of the job: an agent of another job is not admitted.
    #[arg(long, default_value = "job")]
    pub job: String,
    /// Name of this host (default: its host name).
    #[arg(long)]
    pub host: Option<String>,
    /// Address of this host, at which the other hosts reach it.
    #[arg(long)]
    pub address: Option<IpAddr>,
    /// Ranks that this host can hold; 0 for a host that only votes.
    #[arg(long, default_value_t = 1, value_parser = number::<u32>(0, 1024))]
    pub slots: u32,
    /// Directory of this host for the output of the ranks and the files of taskd.
    #[arg(long)]
    pub dir: PathBuf,
    /// A label of this host, `NAME=VALUE`, such as its place in the network: `leaf=l1`. Can be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = label)]
    pub label: Vec<(String, String)>,
    /// The node rank that this host states, from 0 (default: the manager chooses one).
    #[arg(long)]
    pub node_rank: Option<u32>,
    /// Milliseconds for which a host may train without contact to a manager that is in office.
    #[arg(long, default_value_t = 1700, value_parser = number::<u64>(700, 600_000))]
    pub lease_ms: u64,
    /// Milliseconds without a message after which a host is out of sight, and connects again.
    #[arg(long, default_value_t = 500, value_parser = number::<u64>(450, 300_000))]
    pub silent_ms: u64,
}

/// Options of the manager.
#[derive(Clone, Debug, Args)]
pub struct ManagerOptions {
    /// Options of the host.
    #[command(flatten)]
    pub common: Common,
    /// Address at which agents connect.
    #[arg(long, default_value = "0.0.0.0:9601")]
    pub listen: SocketAddr,
    /// Ranks of the job (default: as many as the largest number of hosts can hold).
    #[arg(long, value_parser = number::<u32>(1, 100_000))]
    pub ranks: Option<u32>,
    /// Fewest ranks with which the job trains, if hosts are lost (default: those of the smallest number of hosts).
    #[arg(long)]
    pub min_ranks: Option<u32>,
    /// Hosts of the job: `MIN:MAX` for a job that begins with at least MIN hosts of equal slots, and grows and shrinks; with
    /// one number and `--ranks`, this number must have registered, and the ranks begin on the first hosts with room.
    #[arg(long, default_value = "1", value_name = "MIN:MAX")]
    pub hosts: HostRange,
    /// Further hosts that do not train, to replace lost ones.
    #[arg(long, default_value_t = 0)]
    pub spares: u32,
    /// The number of hosts that train is a multiple of this.
    #[arg(long, default_value_t = 1, value_parser = number::<u32>(1, 100_000))]
    pub node_unit: u32,
    /// Seconds to wait for the smallest number of hosts: at the start, and after losses.
    #[arg(long, default_value_t = 60, value_parser = number::<u64>(1, 86_400))]
    pub wait_s: u64,
    /// Seconds in which more hosts can join a job that could begin or grow.
    #[arg(long, default_value_t = 30, value_parser = number::<u64>(0, 86_400))]
    pub last_call_s: u64,
    /// Seconds for which a job that has lost a host waits for a replacement before it continues without one.
    #[arg(long, default_value_t = 0, value_parser = number::<u64>(0, 86_400))]
    pub shrink_after_s: u64,
    /// File with the places of the hosts in the network (default: the labels of the hosts, such as `leaf=l1`).
    #[arg(long)]
    pub topology: Option<PathBuf>,
    /// Directory that all hosts share, for checkpoints.
    #[arg(long)]
    pub checkpoints: Option<PathBuf>,
    /// Steps between two checkpoints in the memory of the hosts, of which another host has a second copy (default: none
    /// are made). The script has to call `taskd.load_checkpoint`.
    #[arg(long)]
    pub memory_every: Option<NonZeroU64>,
    /// Directory to which the records of all hosts are copied at the end of the job, for a report. Otherwise they stay on
    /// the hosts.
    #[arg(long)]
    pub records: Option<PathBuf>,
    /// When the start of a rank is complete: `running` for programs that report no training steps.
    #[arg(long, value_enum, default_value_t = StartIs::Stepping)]
    pub start_is: StartIs,
    /// Prints the report of the job as one line of JSON at the end.
    #[arg(long)]
    pub json: bool,
    /// The command of a rank: an interpreter with the script and its arguments.
    #[arg(last = true, required = true)]
    pub command: Vec<String>,
}

/// Options of a host of a job without a fixed manager.
#[derive(Clone, Debug, Args)]
pub struct TrainOptions {
    /// How the manager is elected.
    #[command(flatten)]
    pub engine: EngineOptions,
    /// Options of the job.
    #[command(flatten)]
    pub job: ManagerOptions,
}

/// Options of an agent.
#[derive(Clone, Debug, Args)]
pub struct AgentOptions {
    /// Options of the host.
    #[command(flatten)]
    pub common: Common,
    /// Address of the manager; more than one if there are several candidates.
    #[arg(long, required = true)]
    pub manager: Vec<String>,
}

impl ManagerOptions {
    /// Returns true if a policy of membership decides which hosts take part.
    #[must_use]
    pub fn is_elastic(&self) -> bool {
        self.hosts.min < self.hosts.max || self.ranks.is_none() || self.spares > 0 || self.node_unit > 1
    }
}

/// Numbers of hosts: the smallest and the largest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostRange {
    /// The smallest number.
    pub min: u32,
    /// The largest number.
    pub max: u32,
}

impl FromStr for HostRange {
    type Err = String;

    fn from_str(text: &str) -> Result<HostRange, String> {
        let (min, max) = text.split_once(':').unwrap_or((text, text));
        match (min.parse(), max.parse()) {
            (Ok(min), Ok(max)) if 0 < min && min <= max => Ok(HostRange { min, max }),
            _ => Err(format!("{text} is no number of hosts: write 4, or 2:4 for two to four")),
        }
    }
}

/// When the start of a rank is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StartIs {
    /// It has completed a training step.
    Stepping,
    /// Its process runs.
    Running,
}

/// The consensus engine of a job: one of three. All hosts are started with the same options.
#[derive(Clone, Debug, Args)]
#[group(id = "engine", required = true, multiple = true)]
pub struct EngineOptions {
    /// Embedded engine: the hosts that vote, `HOST=ADDRESS:PORT` each: three or five, with a witness two or four. Of more
    /// hosts, three or five vote first: those in different domains of the file of `--topology`, the same on all hosts. A
    /// voter on a lost host is replaced by one on another host of the job.
    #[arg(long, value_delimiter = ',', conflicts_with_all = ["etcd", "single", "candidates"])]
    pub voters: Vec<String>,
    /// Embedded engine: the voter without ranks, `HOST=ADDRESS:PORT`, which `taskd-witness` runs.
    #[arg(long, requires = "voters")]
    pub witness: Option<String>,
    /// etcd engine: URIs of the members of an etcd, such as http://10.0.0.1:2379.
    #[arg(long, value_delimiter = ',', requires = "candidates", conflicts_with = "single")]
    pub etcd: Vec<String>,
    /// etcd engine: the hosts that can become manager, `HOST=ADDRESS:PORT` each.
    #[arg(long, value_delimiter = ',', requires = "etcd")]
    pub candidates: Vec<String>,
    /// No standby: the host that is the manager, `HOST=ADDRESS:PORT`. The job ends with it.
    #[arg(long)]
    pub single: Option<String>,
}

/// Options of a witness.
#[derive(Clone, Debug, Parser)]
#[command(name = "taskd-witness")]
pub struct WitnessOptions {
    /// Name of the job.
    #[arg(long, default_value = "job")]
    pub job: String,
    /// The voters of the job, as its hosts are started with.
    #[arg(long, value_delimiter = ',', required = true)]
    pub voters: Vec<String>,
    /// This witness, `HOST=ADDRESS:PORT`, as the hosts are started with. It listens at this address.
    #[arg(long)]
    pub witness: String,
    /// Directory of the witness's store.
    #[arg(long)]
    pub dir: PathBuf,
    /// Milliseconds of the hosts' leases, from which the times of elections follow: as the hosts are started with.
    #[arg(long, default_value_t = 1700, value_parser = number::<u64>(700, 600_000))]
    pub lease_ms: u64,
}

fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=').filter(|(name, _)| !name.is_empty()) {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => Err(format!("{text} is no label: write NAME=VALUE, such as leaf=l1")),
    }
}

impl Common {
    /// Returns the labels of the host.
    #[must_use]
    pub fn labels(&self) -> BTreeMap<String, String> {
        self.label.iter().cloned().collect()
    }

    /// Returns the times of leases.
    #[must_use]
    pub fn settings(&self) -> ClusterSettings {
        let [lease, silent_after] = [self.lease_ms, self.silent_ms].map(Duration::from_millis);
        ClusterSettings::default().with_lease(lease).with_silent_after(silent_after)
    }
}
