//! Leaving a job on SIGTERM and SIGINT, for a host program without signal handlers of its own.
//!
//! Handlers are installed only on request, because signals belong to the host program.

use super::handle::RuntimeHandle;
use super::shell::Runtime;
use super::shutdown::ShutdownMode;
use crate::kernel::JobReport;
use std::convert::Infallible;
use std::io;
use std::pin::pin;
use tokio::signal::unix::{Signal, SignalKind, signal};

impl Runtime {
    /// Runs the job to its end. At the first SIGTERM or SIGINT to this process, hands the job over or stops it, as
    /// `how` sets.
    ///
    /// If the job cannot be handed over, it is stopped with the policy's termination grace period. A second signal
    /// stops the job immediately, also during a graceful stop and during the checkpoint before it.
    ///
    /// This method does not end the process. The host program should then exit with the [exit code](super::exit_code)
    /// of the outcome.
    ///
    /// From this call on, SIGTERM and SIGINT no longer end the process by themselves, until the process exits, because
    /// tokio keeps its signal handlers installed.
    ///
    /// # Errors
    /// Returns the system's error if a signal handler cannot be installed. In that case, the job has not been started.
    ///
    /// # Panics
    /// Panics if called outside a tokio runtime with I/O enabled.
    pub async fn run_with_signals(self, how: ShutdownMode) -> io::Result<JobReport> {
        let mut signals = Signals::listen()?;
        let handle = self.handle();
        let mut run = Box::pin(self.run()); // large, and callers keep this future in theirs
        tokio::select! {
            biased;
            report = &mut run => Ok(report),
            never = Box::pin(leave_on_signal(&handle, how, &mut signals)) => match never {},
        }
    }
}

async fn leave_on_signal(handle: &RuntimeHandle, how: ShutdownMode, signals: &mut Signals) -> Infallible {
    let name = signals.next().await;
    tracing::info!("{name}: leaving the job");
    let mut leaving = pin!(async {
        if let Err(error) = handle.shutdown(how).await {
            tracing::warn!("the job is stopped, it cannot be handed over: {error}");
            let _ = handle.stop(format!("the supervisor received {name}")).await; // error: the job is over
        }
        std::future::pending::<Infallible>().await
    });
    let name = tokio::select! {
        biased;
        never = &mut leaving => match never {},
        name = signals.next() => name,
    };
    let _ = handle.stop_now(format!("the supervisor received {name} again")).await; // as above
    std::future::pending().await // until the run returns
}

/// SIGTERM and SIGINT, which ask a process to end.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> io::Result<Signals> {
        Ok(Signals { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for the next signal and returns its name.
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
