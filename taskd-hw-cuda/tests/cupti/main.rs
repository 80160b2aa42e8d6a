//! The probe in a real supervised process, from CUPTI's buffers to the node's records and facts. CUPTI is one that stands in
//! for NVIDIA's, and the program does what CUDA's driver would: no GPU has been near it.
//!
//! This program is also the guard of its own tests, so it has a `main`: that of a test runner as small as can be.

#![allow(clippy::unwrap_used)] // helpers of tests are tests

mod rank;

use rank::Rank;
use std::process::ExitCode;
use std::time::Duration;
use taskd_core::job::{Name, Termination};
use taskd_core::launch::guard;
use taskd_core::testing::conformance;
use taskd_core::trace::recorder::{DataType, Detail, Event, Kind, Op};
use taskd_core::trace::switches::{Mode, Requested, Switch, TraceControl};
use taskd_core::trace::{Signal, TraceSource};
use taskd_hw_cuda::cupti::{self, FAMILY};

macro_rules! tests {
    ($($name:ident),+ $(,)?) => {
        /// Runs those whose names hold a word of the command line, or all.
        async fn run(wanted: impl Fn(&str) -> bool, only_list: bool) {
            $(if only_list {
                println!("{}: test", stringify!($name));
            } else if wanted(stringify!($name)) {
                tokio::time::timeout(Duration::from_secs(120), $name()).await.unwrap();
                println!("test {} ... ok", stringify!($name));
            })+
        }
    };
}

tests! {
    gpu_activity_is_in_the_node_records,
    nothing_is_lost_that_is_not_counted,
    kinds_are_switched_while_the_process_runs,
    missing_cupti_is_reported_and_training_continues,
    probe_in_a_process_without_recorder_does_nothing,
    nvml_source_passes_the_conformance_suite,
}

fn main() -> ExitCode {
    guard::init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let filters: Vec<String> = arguments.iter().filter(|word| !word.starts_with('-')).cloned().collect();
    let wanted = |name: &str| filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str()));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(run(wanted, arguments.iter().any(|word| word == "--list")));
    ExitCode::SUCCESS
}

async fn gpu_activity_is_in_the_node_records() {
    let begun = rank::unix_nanos();
    let rank = Rank::start(&["all"], &[("TASKD_TRACE", "all")], None).await;
    assert_eq!(rank.exit().await, Termination::Code(0));
    let told = rank.end().await;
    assert_eq!((told.said("injected"), told.said("calls_from_callbacks"), told.said("dropped")), ("1", "0", "0"));
    let named =
        |name: &str| told.records.iter().find(|(known, _)| known == name).unwrap_or_else(|| panic!("{told:#?}")).1;
    let gemm = named("gemm");
    assert_eq!((gemm.kind, gemm.event), (Kind::Kernel, Event::Span { nanos: 2500 }));
    let Detail::Device(work) = gemm.detail else { panic!("{gemm:?}") };
    assert_eq!((work.device, work.stream, work.correlation), (1, 7, 41));
    assert!(gemm.unix_nanos > begun && gemm.unix_nanos < rank::unix_nanos(), "by the calendar, not by CUPTI's clock");
    let nccl = named("ncclDevKernel_AllReduce_Sum_bf16_RING_LL");
    let Detail::DeviceCommunication(what) = nccl.detail else { panic!("{nccl:?}") };
    assert_eq!(
        (nccl.kind, what.op, what.data_type, what.work.stream),
        (Kind::Communication, Op::AllReduce, DataType::Bf16, 9)
    );
    let copy = named("memcpy host to device");
    assert!(matches!(copy.detail, Detail::Device(work) if work.bytes == 4096) && copy.kind == Kind::Copy, "{copy:?}");
    assert!(matches!(named("memset").detail, Detail::Device(work) if work.bytes == 64));
    let call = named("cudaLaunchKernel_v7000");
    assert!(matches!(call.detail, Detail::Device(work) if work.correlation == 41) && call.thread > 1, "{call:?}");
    let forward = named("forward");
    assert!(forward.kind == Kind::Marker && matches!(forward.event, Event::Span { .. }), "{forward:?}");
    assert!(gemm.unix_nanos >= forward.unix_nanos - 2500, "both by one clock");
    assert_eq!(named("moment").event, Event::Instant);
    assert_eq!(told.figure("cupti.records_total"), Some(8.0), "{:#?}", told.facts);
    assert_eq!(told.figure("cupti.brought_total"), Some(7.0), "a range is two records of CUPTI's");
    assert_eq!(told.figure("cupti.stand_in_on"), Some(1.0));
    assert!(told.profile_is_stand_in);
}

