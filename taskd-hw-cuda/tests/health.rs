//! The health source over the real `nvml-wrapper` and a library that stands in for NVML (and says so).

#![allow(clippy::unwrap_used)] // helpers of tests are tests

mod standin;

use standin::StandIn;
use std::path::Path;
use std::time::{Duration, Instant};
use taskd_core::job::{Domain, Name, NodeId};
use taskd_core::testing::conformance;
use taskd_core::testing::conformance::trace_source::{ANSWERS_FOR_ITS_DOMAIN, ANSWERS_WHAT_IT_NAMES};
use taskd_core::trace::{Fact, Signal, SourceError, TraceSource};
use taskd_hw_cuda::health::{
    COUNTER_WENT_BACK, GPU_LOST, GpuIdentity, KERNEL_LOG_UNAVAILABLE, NVML, NvmlBuilder, NvmlSource, RESET_REQUIRED,
    Unavailable, XID_EVENTS_UNAVAILABLE, metric,
};
use taskd_hw_cuda::xid::{SXID, XID};

const DEADLINE: Duration = Duration::from_secs(20);

fn node() -> NodeId {
    NodeId(Name::new("node-a"))
}

fn device(index: u16) -> Domain {
    Domain::Device(node(), index)
}

fn builder(stand_in: &StandIn) -> NvmlBuilder {
    let builder = NvmlSource::builder(node()).with_library(stand_in.library());
    builder.with_kernel_log(stand_in.kernel_log()).with_interval(Duration::from_millis(50))
}

/// Reads until a fact is reported for which `wanted` returns true; returns all reported facts.
async fn until(source: &mut NvmlSource, wanted: impl Fn(&Fact) -> bool) -> Vec<Fact> {
    let (mut told, begun) = (Vec::new(), Instant::now());
    loop {
        assert!(begun.elapsed() < DEADLINE, "it was not told: {told:#?}");
        if let Ok(batch) = tokio::time::timeout(DEADLINE, source.next()).await {
            told.extend(batch.expect("a source goes on").expect("a batch").facts);
            if told.iter().any(&wanted) {
                return told;
            }
        }
    }
}

fn figure(facts: &[Fact], about: &Domain, name: &Name) -> Option<f64> {
    facts.iter().rev().find_map(|fact| match &fact.signal {
        Signal::Metric { name: told, value } if told == name && fact.about == *about => Some(*value),
        _ => None,
    })
}

fn is(about: Domain, family: Name, code: impl Into<Name>) -> impl Fn(&Fact) -> bool {
    let code = code.into();
    move |fact| match &fact.signal {
        Signal::Error(error) => fact.about == about && error.family == family && error.code == code,
        _ => false,
    }
}

fn text(facts: &[Fact], wanted: impl Fn(&Fact) -> bool) -> String {
    let fact = facts.iter().find(|fact| wanted(fact)).unwrap();
    let Signal::Error(error) = &fact.signal else { panic!("no error") };
    error.text.clone()
}

#[tokio::test]
async fn missing_nvml_library_is_unavailable_with_advice() {
    let why = NvmlSource::builder(node()).with_library("/no/such/libnvidia-ml.so.1").open().await.unwrap_err();
    assert!(matches!(why, Unavailable::NoLibrary { .. }));
    assert!(why.to_string().contains("/no/such/libnvidia-ml.so.1") && why.to_string().contains("install"), "{why}");
    let no_library = Path::new("/proc/self/maps").to_owned();
    let why = NvmlSource::builder(node()).with_library(no_library).open().await.unwrap_err();
    assert!(matches!(why, Unavailable::NoLibrary { .. }), "a file that is no library: {why}");
}

#[tokio::test]
async fn causes_of_an_unavailable_driver_are_distinguished() {
    for (result, why) in [
        (9, Unavailable::NoDriver),
        (18, Unavailable::VersionMismatch),
        (4, Unavailable::NoPermission),
        (999, Unavailable::Failed("an internal driver error occurred".into())),
    ] {
        let mut stand_in = StandIn::new();
        stand_in.set("init", result);
        assert_eq!(builder(&stand_in).open().await.unwrap_err(), why);
    }
    let mut stand_in = StandIn::new();
    assert_eq!(
        builder(&stand_in).with_devices([7]).open().await.unwrap_err(),
        Unavailable::NoDevice { count: 2 },
        "there is no such device"
    );
    stand_in.set("devices", 0);
    assert_eq!(builder(&stand_in).open().await.unwrap_err(), Unavailable::NoDevice { count: 0 });
}

