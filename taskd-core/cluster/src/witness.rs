//! A voter without ranks: with one on a third machine, a job of two hosts survives the loss of either.

use crate::consensus::embedded::EmbeddedStatus;
use crate::consensus::{ConsensusError, Embedded, EmbeddedConfig};
use crate::security::{IncomingLimits, SecurityContext};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tonic::service::InterceptorLayer;

/// A voter that never becomes the manager and starts no process. It needs little: some megabytes of memory, and a disk for
/// its store, which has one record. It stops when it is dropped.
///
/// A machine can have the witnesses of several jobs, each with a port and a directory of its own.
#[derive(Debug)]
pub struct Witness {
    voter: Embedded,
    tasks: JoinSet<Result<(), String>>,
}

impl Witness {
    /// Starts a witness, and serves the job's other voters over `listener`. `config` states its own place as
    /// [a witness](crate::consensus::VoterAddress::with_witness), and the same list of voters as all others.
    ///
    /// # Errors
    /// Those of [`Embedded::start`]; and [`ConsensusError::Refused`] if its place is no witness, or if `security` does not
    /// allow the listener's address.
    pub async fn start(
        config: EmbeddedConfig,
        listener: TcpListener,
        security: &SecurityContext,
    ) -> Result<Witness, ConsensusError> {
        if !config.own().witness {
            let text = format!("{} is listed as a voter that can be the manager: list it as a witness", config.own());
            return Err(ConsensusError::Refused(text));
        }
        let incoming = security.incoming(listener, IncomingLimits::default());
        let incoming = incoming.map_err(|error| ConsensusError::Refused(error.to_string()))?;
        let voter = Embedded::start(config.with_connect(security.clone())).await?;
        let layer = InterceptorLayer::new(security.require_token());
        let server = tonic::transport::Server::builder().layer(layer).add_service(voter.service());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let served = server.serve_with_incoming(incoming).await;
            served.map_err(|error| format!("the witness serves no more: {error}"))
        });
        let admitted = voter.clone();
        tasks.spawn(async move { match admitted.keep_admitted().await {} });
        Ok(Witness { voter, tasks })
    }

    /// Returns the state of the voter.
    #[must_use]
    pub fn status(&self) -> EmbeddedStatus {
        self.voter.status()
    }

    /// Runs until the witness cannot serve any more.
    ///
    /// # Errors
    /// Returns the reason in one sentence.
    pub async fn run(mut self) -> Result<(), String> {
        match self.tasks.join_next().await {
            Some(Ok(result)) => result,
            Some(Err(error)) => Err(format!("a task of the witness has ended: {error}")),
            None => Ok(()),
        }
    }
}
