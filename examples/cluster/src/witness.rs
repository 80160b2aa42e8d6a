//! A voter without ranks, on a machine that need not train.

use crate::engine::Plan;
use crate::options::WitnessOptions;
use std::net::SocketAddr;
use taskd_core::cluster::Witness;
use taskd_core::cluster::security::Security;
use taskd_examples::program::Failure;
use tokio::net::{TcpListener, lookup_host};

/// Runs the witness of a job until Ctrl-C.
///
/// # Errors
/// Returns the reason why it did not start, or cannot serve any more.
pub async fn witness(options: &WitnessOptions) -> Result<(), Failure> {
    let dir = std::path::absolute(&options.dir)?;
    let config = Plan::witness(options, &dir)?;
    let own = config.own().clone();
    let at: SocketAddr = lookup_host(&own.address).await?.next().ok_or("the witness's address names no host")?;
    let listener =
        TcpListener::bind(at).await.map_err(|error| format!("the witness cannot listen at {at} ({error})"))?;
    let security = Security::from_env()?.open(own.host.0.as_str()).await?;
    let witness = Witness::start(config, listener, &security).await?;
    println!("witness       {own}, of the job {}: it votes, and runs no rank", options.job);
    tokio::select! {
        biased;
        ended = witness.run() => Ok(ended?),
        interrupted = tokio::signal::ctrl_c() => Ok(interrupted?),
    }
}
