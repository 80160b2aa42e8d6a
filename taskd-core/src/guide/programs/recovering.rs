//! Runs a PyTorch script on two ranks, and keeps the rank that lives when the other one is lost:
//! `my-host DIRECTORY PYTHON SCRIPT [ARGUMENT]...`

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use taskd_core::job::{JobSpec, Ready, WorkerSpec};
use taskd_core::kernel::JobReport;
use taskd_core::launch::{LocalLauncher, guard};
use taskd_core::runtime::control::{ControlSocket, SocketLimits};
use taskd_core::runtime::{Runtime, ShutdownMode, exit_code};
use taskd_core::{detect, recover};
use taskd_pytorch::store::{self, StoreProgram};
use taskd_pytorch::{TorchLauncher, with_store};

fn main() -> ExitCode {
    // First in main, before any thread is started: guard and store are this same program, started again.
    guard::init();
    store::init();
    tracing_subscriber::fmt().with_writer(std::io::stderr).init(); // what happens, a sentence each

    let mut arguments = std::env::args().skip(1);
    let (Some(directory), command) = (arguments.next().map(PathBuf::from), arguments.collect::<Vec<_>>()) else {
        return usage();
    };
    if command.is_empty() {
        return usage();
    }
    let tokio = tokio::runtime::Runtime::new();
    match tokio.map_err(Into::into).and_then(|tokio| tokio.block_on(supervise(&directory, command))) {
        Ok(report) => {
            println!("{report}"); // what happened, and where the output of the ranks is
            report.outcome.into() // 0 only when the training has completed
        }
        Err(error) => {
            eprintln!("{error}"); // nothing was started
            exit_code::UNAVAILABLE.into()
        }
    }
}

fn usage() -> ExitCode {
    eprintln!("usage: my-host DIRECTORY PYTHON SCRIPT [ARGUMENT]...");
    exit_code::USAGE.into()
}

async fn supervise(directory: &Path, command: Vec<String>) -> Result<JobReport, Box<dyn std::error::Error>> {
    let directory = std::path::absolute(directory)?;
    let local = Arc::new(LocalLauncher::builder(directory.join("run")).job_name("my-job").build().await?);
    let torch = TorchLauncher::new(Arc::clone(&local), directory.join("torch"));

    // The store is a service of the job, the rendezvous service: without it every loss is a restart of all ranks.
    let mut job = with_store(JobSpec::new("my-job", 2, WorkerSpec::new(command)), &StoreProgram::ReexecSelf)?;
    job.policy.ready = Ready::Stepping; // an incident is over when the ranks train again
    job.policy.min_ranks = 2; // never train on with fewer ranks
    job.policy.checkpoint_dir = Some(directory.join("checkpoints")); // where survivors save when nothing else helps

    let runtime = Runtime::builder()
        .job(job)
        .source(local.heartbeats(Duration::from_secs(2)))
        .source(local.recordings()) // steps and collectives: which rank a hang comes from
        .detectors(detect::defaults())
        .strategies(recover::defaults()) // `retry`, `recover-in-place`, ... up to `restart` and `exit`
        .launcher(torch)
        .journal(directory.join("log"))
        .build()?; // reports everything that is wrong at once, a missing store::init() included
    let socket = ControlSocket::bind(directory.join("control.sock"), runtime.handle(), SocketLimits::default())?;
    let report = runtime.run_with_signals(ShutdownMode::Terminate { grace: Duration::from_secs(30) }).await?;
    socket.close().await;
    if let Err(error) = local.shutdown(Duration::from_secs(5)).await {
        eprintln!("the guard was not ended: {error}"); // the job is over all the same
    }
    Ok(report)
}
