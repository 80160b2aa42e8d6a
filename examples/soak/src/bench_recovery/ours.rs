//! taskd running the same script, with its defaults: the supervisor, a process of its own.
//!
//! It has no information about the fault to come.

use super::Failure;
use super::candidates::Candidate;
use super::peers::{ENVIRONMENT, Script};
use super::processes::Start;
use crate::outside::census::MARK;
use crate::outside::supervised::{SUPERVISE, soak_is_gone};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use taskd_core::detect::defaults;
use taskd_core::job::{JobSpec, Name, Permission, WorkerSpec};
use taskd_core::kernel::Event;
use taskd_core::launch::LocalCounters;
use taskd_core::launch::python::Standbys;
use taskd_core::recover;
use taskd_core::runtime::{Runtime, RuntimeHandle};
use taskd_examples::hosts::Hosts;
use taskd_pytorch::store::StoreProgram;
use taskd_pytorch::with_store;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, sleep};

/// The file in a job's directory that contains the order.
const ORDER: &str = "order.json";
/// The file with lines of text: when standbys were ready, how each incident ended, and with how many standbys.
const HOW: &str = "how";
/// The interval of the ranks' heartbeats.
const BEAT: Duration = Duration::from_millis(500);
/// The interval at which the guard is asked for its standbys, until they are ready.
const ASK_EVERY: Duration = Duration::from_millis(500);

/// The job that the supervisor is to run.
#[derive(Debug, Serialize, Deserialize)]
struct Order {
    candidate: Candidate,
    command: Vec<String>,
    ranks: u32,
    mark: String,
}

/// Returns the process to start for a variant of taskd: this program, as the supervisor of the job in its directory.
///
/// # Errors
/// The order cannot be written.
pub(crate) fn start(candidate: Candidate, script: &Script<'_>, mark: &str) -> Result<Start, Failure> {
    let command = script.command(if is_in_process(candidate) { "steps" } else { "plain" });
    let order = Order { candidate, command, ranks: script.ranks, mark: mark.to_owned() };
    fs::write(script.dir.join(ORDER), serde_json::to_vec(&order)?)?;
    let program = std::env::current_exe()?.display().to_string();
    Ok(Start::new([program, SUPERVISE.to_owned(), script.dir.display().to_string()]))
}

/// Returns true if surviving ranks keep their processes, which needs a script with `taskd.steps`.
fn is_in_process(candidate: Candidate) -> bool {
    !matches!(candidate, Candidate::TaskdRestart | Candidate::TaskdRestartStandby)
}

/// Returns the lines of the supervisor in this directory, each after a semicolon.
pub(crate) fn how(dir: &Path) -> String {
    let text = fs::read_to_string(dir.join(HOW)).unwrap_or_default();
    text.lines().map(|line| format!("; {line}")).collect()
}

/// Runs in the supervisor: supervises the job of `dir` until the benchmark closes the other end of stdin.
pub(crate) async fn supervise(dir: &Path) -> Result<(), Failure> {
    let order: Order = serde_json::from_slice(&fs::read(dir.join(ORDER))?)?;
    let mut spec = spec(&order)?;
    let number = if order.candidate == Candidate::TaskdRecover { 2 } else { 1 };
    let hosts = Hosts::of(&mut spec, number, dir, |local| local.job_name("bench-recovery")).await?;
    let mut torch = hosts.torch(hosts.launcher().await?, dir, order.ranks);
    if order.candidate == Candidate::TaskdRestart {
        torch = torch.standbys(Standbys::none());
    }
    let runtime = Runtime::builder()
        .job(spec)
        .detectors(defaults())
        .strategies(recover::defaults())
        .launcher(torch)
        .journal(dir.join("journal"));
    let runtime = hosts.sources(runtime, BEAT).build()?;
    let hosts = Arc::new(hosts);
    let telling = tokio::spawn(log(runtime.handle(), dir.join(HOW)));
    let watching = tokio::spawn(watch_standbys(Arc::clone(&hosts), is_in_process(order.candidate), dir.join(HOW)));
    let report = runtime.run_until(soak_is_gone()).await;
    telling.abort();
    watching.abort();
    println!("{}", report.reason);
    let (mut seated, mut missed) = (0, 0);
    for host in hosts.iter() {
        let guard = host.counters().await?.guard;
        (seated, missed) = (seated + guard.standbys_seated, missed + guard.standbys_missed);
    }
    add(&dir.join(HOW), &format!("{seated} standbys seated, {missed} missed"))?;
    hosts.shutdown().await?;
    Ok(())
}

fn spec(order: &Order) -> Result<JobSpec, Failure> {
    let mut worker = WorkerSpec::new(&order.command).with_env(MARK, &order.mark);
    for (name, value) in ENVIRONMENT {
        worker = worker.with_env(name, value);
    }
    let mut spec = JobSpec::new("bench-recovery", order.ranks, worker);
    let never: &[&str] = match order.candidate {
        Candidate::TaskdShrink => &["recover-in-place", "recover"],
        Candidate::TaskdRecover => &["recover-in-place"],
        _ => &[],
    };
    spec.policy.strategies.extend(never.iter().map(|name| (Name::new(name), Permission::Never)));
    Ok(if is_in_process(order.candidate) { with_store(spec, &StoreProgram::ReexecSelf)? } else { spec })
}

/// Records when standbys were ready on all hosts: waiting, or, if ranks keep their processes, at the step loop.
async fn watch_standbys(hosts: Arc<Hosts>, parked: bool, file: PathBuf) {
    let began = Instant::now();
    loop {
        sleep(ASK_EVERY).await;
        let mut all_up = true;
        for host in hosts.iter() {
            all_up &= host.counters().await.is_ok_and(|LocalCounters { guard, .. }| match parked {
                true => guard.standbys_parked > 0,
                false => guard.standbys_waiting > 0,
            });
        }
        if all_up {
            let line = format!("standbys up after {:.1} s", began.elapsed().as_secs_f64());
            if let Err(error) = add(&file, &line) {
                eprintln!("the start of the standbys cannot be recorded: {error}");
            }
            return;
        }
    }
}

/// Records how each incident ended.
async fn log(handle: RuntimeHandle, file: PathBuf) {
    let mut events = handle.events();
    loop {
        match events.recv().await.as_deref() {
            Ok(announcement) => {
                println!("{} {:?}", announcement.at, announcement.event);
                if let Event::Closed { how, .. } = &announcement.event
                    && let Err(error) = add(&file, how)
                {
                    eprintln!("the outcome of an incident cannot be recorded: {error}");
                }
            }
            Err(RecvError::Lagged(missed)) => println!("{missed} events were missed"),
            Err(RecvError::Closed) => return,
        }
    }
}

fn add(file: &Path, line: &str) -> io::Result<()> {
    writeln!(fs::File::options().create(true).append(true).open(file)?, "{line}")
}
