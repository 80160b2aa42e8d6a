//! The live page of a run: an address on this host alone, printed to the operator.

use crate::program::Failure;
use taskd_core::live::{LiveReport, LiveServer, RunSource};

/// Serves the report page of a run that goes on, and prints its address.
///
/// # Errors
/// No port of loopback can be listened at.
pub async fn open(run: impl RunSource) -> Result<LiveServer, Failure> {
    let server = LiveReport::new(run).serve().await?;
    println!("live page     {}", server.url());
    Ok(server)
}
