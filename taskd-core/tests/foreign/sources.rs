//! What the sources over foreign processes report: signs of life, states, steps.

use crate::support::*;
use rustix::process::{Signal as Sent, kill_process};
use std::fs::{self, File};
use std::sync::Arc;
use std::time::Duration;
use taskd_core::job::{Domain, Name, ProcId, Rank, Role};
use taskd_core::launch::StepPattern;
use taskd_core::testing::conformance;
use taskd_core::trace::{Fact, PROCESS_STATE, Probe, ProbeResult, Signal, TraceSource};
use tokio::time::timeout;

/// The answer to the question for a rank's state.
async fn state(source: &mut impl TraceSource, rank: u32) -> ProbeResult {
    let about = Domain::Process(Role::Rank(Rank(rank)));
    let by = Name::new("test");
    let ask = Probe::new(by, PROCESS_STATE, vec![about.clone()], Duration::from_secs(1)).with_tag(1);
    source.collect(&ask, &about).await.expect("an answer")
}

/// Reads facts until there is one like this.
async fn fact(source: &mut impl TraceSource, like: impl Fn(&Fact) -> bool) -> Fact {
    let reading = async {
        loop {
            let batch = source.next().await.expect("it goes on").expect("a batch");
            if let Some(fact) = batch.facts.into_iter().find(&like) {
                return fact;
            }
        }
    };
    timeout(PATIENCE, reading).await.expect("it is reported")
}

#[tokio::test]
async fn a_stopped_process_gives_no_sign_of_life_until_it_goes_on() {
    let job = Job::run("RANK=0 sleep 600 & RANK=1 sleep 600 & wait");
    let foreign = job.watched().await;
    let frozen = pid(&foreign, ProcId::rank(1, 1)).await;
    pid(&foreign, ProcId::rank(0, 1)).await;
    let mut states = foreign.states(LOOK_EVERY);
    let beats = |rank: u32| move |fact: &Fact| fact.about == Domain::Process(Role::Rank(Rank(rank)));
    fact(&mut states, beats(1)).await;

    kill_process(frozen, Sent::STOP).unwrap();
    let stopped = async {
        while !matches!(state(&mut states, 1).await, ProbeResult::Text(text) if text.starts_with("state=T ")) {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    timeout(PATIENCE, stopped).await.expect("it stops");
    for _ in 0..5 {
        let batch = states.next().await.unwrap().unwrap();
        assert!(batch.facts.iter().any(beats(0)) && !batch.facts.iter().any(beats(1)), "{batch:?}");
    }
    kill_process(frozen, Sent::CONT).unwrap();
    let again = fact(&mut states, beats(1)).await;
    assert_eq!((again.signal, again.incarnation.map(|i| i.0)), (Signal::Heartbeat, Some(1)));
}

#[tokio::test]
async fn steps_and_last_words_are_read_where_output_goes_to_files() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| File::create(dir.path().join(name)).unwrap();
    let script =
        "RANK=0 sh -c 'echo step 1; sleep 0.2; echo step 2; sleep 0.2; echo ValueError: boom >&2; exit 1'; sleep 600";
    let job = Job::with_output(script, file("out").into(), file("err").into());
    let foreign = job.watched().await;
    let mut steps = foreign.steps(StepPattern::after("step "), LOOK_EVERY);
    let second = fact(&mut steps, |fact| fact.signal == Signal::Progress { step: 2 }).await;
    assert_eq!(second.about, Domain::Process(Role::Rank(Rank(0))));
    job.go_on();
    let exit = exit(&foreign, ProcId::rank(0, 1)).await;
    assert_eq!(exit.stderr_tail, "ValueError: boom\n");
}

#[tokio::test]
async fn output_shared_by_several_ranks_is_no_ranks_stderr_tail() {
    let dir = tempfile::tempdir().unwrap();
    let both = || File::options().create(true).append(true).open(dir.path().join("both")).unwrap();
    let script = format!("for r in 0 1; do RANK=$r sh -c '{WAIT}; echo boom >&2; exit 1' & done; wait; sleep 600");
    let job = Job::with_output(&script, both().into(), both().into());
    let foreign = job.watched().await;
    for rank in [0, 1] {
        pid(&foreign, ProcId::rank(rank, 1)).await;
    }
    job.go_on();
    assert_eq!(exit(&foreign, ProcId::rank(0, 1)).await.stderr_tail, "");
}

#[tokio::test]
async fn foreign_sources_satisfy_the_source_contract() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("metrics");
    let job = Job::run("RANK=0 sleep 600 & wait");
    let foreign = Arc::new(job.watched().await);
    pid(&foreign, ProcId::rank(0, 1)).await;
    conformance::trace_source(async || foreign.states(LOOK_EVERY)).assert().await;

    let written = log.clone();
    let number = |fact: &Fact| if let Signal::Progress { step } = fact.signal { Some(step) } else { None };
    let make = async || {
        let _ = fs::remove_file(&log);
        foreign.steps(StepPattern::after("step "), Duration::from_millis(2)).also_in(Rank(0), &log)
    };
    let write = move |step: u64| {
        use std::io::Write;
        let mut file = File::options().create(true).append(true).open(&written).unwrap();
        writeln!(file, "step {step}").unwrap();
    };
    conformance::trace_source(make).with_numbers(number).with_stimulus(write).assert().await;
}

#[tokio::test]
async fn sources_end_with_their_launcher() {
    let job = Job::run("RANK=0 sleep 600 & wait");
    let foreign = job.watched().await;
    let (mut states, mut steps) = (foreign.states(LOOK_EVERY), foreign.steps(StepPattern::after("step "), LOOK_EVERY));
    drop(foreign);
    let ended = async { states.next().await.is_none() && steps.next().await.is_none() };
    assert!(timeout(PATIENCE, ended).await.expect("they end"));
}
