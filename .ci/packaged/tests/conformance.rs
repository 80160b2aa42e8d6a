//! Every plugin keeps the contract of its trait. This program is also the guard of its launcher.

use std::process::ExitCode;
use std::time::Duration;
use taskd_core::launch::{LocalLauncher, guard};
use taskd_core::testing::conformance::{self, launcher::Programs};
use uses_taskd::{Counting, Hot, StartOver, Thermometer};

fn main() -> ExitCode {
    guard::init();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let readings: Vec<f64> = (30..40).map(f64::from).collect();
        let source = async || Thermometer::new(Duration::from_millis(1), readings.clone());
        let facts = readings.iter().copied().map(Thermometer::fact);
        println!("source: {}", conformance::trace_source(source).with_reference(facts).assert().await);
        println!("detector: {}", conformance::fault_detector(|| Hot { limit_c: 95.0 }).assert());
        println!("strategy: {}", conformance::recovery_strategy(|| StartOver).assert());
        let dir = tempfile::tempdir().unwrap();
        let attach = async |_owner| Counting::new(LocalLauncher::builder(dir.path()).build().await.unwrap()).0;
        println!("launcher: {}", conformance::launcher(attach, Programs::shell().unwrap()).assert().await);
    });
    println!("4 passed, 0 failed");
    ExitCode::SUCCESS
}
