//! Simulated jobs on devices, from the records of their activity through a whole runtime to the verdict.

use std::time::Duration;
use taskd_core::detect::{FailSlowDetector, Fault, FaultClass, FaultDetector, SlowRankDetector};
use taskd_core::job::{Domain, JobSpec, Rank, Role};
use taskd_core::kernel::Event;
use taskd_core::recover::{ExitStrategy, Restart};
use taskd_core::runtime::Runtime;
use taskd_core::testing::doubles::{FakeLauncher, FakeProgram};
use taskd_core::trace::synthetic::{DeviceHost, SyntheticDevices};
use tokio::time::timeout;

const RANKS: u32 = 4;
const VICTIM: Rank = Rank(2);
const ONSET: u64 = 80;
/// Simulated time of the longest job here.
const PATIENCE: Duration = Duration::from_secs(40);

/// Runs a job in simulated time, and returns the first fault that is found in it.
async fn first_fault(job: SyntheticDevices, detector: impl FaultDetector + 'static) -> Option<Fault> {
    let source = job.source();
    let runtime = Runtime::builder()
        .job(JobSpec::new("test", RANKS, FakeProgram::Runs.spec()))
        .detector(detector)
        .strategy(Restart::new())
        .strategy(ExitStrategy::new())
        .source(source)
        .launcher(FakeLauncher::new())
        .build()
        .unwrap();
    let handle = runtime.handle();
    let mut events = handle.events();
    let job = tokio::spawn(runtime.run());
    let found = async {
        loop {
            if let Event::Found { fault, .. } = &events.recv().await.expect("the runtime runs").event {
                return fault.clone();
            }
        }
    };
    let found = timeout(PATIENCE, found).await.ok();
    job.abort();
    found
}

fn blamed(fault: Option<&Fault>) -> Option<(Domain, FaultClass)> {
    fault.map(|fault| (fault.primary_suspect().domain.clone(), fault.primary_suspect().class.clone()))
}

fn onset(fault: &Fault) -> Option<f64> {
    fault.evidence.iter().find(|clue| clue.what.as_str().ends_with("slow_onset_step"))?.value
}

#[tokio::test(start_paused = true)]
async fn a_device_that_becomes_slower_by_a_fifth_is_blamed() {
    let victim = Some((Domain::Process(Role::Rank(VICTIM)), FaultClass::Slow));
    for host in [DeviceHost::ReturnsEarly, DeviceHost::WaitsForDevice] {
        let job = SyntheticDevices::new(RANKS, host).slow(VICTIM, ONSET, 20);
        let fail_slow = first_fault(job.clone(), FailSlowDetector::new()).await;
        let slow_rank = first_fault(job, SlowRankDetector::default()).await;
        for fault in [fail_slow, slow_rank] {
            assert_eq!(blamed(fault.as_ref()), victim, "{host:?}");
            let onset = fault.as_ref().and_then(onset).unwrap_or_default();
            assert!((78.0..=84.0).contains(&onset), "{host:?}: {fault:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn healthy_devices_and_a_rank_without_spans_are_not_blamed() {
    for host in [DeviceHost::ReturnsEarly, DeviceHost::WaitsForDevice] {
        for seed in 1..4 {
            let job = SyntheticDevices::new(RANKS, host).seed(seed);
            assert_eq!(blamed(first_fault(job.clone(), FailSlowDetector::new()).await.as_ref()), None);
            let job = job.without_spans(VICTIM);
            assert_eq!(blamed(first_fault(job.clone(), FailSlowDetector::new()).await.as_ref()), None);
            assert_eq!(blamed(first_fault(job, SlowRankDetector::default()).await.as_ref()), None);
        }
    }
}
