//! Rendezvous service: a service of the job to which the processes of each generation connect, instead of to the first
//! rank.
//!
//! The framework defines the service's protocol; this module only defines how the service gets its listening sockets.

use std::fmt::Debug;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use async_trait::async_trait;

use crate::job::{Generation, Name};

/// Connects the processes of this host to the rendezvous service of the job, in jobs on many hosts where each host has a
/// launcher of its own: the processes connect to their own host, and the forwarder to the service's host.
pub trait RendezvousForwarder: Debug + Send + Sync {
    /// Returns true if the job's rendezvous service runs on another host.
    fn is_elsewhere(&self) -> bool;

    /// Accepts the connections of this host's processes of `generation` at `listener`, and forwards them to the service's host.
    /// Connections of earlier generations are accepted no longer.
    fn forward(&self, generation: Generation, listener: TcpListener);

    /// Takes note that the service runs on this host, and serves `generation` at `address`: connections from other hosts
    /// go there.
    fn serves(&self, generation: Generation, address: SocketAddr);
}

/// Rendezvous service of a framework: a store that survives the death of any rank.
///
/// [`PythonLauncher`](super::PythonLauncher) listens for each generation itself, before a process is started, so that
/// no connection is ever refused; then it passes the listener to the service.
#[async_trait]
pub trait Rendezvous: Debug + Send + Sync {
    /// Returns the name that this service has among the job's services. In a job without a service of this name, the
    /// first rank listens for the rendezvous.
    fn service(&self) -> Name;

    /// Returns the initialisation that the program's `main` lacks, for a service that is this program itself, started
    /// again with a special first argument: that argument, and the function that `main` has to call first. `None` (the
    /// default) if `main` has called it, or if the service is another program.
    fn uninitialised(&self) -> Option<(String, String)> {
        None
    }

    /// Makes the service serve this generation of ranks at this listener, and stop serving earlier generations. The
    /// request is sent to the socket at `control`, where the guard listens for the service; a service that is still
    /// starting is waited for.
    ///
    /// # Errors
    /// Returns the reason, in one sentence.
    async fn open(&self, control: &Path, generation: Generation, listener: TcpListener) -> Result<(), String>;
}