async fn nothing_is_lost_that_is_not_counted() {
    // Ten thousand a second for two seconds: none is lost.
    let rank = Rank::start(&["kernels", "20000", "10"], &[("TASKD_TRACE", "kernel")], None).await;
    assert_eq!(rank.exit().await, Termination::Code(0));
    let told = rank.end().await;
    let kernels = || told.records.iter().filter(|(name, _)| name == "gemm");
    assert_eq!((kernels().count(), told.said("dropped"), told.figure("cupti.dropped_total")), (20_000, "0", Some(0.0)));
    assert!(told.facts.iter().all(|fact| !matches!(fact.signal, Signal::Lost { .. })));
    // A million at once: CUPTI counts and reports records without room in its buffers; the probe counts those without
    // room in the recorder when the program ends at once.
    for pause_ms in ["1500", "0"] {
        let rank = Rank::start(&["kernels", "1000000", "0", pause_ms], &[("TASKD_TRACE", "kernel")], None).await;
        assert_eq!(rank.exit().await, Termination::Code(0));
        let told = rank.end().await;
        let kernels = told.records.iter().filter(|(name, _)| name == "gemm").count();
        let dropped: f64 = told.said("dropped").parse().unwrap();
        let given_up = told.figure("cupti.given_up_total").unwrap();
        assert_eq!(kernels as f64 + dropped + given_up, 1e6, "{:#?}", told.facts);
        assert_eq!(told.figure("cupti.dropped_total"), Some(dropped));
        let lost = |fact: &taskd_core::trace::Fact| if let Signal::Lost { count } = fact.signal { count } else { 0 };
        assert_eq!(told.facts.iter().map(lost).sum::<u64>() as f64, dropped + given_up);
        println!(
            "of a million kernels at once CUPTI dropped {dropped} and the probe gave up {given_up}, all of them counted"
        );
    }
}

async fn kinds_are_switched_while_the_process_runs() {
    let control = TraceControl::new(Mode::Native);
    let rank = Rank::start(&["switched"], &[], Some(control.clone())).await;
    rank.said("ready").await;
    let requested = |kernel| Requested { kernel, ..Requested::default() };
    control.switch(requested(Switch::On), Name::new("test"));
    rank.said("recorded").await;
    control.switch(requested(Switch::Off), Name::new("test"));
    assert_eq!(rank.exit().await, Termination::Code(0));
    let told = rank.end().await;
    assert_eq!([told.said("off"), told.said("on"), told.said("off again")], ["1", "1", "1"]);
    let names: Vec<&str> =
        told.records.iter().filter(|(_, record)| record.kind == Kind::Kernel).map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["while on"]);
}

async fn missing_cupti_is_reported_and_training_continues() {
    let rank = Rank::start(&[], &[("TASKD_TRACE", "all"), ("TASKD_CUPTI_LIB", "/no/such/libcupti.so")], None).await;
    assert_eq!(rank.exit().await, Termination::Code(0));
    let told = rank.end().await;
    assert_eq!(told.said("injected"), "1");
    let why = told.facts.iter().find_map(|fact| match &fact.signal {
        Signal::Error(error) if error.family == FAMILY => Some(error.text.clone()),
        _ => None,
    });
    let why = why.unwrap_or_else(|| panic!("{told:#?}"));
    assert!(why.contains("/no/such/libcupti.so") && why.contains("TASKD_CUPTI_LIB"), "{why}");
}

async fn probe_in_a_process_without_recorder_does_nothing() {
    let mut trainer = std::process::Command::new(rank::trainer());
    let probe = cupti::PROBE.unpack().unwrap();
    trainer.env_clear().env("CUDA_INJECTION64_PATH", probe).env("TASKD_CUPTI_LIB", rank::library());
    let output = trainer.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("injected 1\n"), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
}

async fn nvml_source_passes_the_conformance_suite() {
    let make = async || {
        let (mut sink, source) = cupti::reader();
        (1..=9).for_each(|n| rank::tell(&mut sink, "cupti.records", f64::from(n)));
        source
    };
    let facts: Vec<_> = (1..=9).map(|n| rank::fact("cupti.records_total", f64::from(n))).collect();
    conformance::trace_source(make).with_reference(facts).assert().await;
    let (mut sink, mut source) = cupti::reader();
    for n in 0..10_000 {
        rank::tell(&mut sink, "cupti.records", f64::from(n));
    }
    let batch = source.next().await.unwrap().unwrap();
    let lost = |fact: &taskd_core::trace::Fact| matches!(fact.signal, Signal::Lost { count } if count == 10_000 - 4096);
    assert!(batch.facts.iter().any(lost), "a source that nobody reads counts what it loses");
    assert!(source.with_stand_in().info().stand_in);
}
