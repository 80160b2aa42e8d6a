//! A service of the job at which the processes of each generation meet, in the place of the first rank.
//!
//! What it speaks is the framework's; here is only how it comes to its listening sockets.

use std::fmt::Debug;
use std::net::TcpListener;
use std::path::Path;

use async_trait::async_trait;

use crate::job::{Generation, Name};

/// Where processes meet, when that is a service of the job: a store that no rank's death takes along.
///
/// [`PythonLauncher`](super::PythonLauncher) listens for each generation itself, before a process is started, so that nobody
/// is ever refused; then it hands the listener over.
#[async_trait]
pub trait Meeting: Debug + Send + Sync {
    /// The job's service. In a job without one of this name the first rank is who listens.
    fn service(&self) -> Name;

    /// Where a program can be this service by itself, started again with such a first argument: that argument, and the function
    /// that its `main` has to call first, if it has not. Default: `None`.
    fn uninitialised(&self) -> Option<(String, String)> {
        None
    }

    /// Has the service serve a generation at this listener, and no earlier one any more. It is told so at `control`, where the
    /// guard listens for it: a service that is being started is waited for.
    ///
    /// # Errors
    /// In one sentence, why it does not.
    async fn open(&self, control: &Path, generation: Generation, listener: TcpListener) -> Result<(), String>;
}