#[tokio::test]
async fn supported_card_metrics_are_reported_with_the_card_identity() {
    let mut stand_in = StandIn::new();
    stand_in.set("1.no.ecc", 1).set("1.no.field.144", 1).set("1.uuid", "GPU-7").set("1.name", "NVIDIA H100");
    stand_in.set("0.ecc_corrected", 12).set("0.field.144", 1).set("0.throttle", 0x44).set("0.field.91", 4);
    stand_in.set("0.link_down.2", 1).set("0.field.230", 3).set("0.pcie_replays", 6);
    let mut source = builder(&stand_in).open().await.unwrap();
    assert!(source.info().stand_in, "it declares itself, and the source says so");
    let is_last = |fact: &Fact| {
        fact.about == device(1) && matches!(&fact.signal, Signal::Metric { name, .. } if *name == metric::NVLINK_LINKS)
    };
    let told = until(&mut source, is_last).await;
    for (name, value) in [
        (metric::TEMPERATURE, 45.0),
        (metric::MEMORY_TEMPERATURE, 60.0),
        (metric::TEMPERATURE_SLOWDOWN, 95.0),
        (metric::TEMPERATURE_MAX, 90.0),
        (metric::MEMORY_TEMPERATURE_MAX, 105.0),
        (metric::POWER, 310.5),
        (metric::POWER_LIMIT, 700.0),
        (metric::UTILIZATION, 97.0),
        (metric::MEMORY_USED, f64::from(60 << 20)),
        (metric::ECC_CORRECTED_VOLATILE, 12.0),
        (metric::ECC_UNCORRECTED_AGGREGATE, 0.0),
        (metric::ROW_REMAP_PENDING, 1.0),
        (metric::THROTTLE_REASONS, 68.0),
        (metric::THROTTLE_HW_THERMAL, 1.0),
        (metric::THROTTLE_POWER_CAP, 1.0),
        (metric::THROTTLE_POWER_BRAKE, 0.0),
        (metric::NVLINK_LINKS, 4.0),
        (metric::NVLINK_DOWN, 1.0),
        (metric::PCIE_REPLAY, 6.0),
        (metric::RECOVERY_ACTION, 3.0),
    ] {
        assert_eq!(figure(&told, &device(0), &name), Some(value), "{name}");
    }
    assert_eq!(figure(&told, &device(1), &metric::ECC_CORRECTED_VOLATILE), None, "not supported is not 0");
    assert_eq!(figure(&told, &device(1), &metric::ROW_REMAP_PENDING), None, "not supported is not 0");
    let identity = told.iter().find_map(|fact| match &fact.signal {
        Signal::Ext(ext) if fact.about == device(1) => ext.get::<GpuIdentity>(),
        _ => None,
    });
    let identity = identity.unwrap().unwrap();
    let GpuIdentity { uuid, pci, model, driver, not_measured } = identity;
    assert_eq!([uuid, pci, model, driver], ["GPU-7", "0000:3c:00", "NVIDIA H100", "580.82.07"]);
    assert!(not_measured.contains(&metric::ECC_CORRECTED_VOLATILE.to_string()), "{not_measured:?}");
}

#[tokio::test]
async fn only_chosen_devices_are_watched() {
    let stand_in = StandIn::new();
    let mut source = builder(&stand_in).with_devices([1]).open().await.unwrap();
    for line in ["3b:00): 13, not ours", "3c:00): 13, ours"] {
        stand_in.log(&format!("NVRM: Xid (PCI:0000:{line}"));
    }
    let told = until(&mut source, is(device(1), XID, "13")).await;
    assert!(told.iter().all(|fact| fact.about != device(0) && fact.about != Domain::Node(node())), "{told:#?}");
}

