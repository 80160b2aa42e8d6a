//! The service: an ordinary tokio program, into which taskd is embedded without changes to the rest.
//!
//! It has signal handlers, children, a `tracing` subscriber and a panic hook of its own. It takes commands on its
//! standard input, one per line: `status`, `ranks`, `drain NODE`, `readmit NODE`, `end`. It reports events on its
//! standard output, one line of JSON each.

use crate::embedded::{Embedded, embed};
use serde::Serialize;
use serde_json::{Value, json};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use taskd_core::job::{Name, NodeId};
use taskd_core::kernel::Event;
use taskd_core::launch::{Launcher, LocalLauncher, Phase};
use taskd_core::runtime::{ControlError, RuntimeHandle};
use taskd_examples::program::Failure;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// The interval at which the service starts a child of its own.
const CHILD_EVERY: Duration = Duration::from_millis(100);

/// Counters of the service itself.
#[derive(Debug, Default, Serialize)]
struct Own {
    /// Children that the service has started and reaped.
    children: AtomicU64,
    /// SIGINTs that its handler has received.
    interrupts: AtomicU64,
}

/// Runs the service.
pub(crate) fn main(dir: &Path) -> ExitCode {
    // The service's own signal handler, children, subscriber and panic hook, which taskd leaves alone.
    let _ = tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(tracing::Level::WARN).try_init();
    std::panic::set_hook(Box::new(|panic| eprintln!("service: {panic}")));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let served = runtime.map_err(Failure::from).and_then(|runtime| {
        let served = runtime.block_on(serve(dir));
        runtime.shutdown_background(); // its thread that reads standard input does not return
        served
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("service: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(dir: &Path) -> Result<(), Failure> {
    let began = Instant::now();
    let own = Own::default();
    let ends = CancellationToken::new();
    let Embedded { runtime, launchers, socket } = embed(dir).await?;
    say(&json!({ "attached_ms": began.elapsed().as_secs_f64() * 1e3 }));
    let handle = runtime.handle().with_actor("service");
    let mut work = tokio::task::JoinSet::new();
    work.spawn(print_events(handle.clone()));
    let report = {
        let own_life = async {
            tokio::join!(children(&own), interrupts(&own), commands(&handle, &launchers, &own, &ends));
        };
        tokio::select! {
            report = runtime.run_until_cancelled(ends.clone()) => report,
            () = own_life => unreachable!("the service's own life ends with the process"),
        }
    };
    socket.close().await; // operators first, then the hosts
    for launcher in &launchers {
        launcher.shutdown(Duration::from_millis(500)).await?;
    }
    say(&json!({ "ended": report.outcome, "reason": report.reason, "own": own, "incidents": report.incidents }));
    Ok(())
}

/// Starts and reaps the service's own children, one after the other.
async fn children(own: &Own) {
    loop {
        if let Ok(status) = Command::new("true").status().await
            && status.success()
        {
            own.children.fetch_add(1, Ordering::Relaxed);
        }
        tokio::time::sleep(CHILD_EVERY).await;
    }
}

/// The service's own handler of SIGINT.
async fn interrupts(own: &Own) {
    let Ok(mut interrupts) = signal(SignalKind::interrupt()) else { return std::future::pending().await };
    while interrupts.recv().await.is_some() {
        let seen = own.interrupts.fetch_add(1, Ordering::Relaxed) + 1;
        say(&json!({ "interrupted": seen }));
    }
}

/// Handles the service's own commands, some of which are passed on to the job's handle.
async fn commands(handle: &RuntimeHandle, launchers: &[Arc<LocalLauncher>], own: &Own, ends: &CancellationToken) {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let answer = match line.split_once(' ').unwrap_or((&line, "")) {
            ("ranks", _) => Ok(json!({ "ranks": ranks(launchers).await })),
            ("status", _) => handle.status().await.map(|status| json!({ "status": status, "own": own })),
            ("drain", node) => answer_of(handle.drain(node_id(node), "maintenance").await),
            ("readmit", node) => answer_of(handle.uncordon(node_id(node), "repaired").await),
            ("end", _) => {
                ends.cancel();
                continue;
            }
            (other, _) => Ok(json!({ "unknown": other })),
        };
        say(&answer.unwrap_or_else(|error| json!({ "error": error.to_string() })));
    }
    std::future::pending().await
}

/// Returns the host and process id of each rank.
async fn ranks(launchers: &[Arc<LocalLauncher>]) -> Vec<Value> {
    let mut ranks = Vec::new();
    for launcher in launchers {
        let procs = launcher.list().await.map(|listing| listing.procs).unwrap_or_default();
        for proc in procs.iter().filter(|proc| proc.phase == Phase::Running) {
            let node = proc.node.as_ref().map(|node| node.0.to_string());
            ranks.push(json!({ "rank": proc.proc.role.rank(), "node": node, "pid": proc.pid }));
        }
    }
    ranks
}

fn node_id(name: &str) -> NodeId {
    NodeId(Name::from(name.to_owned()))
}

fn answer_of(answer: Result<taskd_core::kernel::OrderAccepted, ControlError>) -> Result<Value, ControlError> {
    answer.map(|taken| json!({ "taken": taken.text }))
}

/// Reports the job's events to the service's own operators.
async fn print_events(handle: RuntimeHandle) {
    let mut events = handle.events();
    drop(handle); // this handle is only needed to subscribe
    while let Ok(announcement) = events.recv().await {
        match &announcement.event {
            Event::Entered { generation, .. } => say(&json!({ "generation": generation })),
            Event::StageDone { stage, .. } if stage.as_str() == "start" => say(&json!({ "trains": true })),
            Event::Closed { incident, how } => say(&json!({ "closed": incident, "how": how })),
            _ => {}
        }
    }
}

fn say(what: &Value) {
    println!("{what}");
}
