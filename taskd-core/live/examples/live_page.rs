//! A live page of a simulated run, for `.ci/report_pages.py`: it follows orders on its standard input.
//!
//! Orders: `grow` (four more steps), `fail` (readings fail), `mend`, `end` (the run ends), `quit`.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use taskd_analysis::synthetic::{Fault, Job, trace};
use taskd_analysis::{Settings, analyze};
use taskd_live::{EVERY_MIN, LiveReport, ReadError};

#[tokio::main]
async fn main() -> io::Result<()> {
    let (steps, fails) = (Arc::new(AtomicU64::new(12)), Arc::new(AtomicBool::new(false)));
    let (now, broken) = (Arc::clone(&steps), Arc::clone(&fails));
    let source = move || -> Result<_, ReadError> {
        if broken.load(Ordering::Relaxed) {
            return Err("records cannot be read: the disk is gone".into());
        }
        let fault = Fault::SlowRank { rank: 5, from_step: 6, percent: 50 };
        let job = Job { dp: 4, tp: 2, pp: 2, steps: now.load(Ordering::Relaxed), ..Job::default() }.with_fault(fault);
        Ok(analyze(&trace(&job, 1), &Settings::default()))
    };
    let server = LiveReport::from_fn(source).every(EVERY_MIN).serve().await?;
    println!("{}", server.url());
    loop {
        let order = tokio::task::spawn_blocking(|| io::stdin().lines().next().transpose())
            .await
            .map_err(io::Error::other)??;
        match order.as_deref() {
            Some("grow") => _ = steps.fetch_add(4, Ordering::Relaxed),
            Some("fail") => fails.store(true, Ordering::Relaxed),
            Some("mend") => fails.store(false, Ordering::Relaxed),
            Some("end") => server.end().await,
            _ => break,
        }
    }
    server.shutdown().await;
    Ok(())
}