#[tokio::test]
async fn xid_from_nvml_and_log_is_reported_once_with_the_log_text() {
    let mut stand_in = StandIn::new();
    let mut source = builder(&stand_in).open().await.unwrap();
    stand_in.log("NVRM: Xid (PCI:0000:3c:00): 48, pid=77, name=python3, DBE (double bit error)");
    stand_in.set("event.1", "1 48");
    stand_in.set("event.2", "0 31"); // the end of it: what comes behind both
    let told = until(&mut source, is(device(0), XID, "31")).await;
    let xids = told.iter().filter(|fact| is(device(1), XID, "48")(fact)).count();
    assert_eq!(xids, 1, "{told:#?}");
    assert_eq!(text(&told, is(device(1), XID, "48")), "pid=77, name=python3, DBE (double bit error)");
    assert!(text(&told, is(device(0), XID, "31")).contains("without text"), "by NVML alone");
}

#[tokio::test]
async fn a_gpu_that_has_fallen_off_the_bus_is_known_from_three_lines() {
    let stand_in = StandIn::new();
    let mut source = builder(&stand_in).open().await.unwrap();
    for line in [
        "[ 1712.308145] NVRM: The NVIDIA GPU 0000:3c:00.0",
        "               NVRM: (PCI ID: 10de:26b5) installed in this system has",
        "               NVRM: fallen off the bus and is not responding to commands.",
    ] {
        stand_in.log(line);
    }
    let told = until(&mut source, is(device(1), XID, "79")).await;
    let words = "fallen off the bus and is not responding to commands.";
    assert_eq!(text(&told, is(device(1), XID, "79")), words);
}

#[tokio::test]
async fn log_lines_about_other_devices_are_reported_for_the_node() {
    let stand_in = StandIn::new();
    let mut source = builder(&stand_in).open().await.unwrap();
    stand_in.log("NVRM: Xid (PCI:0000:99:00): 79, GPU has fallen off the bus.");
    stand_in.log("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore MCTO (First)");
    stand_in.log("NVRM: loading NVIDIA UNIX x86_64 Kernel Module");
    let told = until(&mut source, is(Domain::Node(node()), SXID, "28006")).await;
    assert_eq!(text(&told, is(Domain::Node(node()), XID, "79")), "device 0000:99:00: GPU has fallen off the bus.");
    let switch = text(&told, is(Domain::Node(node()), SXID, "28006"));
    assert!(switch.starts_with("switch 0000:c1:00: Non-fatal"), "{switch}");
}

#[tokio::test]
async fn lost_gpu_is_reported_once_and_identified_again_on_return() {
    let mut stand_in = StandIn::new();
    let mut source = builder(&stand_in).open().await.unwrap();
    let is_identity = |fact: &Fact| fact.about == device(1) && matches!(fact.signal, Signal::Ext(_));
    until(&mut source, is_identity).await;
    stand_in.set("1.lost", 1).set("event.1", "1 79");
    let mut told = until(&mut source, is(device(1), NVML, GPU_LOST)).await;
    if !told.iter().any(is(device(1), XID, "79")) {
        told.extend(until(&mut source, is(device(1), XID, "79")).await); // also of a device that tells nothing any more
    }
    for _ in 0..6 {
        told.extend(source.next().await.unwrap().unwrap().facts);
    }
    assert_eq!(told.iter().filter(|fact| is(device(1), NVML, GPU_LOST)(fact)).count(), 1);
    assert!(figure(&told, &device(0), &metric::TEMPERATURE).is_some(), "the others go on");
    stand_in.set("1.uuid", "GPU-replaced").set("1.lost", 0);
    let told = until(&mut source, is_identity).await;
    let told = told.iter().find(|fact| is_identity(fact)).unwrap();
    let Signal::Ext(ext) = &told.signal else { unreachable!() };
    assert_eq!(ext.get::<GpuIdentity>().unwrap().unwrap().uuid, "GPU-replaced");
    stand_in.set("0.reset", 1);
    until(&mut source, is(device(0), NVML, RESET_REQUIRED)).await;
}

#[tokio::test]
async fn counter_that_decreases_is_reported() {
    let mut stand_in = StandIn::new();
    stand_in.set("0.ecc_corrected", 7);
    let mut source = builder(&stand_in).open().await.unwrap();
    until(&mut source, |fact| matches!(&fact.signal, Signal::Metric { name, value } if *name == metric::ECC_CORRECTED_VOLATILE && *value == 7.0)).await;
    stand_in.set("0.ecc_corrected", 2);
    let told = until(&mut source, is(device(0), NVML, COUNTER_WENT_BACK)).await;
    assert!(text(&told, is(device(0), NVML, COUNTER_WENT_BACK)).contains("from 7 to 2"));
}

