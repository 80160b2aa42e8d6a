//! SIGTERM and SIGINT as a planned leave, for a host program that has no handlers of its own and asks for these.
//!
//! It installs nothing unless it is asked: signals belong to the host program.

use super::handle::RuntimeHandle;
use super::leave::Leave;
use super::shell::Runtime;
use crate::kernel::JobReport;
use std::convert::Infallible;
use std::io;
use std::pin::pin;
use tokio::signal::unix::{Signal, SignalKind, signal};

impl Runtime {
    /// Runs the job to its end, and leaves it as `how` says at the first SIGTERM or SIGINT that this process gets. A job
    /// that cannot be handed over is stopped instead, with the policy's grace time. One more signal ends a stop that is
    /// under way at once, also while a checkpoint is saved before it.
    ///
    /// The process exits when the host program says so, best with the
    /// [exit code of the outcome](super::exit_code).
    ///
    /// From this call on, and for as long as the process lives, neither signal ends the process by itself: this is how
    /// tokio handles signals.
    ///
    /// # Errors
    /// What the system says when a handler cannot be installed. Nothing was started then.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O enabled.
    pub async fn run_with_signals(self, how: Leave) -> io::Result<JobReport> {
        let mut signals = Signals::listen()?;
        let handle = self.handle();
        let mut run = pin!(self.run());
        tokio::select! {
            biased;
            report = &mut run => Ok(report),
            never = Box::pin(leave_when_told(&handle, how, &mut signals)) => match never {},
        }
    }
}

async fn leave_when_told(handle: &RuntimeHandle, how: Leave, signals: &mut Signals) -> Infallible {
    let name = signals.next().await;
    tracing::info!("{name}: leaving the job");
    let mut leaving = pin!(async {
        if let Err(error) = handle.leave(how).await {
            tracing::warn!("the job is stopped, it cannot be handed over: {error}");
            handle.stop(format!("its supervisor got {name}")).await;
        }
        std::future::pending::<Infallible>().await
    });
    let name = tokio::select! {
        biased;
        never = &mut leaving => match never {},
        name = signals.next() => name,
    };
    handle.stop_now(format!("its supervisor got {name} once more")).await;
    std::future::pending().await // until the run returns
}

/// The signals that ask a process to end.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> io::Result<Signals> {
        Ok(Signals { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// The name of the next one.
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
