//! taskd's store beside torch's own `TCPStore` server: the same clients, on the same machine, in turns.
//!
//! `cargo run --release -p taskd-soak --example bench_store` prints a table, `--json` the figures as the last line. It
//! needs PyTorch (of the environment that `pytorch_ddp` uses). `--quick` shrinks everything until it only shows that
//! the program works.
//!
//! The load comes from this program, one thread that speaks the protocol itself, since torch's client in Python would
//! mostly measure Python. In each round both servers have their turn, once this one first and once that one. Every
//! ratio is ours to torch's, of the same round; operations, joins and barriers are rates, so more is better, and of the
//! others less. A call is one of torch's client: a set is one request without an answer, a get two with one each, an
//! add one.

mod load;
mod servers;

use clap::Parser;
use load::Clients;
use rustix::process::Resource;
use serde::Serialize;
use servers::Server;
use std::fmt::Write;
use std::process::ExitCode;
use std::time::Duration;
use taskd_core::launch::guard;
use taskd_examples::program::{self, Failure, number};
use taskd_examples::samples::Samples;
use taskd_pytorch::store;
use taskd_pytorch::venv;

/// Descriptors that this program needs besides its clients'.
const OTHER_FILES: u64 = 64;
/// A clock tick of `/proc/PID/stat`, in microseconds: 100 a second on every machine, as Linux reports it to programs.
const TICK_US: f64 = 10_000.0;

/// Measures taskd's store beside torch's own server.
#[derive(Debug, Parser)]
struct Options {
    /// Rounds; in each both servers have a turn.
    #[arg(long, allow_negative_numbers = true, default_value_t = 5, value_parser = number::<usize>(1, 1000))]
    rounds: usize,
    /// Clients that set, get and add.
    #[arg(long, allow_negative_numbers = true, default_value_t = 64, value_parser = number::<usize>(1, 10_000))]
    connections: usize,
    /// Clients that join, and meet at barriers.
    #[arg(long, allow_negative_numbers = true, default_value_t = 2000, value_parser = number::<usize>(1, 20_000))]
    clients: usize,
    /// Seconds of operations in each turn.
    #[arg(long, allow_negative_numbers = true, default_value_t = 5, value_parser = number::<u64>(1, 3600))]
    seconds: u64,
    /// Two short rounds: checks that the program works; its figures mean nothing.
    #[arg(long)]
    quick: bool,
    /// Prints the figures as one line of JSON at the end.
    #[arg(long)]
    json: bool,
}

/// What one turn of one server came to.
#[derive(Clone, Copy, Debug)]
struct Turn {
    operations: f64,
    joins: f64,
    barriers: f64,
    p50_us: f64,
    p99_us: f64,
    user_us: f64,
    calls: u64,
    bytes_per_client: f64,
}