#[tokio::test]
async fn lost_driver_is_reported_once_and_found_again() {
    let mut stand_in = StandIn::new();
    let mut source = builder(&stand_in).open().await.unwrap();
    until(&mut source, |fact| fact.about == device(1)).await;
    stand_in.set("init", 9);
    let begun = Instant::now();
    let error = loop {
        assert!(begun.elapsed() < DEADLINE);
        if let Err(error) = source.next().await.unwrap() {
            break error;
        }
    };
    let SourceError::Unavailable(why) = &error else { panic!("{error:?}") };
    assert!(why.contains("driver is not loaded"), "{why}");
    let quiet = tokio::time::timeout(Duration::from_secs(1), source.next()).await;
    assert!(quiet.is_err(), "it is said once: {quiet:?}");
    stand_in.set("init", 0);
    until(&mut source, |fact| matches!(fact.signal, Signal::Ext(_))).await;
}

#[tokio::test]
async fn unavailable_xid_events_and_kernel_log_are_reported() {
    let mut stand_in = StandIn::new();
    stand_in.set("events", 3);
    let mut source = builder(&stand_in).with_kernel_log("/no/such/kmsg").open().await.unwrap();
    let here = Domain::Node(node());
    let told = until(&mut source, is(here.clone(), NVML, XID_EVENTS_UNAVAILABLE)).await;
    let why = text(&told, is(here.clone(), NVML, KERNEL_LOG_UNAVAILABLE));
    assert!(why.contains("/no/such/kmsg") && why.contains("CAP_SYSLOG"), "{why}");
    let mut stand_in = StandIn::new();
    stand_in.set("0.refuse_events", 1).set("event.1", "1 62");
    let mut source = builder(&stand_in).without_kernel_log().open().await.unwrap();
    let told = until(&mut source, is(device(1), XID, "62")).await;
    assert!(
        !told.iter().any(|fact| fact.about == here),
        "one device without events does not take the others': {told:#?}"
    );
}

#[tokio::test]
async fn blocked_nvml_call_does_not_delay_the_kernel_log_or_the_drop() {
    let mut stand_in = StandIn::new();
    let mut source = builder(&stand_in).open().await.unwrap();
    until(&mut source, |fact| fact.about == device(1)).await;
    stand_in.set("block", "temperature");
    stand_in.log("NVRM: Xid (PCI:0000:3b:00): 119, pid=1, name=x, Timeout waiting for RPC from GSP");
    until(&mut source, is(device(0), XID, "119")).await; // by the log, while NVML is stuck
    let waited = tokio::time::timeout(Duration::from_millis(300), async {
        loop {
            source.next().await.unwrap().unwrap();
        }
    });
    assert!(waited.await.is_err(), "nothing to tell is waited for");
    drop(source);
    stand_in.unset("block");
}

#[tokio::test]
async fn nvml_source_passes_the_conformance_suite() {
    let stand_in = StandIn::new();
    // Every batch comes from a line of the log, and every line is another Xid: the reported facts can be counted.
    let log = stand_in.kernel_log();
    let make = async || builder(&stand_in).with_interval(Duration::from_secs(60)).open().await.unwrap();
    let number = |fact: &Fact| match &fact.signal {
        Signal::Error(error) if error.family == XID => error.code.as_str().parse().ok(),
        _ => None,
    };
    let suite = conformance::trace_source(make).with_numbers(number).with_patience(Duration::from_secs(2));
    let suite = suite.with_stimulus(move |n| {
        use std::io::Write;
        let mut file = std::fs::OpenOptions::new().append(true).open(&log).unwrap();
        writeln!(file, "NVRM: Xid (PCI:0000:3b:00): {}, words", 100 + n).unwrap();
    });
    let report = suite.assert().await;
    let skipped: Vec<_> = report.skipped().iter().map(|(clause, _)| *clause).collect();
    assert_eq!(skipped, [ANSWERS_WHAT_IT_NAMES, ANSWERS_FOR_ITS_DOMAIN], "it answers no questions");
}
