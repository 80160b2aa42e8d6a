//! Prints the rate of mutual TLS handshakes on this machine: full ones, and ones that resume a session.
//!
//! `cargo run --release -p taskd-cluster --features test-util --example handshake_rate -- [COUNT] [CONCURRENCY]`

use taskd_cluster::security::{HandshakeKind, handshakes_per_second};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let count = arguments.next().map_or(Ok(2000), |count| count.parse())?;
    let concurrency = arguments.next().map_or(Ok(32), |concurrency| concurrency.parse())?;
    let directory = tempfile::tempdir()?;
    for kind in [HandshakeKind::Full, HandshakeKind::Resumed] {
        let rate = handshakes_per_second(kind, count, concurrency, directory.path()).await?;
        println!(
            "{kind:?}: {:.0} handshakes per second, {:.0} per second of processor time, {} of {count} resumed",
            rate.per_second, rate.per_cpu_second, rate.resumed
        );
    }
    Ok(())
}
