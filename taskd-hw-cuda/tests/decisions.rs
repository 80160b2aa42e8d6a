//! What becomes of a GPU's trouble in a whole job: the real kernel and the built-in ladder, over a launcher without processes.

#![allow(clippy::unwrap_used)] // helpers of tests are tests

use std::time::Duration;
use taskd_core::detect::ExitDetector;
use taskd_core::job::{Domain, ErrorReport, JobSpec, Name, NodeId};
use taskd_core::kernel::JobReport;
use taskd_core::launch::Launcher;
use taskd_core::recover::{ExitStrategy, Restart};
use taskd_core::runtime::Runtime;
use taskd_core::testing::doubles::{FakeLauncher, FakeProgram, ScriptedSource};
use taskd_core::trace::{Fact, Signal};
use taskd_hw_cuda::detect::GpuDetector;
use taskd_hw_cuda::health::{GPU_LOST, NVML, metric};
use taskd_hw_cuda::xid::XID;

fn host(name: &'static str) -> NodeId {
    NodeId(Name::new(name))
}

fn about_gpu(signal: Signal) -> Fact {
    Fact::new(Domain::Device(host("a"), 0), signal)
}

fn error(family: Name, code: &str, text: &str) -> Fact {
    let (code, text) = (code.to_owned(), text.to_owned());
    let report = ErrorReport::new(family, code, text);
    about_gpu(Signal::Error(Box::new(report)))
}

fn figure(name: Name, value: f64) -> Fact {
    about_gpu(Signal::Metric { name, value })
}

/// Two ranks train for a minute on one of two hosts, and a source reports the facts in `told`, a second apart.
async fn job(told: Vec<Fact>) -> JobReport {
    let worker = FakeProgram::Exits { after: Duration::from_secs(60), code: 0 }.spec();
    let source =
        ScriptedSource::new(told.into_iter().map(|fact| vec![fact])).every(Duration::from_secs(1)).then_waits();
    let runtime = Runtime::builder()
        .job(JobSpec::new("decisions", 2, worker).with_nodes([host("a")]))
        .source(source)
        .detector(ExitDetector::new())
        .detector(GpuDetector::new())
        .strategy(Restart::new())
        .strategy(ExitStrategy::new())
        .launcher(FakeLauncher::with_nodes(["a", "b"], 2))
        .build()
        .unwrap();
    runtime.run().await
}

#[tokio::test(start_paused = true)]
async fn a_host_whose_gpu_does_not_work_is_left_once() {
    for told in [
        vec![error(XID, "79", "GPU has fallen off the bus."), error(NVML, GPU_LOST.as_str(), "lost")],
        vec![error(NVML, GPU_LOST.as_str(), "lost"), error(XID, "79", "GPU has fallen off the bus.")],
        vec![error(XID, "48", "DBE"), error(XID, "63", "Row Remapper"), error(XID, "45", "pid=1, Ch 8")],
        vec![figure(metric::RECOVERY_ACTION, 2.0)],
    ] {
        let report = job(told.clone()).await;
        assert!(report.ok && report.restarts == 1, "{told:?}: {report:#?}");
        assert_eq!(report.incidents[0].class.to_string(), "device", "{report:#?}");
        assert!(report.incidents[0].reason.ends_with("2 of them in another place"), "{report:#?}");
    }
}

#[tokio::test(start_paused = true)]
async fn informational_gpu_faults_cause_no_restart() {
    let mut hot = vec![figure(metric::TEMPERATURE_SLOWDOWN, 95.0)];
    hot.extend((0..8).map(|_| figure(metric::TEMPERATURE, 97.0)));
    for (told, incidents) in [
        (hot, 1),
        (vec![error(XID, "9999", "nobody knows")], 1),
        (vec![error(XID, "74", "NVLink")], 1),
        (vec![error(XID, "13", "pid=4000000, name=another, exception")], 0),
        (vec![error(XID, "31", "pid=4000000, fault"), error(XID, "43", "x"), error(XID, "45", "x")], 0),
        (vec![error(XID, "63", "Row Remapper: New row")], 0),
    ] {
        let report = job(told.clone()).await;
        assert!(report.ok && report.restarts == 0, "{told:?}: {report:#?}");
        assert_eq!(report.incidents.len(), incidents, "{told:?}: {report:#?}");
        assert!(report.incidents.iter().all(|incident| incident.outcome.starts_with("not done")), "{report:#?}");
    }
}

#[tokio::test(start_paused = true)]
async fn rank_hanging_after_its_own_xid_is_restarted_on_another_host() {
    // The launcher numbers its processes; the driver names one of them.
    let pids = {
        let launcher = FakeLauncher::with_nodes(["a", "b"], 2);
        let worker = FakeProgram::Exits { after: Duration::from_secs(60), code: 0 }.spec();
        let runtime = Runtime::builder()
            .job(JobSpec::new("decisions", 2, worker).with_nodes([host("a")]))
            .detector(ExitDetector::new())
            .strategy(ExitStrategy::new())
            .source(ScriptedSource::new(Vec::<Vec<Fact>>::new()).then_waits())
            .launcher(launcher.attach());
        let running = tokio::spawn(runtime.build().unwrap().run());
        tokio::time::sleep(Duration::from_secs(1)).await;
        let pids: Vec<u32> = launcher.list().await.unwrap().procs.iter().filter_map(|proc| proc.pid).collect();
        assert!(running.await.unwrap().ok);
        pids
    };
    let report = job(vec![error(XID, "31", &format!("pid={}, name=python3, MMU Fault", pids[0]))]).await;
    assert!(report.ok && report.restarts == 1, "{report:#?}");
    assert_eq!(report.incidents[0].class.to_string(), "program", "{report:#?}");
    assert!(report.incidents[0].reason.contains("in another place"), "{report:#?}");
    let reasons = &report.incidents[0].evidence;
    assert!(reasons.iter().any(|reason| reason.starts_with("restart the application")), "{reasons:#?}");
}