/// A line of the table: what it is, digits after the point, and where it stands.
type Row = (&'static str, usize, fn(&Turn) -> f64);

/// What `--json` prints: medians over the rounds, but for user time, which is that of all rounds together.
#[derive(Debug, Serialize)]
struct Figures {
    ops_ratio: f64,
    join_ratio: f64,
    barrier_ratio: f64,
    p50_ratio: f64,
    p99_ratio: f64,
    user_cpu_per_op_ratio: f64,
    bytes_per_client: f64,
    bytes_per_client_torch: f64,
    rounds: usize,
    connections: usize,
    clients: usize,
    /// Whether torch's server had a name service to ask, which costs it at every join.
    torch_asks_name_service: bool,
}

fn main() -> ExitCode {
    guard::init();
    store::init(); // this program is also the store, in which this call does not return
    let options: Options = program::options();
    program::run("bench_store", async move { run(options).await })
}

async fn run(mut options: Options) -> Result<(), Failure> {
    if options.quick {
        (options.rounds, options.clients, options.seconds) = (2, options.clients.min(200), 1);
    }
    options.clients = as_many_as_files(options.clients);
    let python = venv::locate(&mut |line| eprintln!("{line}"))?;
    let dir = tempfile::tempdir()?;
    let ours = Server::ours(dir.path()).await?;
    let torchs = Server::torchs(&python, dir.path())?;
    println!("{}", machine());
    let mut rounds = Vec::new();
    for round in 0..options.rounds {
        // The second one finds a warmer machine, or a hotter one.
        let (mine, theirs) = if round % 2 == 0 {
            let mine = turn(&ours, &options)?;
            (mine, turn(&torchs, &options)?)
        } else {
            let theirs = turn(&torchs, &options)?;
            (turn(&ours, &options)?, theirs)
        };
        rounds.push([mine, theirs]);
    }
    print_table(&rounds);
    if torchs.asks_name_service {
        println!("torch's server had a name service to ask, which costs it at every join");
    }
    if options.json {
        println!("{}", serde_json::to_string(&figures(&rounds, &options, &torchs))?);
    }
    Ok(())
}

/// One server, all measurements.
fn turn(server: &Server, options: &Options) -> Result<Turn, Failure> {
    let memory_before = server.memory()?;
    let (mut many, joined) = Clients::join(server.address, options.clients)?;
    let memory = server.memory()?.saturating_sub(memory_before) as f64;
    let times = if options.quick { 2 } else { 10 };
    let met = many.barriers(times)?;
    drop(many);
    let (mut few, _) = Clients::join(server.address, options.connections)?;
    few.operations(Duration::from_millis(200))?; // the first ones find nothing in any cache
    let ticks = server.user_ticks()?;
    let done = few.operations(Duration::from_secs(options.seconds))?;
    let user_us = (server.user_ticks()? - ticks) as f64 * TICK_US;
    Ok(Turn {
        operations: done.calls as f64 / done.took.as_secs_f64(),
        joins: options.clients as f64 / joined.as_secs_f64(),
        barriers: f64::from(times) / met.as_secs_f64(),
        p50_us: done.permille_us(500),
        p99_us: done.permille_us(990),
        user_us,
        calls: done.calls,
        bytes_per_client: memory / options.clients as f64,
    })
}

fn figures(rounds: &[[Turn; 2]], options: &Options, torchs: &Server) -> Figures {
    let ratio =
        |of: fn(&Turn) -> f64| rounds.iter().map(|[mine, theirs]| of(mine) / of(theirs)).collect::<Samples>().median();
    Figures {
        ops_ratio: ratio(|turn| turn.operations),
        join_ratio: ratio(|turn| turn.joins),
        barrier_ratio: ratio(|turn| turn.barriers),
        p50_ratio: ratio(|turn| turn.p50_us),
        p99_ratio: ratio(|turn| turn.p99_us),
        user_cpu_per_op_ratio: user_per_call(rounds, 0) / user_per_call(rounds, 1),
        bytes_per_client: bytes_per_client(rounds, 0),
        bytes_per_client_torch: bytes_per_client(rounds, 1),
        rounds: rounds.len(),
        connections: options.connections,
        clients: options.clients,
        torch_asks_name_service: torchs.asks_name_service,
    }
}

/// Microseconds, over all rounds: in one round there are few clock ticks.
fn user_per_call(rounds: &[[Turn; 2]], which: usize) -> f64 {
    let sum = |of: fn(&Turn) -> f64| rounds.iter().map(|round| of(&round[which])).sum::<f64>();
    sum(|turn| turn.user_us) / sum(|turn| turn.calls as f64)
}

/// Of the round in which most was needed: that is the first, later ones find memory that was given back to the process.
fn bytes_per_client(rounds: &[[Turn; 2]], which: usize) -> f64 {
    rounds.iter().map(|round| round[which].bytes_per_client).fold(0.0, f64::max)
}

fn print_table(rounds: &[[Turn; 2]]) {
    let spread = |of: &dyn Fn(&[Turn; 2]) -> f64| rounds.iter().map(of).collect::<Samples>();
    let mut text =
        format!("{:26}{:>30}{:>30}{:>24}\n", "median (min to max)", "taskd's store", "torch's server", "ratio");
    let rows: [Row; 6] = [
        ("operations a second", 0, |turn| turn.operations),
        ("joins a second", 0, |turn| turn.joins),
        ("barriers a second", 2, |turn| turn.barriers),
        ("p50 of a call, us", 1, |turn| turn.p50_us),
        ("p99 of a call, us", 1, |turn| turn.p99_us),
        ("user time of a call, us", 3, |turn| turn.user_us / turn.calls as f64),
    ];
    for (name, digits, of) in rows {
        let cell = |samples: Samples, digits: usize| {
            format!("{:.digits$} ({:.digits$} to {:.digits$})", samples.median(), samples.min(), samples.max())
        };
        let mine = cell(spread(&|round| of(&round[0])), digits);
        let theirs = cell(spread(&|round| of(&round[1])), digits);
        let ratio = cell(spread(&|round| of(&round[0]) / of(&round[1])), 2);
        let _ = writeln!(text, "{name:26}{mine:>30}{theirs:>30}{ratio:>24}");
    }
    let (mine, theirs) = (bytes_per_client(rounds, 0), bytes_per_client(rounds, 1));
    let _ = writeln!(text, "{:26}{mine:>30.0}{theirs:>30.0}{:>24.2}", "bytes of a client", mine / theirs);
    let (mine, theirs) = (user_per_call(rounds, 0), user_per_call(rounds, 1));
    let _ = write!(text, "{:26}{mine:>30.3}{theirs:>30.3}{:>24.2}", "user time, all rounds, us", mine / theirs);
    println!("{text}");
}

/// Every client is an open file here and at the server, which inherits what is raised here.
fn as_many_as_files(clients: usize) -> usize {
    let mut limit = rustix::process::getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = rustix::process::setrlimit(Resource::Nofile, limit); // what counts is what is there afterwards
    let room = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX).saturating_sub(OTHER_FILES);
    let possible = usize::try_from(room).unwrap_or(usize::MAX).min(clients);
    if possible < clients {
        println!("only {possible} of {clients} clients: this process may open no more files (ulimit -n)");
    }
    possible
}

/// What the figures depend on.
fn machine() -> String {
    let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!("{cores} cores, Linux {}, load before {}", text("/proc/sys/kernel/osrelease"), text("/proc/loadavg"))
}
