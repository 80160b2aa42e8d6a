//! Measures a manager with many agents: real agents over fake launchers, in a few processes, over gRPC with mTLS on
//! loopback.
//!
//! Three voters elect the manager. Each is a process of its own, so that the manager's processor time and memory are
//! measured alone; the agents share the machine's cores with it.
//!
//! ```text
//! cargo run --release -p taskd-cluster-example --example bench_cluster -- --agents 1000,3000,10000 \
//!     --seconds 60 --json
//! ```

mod agents;
mod child;
mod etcd;
mod job;
mod manager;
mod measure;
mod report;
mod torch;

use clap::Parser;
use report::{Growth, Row};
use std::path::PathBuf;
use std::process::ExitCode;
use taskd_examples::program::{self, Failure, number};

/// Number of agents up to which each gets the whole world.
const WHOLE_WORLD_MAX: u32 = 1000;

/// Measures a manager with many agents.
#[derive(Debug, Parser)]
struct Options {
    /// Numbers of agents; each is measured in a run of its own.
    #[arg(long, value_delimiter = ',', default_value = "100", value_parser = number::<u32>(2, 100_000))]
    agents: Vec<u32>,
    /// Seconds for which leases are kept alive and the manager's processor time is measured.
    #[arg(long, default_value_t = 10, value_parser = number::<u64>(1, 86_400))]
    seconds: u64,
    /// Processes that share the agents.
    #[arg(long, default_value_t = 4, value_parser = number::<u32>(1, 64))]
    processes: u32,
    /// Broadcasts of each kind.
    #[arg(long, default_value_t = 5, value_parser = number::<u32>(1, 1000))]
    rounds: u32,
    /// Agents to which one sender passes a relayed broadcast.
    #[arg(long, default_value_t = 32, value_parser = number::<u32>(1, 1024))]
    fanout: u32,
    /// Factor of all times of leases, elections and connections: for a machine that other programs use too.
    #[arg(long, default_value_t = 1, value_parser = number::<u32>(1, 100))]
    slow: u32,
    /// Longest election timeout of the voters in milliseconds; by default it follows from the lease. A longer one helps if
    /// the agents leave the voters too little processor time
    #[arg(long, value_parser = number::<u64>(24, 600_000))]
    election_ms: Option<u64>,
    /// Starts ranks with an empty world. So are those of more than 1,000 agents: each host would decode the world of all
    /// hosts on the cores of this machine.
    #[arg(long)]
    empty_world: bool,
    /// Also measures the same with etcd as the consensus engine, up to the change of the manager.
    #[arg(long)]
    etcd: bool,
    /// Also measures torch's TCPStore with this number of clients; 0 measures it with as many as agents.
    #[arg(long)]
    torch: Option<u32>,
    /// Prints one line of JSON at the end.
    #[arg(long)]
    json: bool,
}

/// What a process of the benchmark is.
#[derive(Debug, Parser)]
enum Role {
    /// A candidate.
    Manager(manager::Options),
    /// A part of the agents.
    Agents(agents::Options),
}

fn main() -> ExitCode {
    if std::env::var_os(child::ROLE).is_some() {
        return match program::options() {
            Role::Manager(options) => program::run("manager", Box::pin(manager::run(options))),
            Role::Agents(options) => program::run("agents", Box::pin(agents::run(options))),
        };
    }
    let options: Options = program::options();
    program::run("bench_cluster", async move {
        tokio::task::spawn_blocking(move || run(&options)).await?.map_err(Failure::from)
    })
}

fn run(options: &Options) -> Result<(), String> {
    let mut rows = Vec::new();
    for agents in &options.agents {
        let mut settings = measure::Settings {
            agents: *agents,
            seconds: options.seconds,
            processes: options.processes,
            rounds: options.rounds,
            fanout: options.fanout,
            starts: !options.empty_world && *agents <= WHOLE_WORLD_MAX,
            slow: options.slow,
            election_ms: options.election_ms,
            etcd: false,
        };
        let mut row = Row::default();
        if let Err(why) = measure::run(&settings, &mut row) {
            eprintln!("{row}"); // what was measured before the failure
            return Err(why);
        }
        if options.etcd {
            settings.etcd = true;
            row.etcd = Some(measure::change_of_manager(&settings)?);
        }
        if let Some(clients) = options.torch {
            row.torch = Some(torch::measure(if clients == 0 { *agents } else { clients })?);
        }
        if options.agents.len() > 1 && !options.json {
            println!("{row}");
        }
        rows.push(row);
    }
    let growth = Growth { rows };
    program::print(&growth, options.json, || growth.to_string());
    Ok(())
}

/// Returns a directory for one run, which is removed with the result.
fn directory() -> Result<(PathBuf, Removed), String> {
    let path = std::env::temp_dir().join(format!("bench_cluster-{}", std::process::id()));
    std::fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok((path.clone(), Removed(path)))
}

/// Removes a directory when it is dropped.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0); // a temporary directory
    }
}
