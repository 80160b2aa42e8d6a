//! Both detectors in a whole runtime, from a source's facts and answers to the verdict.

use std::time::Duration;
use taskd_core::detect::{Fault, FaultClass, HangDetector, SlowRankDetector};
use taskd_core::job::{Domain, Incarnation, JobSpec, ProcId, Rank, Role};
use taskd_core::kernel::Event;
use taskd_core::recover::{ExitStrategy, Restart};
use taskd_core::runtime::{Runtime, RuntimeBuilder, RuntimeHandle};
use taskd_core::testing::doubles::{FakeLauncher, FakeProgram, ScriptedSource};
use taskd_core::trace::{COLLECTIVES, Call, Fact, GroupPosition, PROCESS_STATE, ProbeResult, Signal, StepTimes};
use tokio::time::{sleep, timeout};

const RANKS: u32 = 4;
const VICTIM: u32 = 2;

fn builder(launcher: &FakeLauncher, source: ScriptedSource) -> RuntimeBuilder {
    Runtime::builder()
        .job(JobSpec::new("test", RANKS, FakeProgram::Runs.spec()))
        .detector(HangDetector::default())
        .detector(SlowRankDetector::default())
        .strategy(Restart::new())
        .strategy(ExitStrategy::new())
        .source(source.then_waits())
        .launcher(launcher.clone())
}

fn about(rank: u32) -> Domain {
    Domain::Process(Role::Rank(Rank(rank)))
}

/// What is found first.
async fn first_fault(handle: &RuntimeHandle) -> Fault {
    let mut events = handle.events();
    let found = async {
        loop {
            if let Event::Found { fault, .. } = &events.recv().await.expect("the runtime runs").event {
                return fault.clone();
            }
        }
    };
    timeout(Duration::from_secs(60), found).await.expect("something is found")
}

#[tokio::test(start_paused = true)]
async fn a_rank_that_stops_in_a_collective_is_found_and_the_job_starts_again() {
    let call = |sequence, is_pending| Call {
        sequence,
        operation: "allreduce".into(),
        elements: 1024,
        data_type: "f32".into(),
        begun: Duration::from_millis(1_100),
        is_pending,
    };
    let pending = Signal::CollectivePending { group: "default".into(), sequence: 1, nanos: 1_000_000_000 };
    let fact = Fact::new(about(0), pending).with_incarnation(Incarnation(1));
    let mut source = ScriptedSource::new([vec![fact]]);
    for rank in 0..RANKS {
        let (recent, state) = match rank {
            VICTIM => (vec![call(0, false)], "state=T"),
            _ => (vec![call(0, false), call(1, true)], "state=S"),
        };
        let position = GroupPosition { group: "default".into(), members: (0..RANKS).collect(), recent };
        source = source.answering(COLLECTIVES, about(rank), ProbeResult::Groups(vec![position]));
        source = source.answering(PROCESS_STATE, about(rank), ProbeResult::Text(state.into()));
    }
    let launcher = FakeLauncher::new();
    let runtime = builder(&launcher, source).build().unwrap();
    let handle = runtime.handle();
    let job = tokio::spawn(runtime.run());
    let fault = first_fault(&handle).await;
    assert_eq!(
        (&fault.primary_suspect().domain, &fault.primary_suspect().class),
        (&about(VICTIM), &FaultClass::Silence)
    );
    let again = async {
        while !(0..RANKS).all(|rank| launcher.runs(&ProcId::rank(rank, 2))) {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(Duration::from_secs(60), again).await.expect("all start again");
    (0..RANKS).for_each(|rank| assert!(launcher.finish(&ProcId::rank(rank, 2), 0)));
    let report = timeout(Duration::from_secs(60), job).await.unwrap().unwrap();
    assert_eq!((report.ok, report.restarts, &report.incidents[0].blamed[..]), (true, 1, &[Rank(VICTIM)][..]));
}

#[tokio::test(start_paused = true)]
async fn a_rank_that_becomes_slower_is_found() {
    let step = |step: u64| {
        let slowest = if step > 80 { 150 } else { 100 };
        let times = |rank| {
            let own = if rank == VICTIM { slowest } else { 100 };
            let (wall_ns, wait_ns) = (slowest * 1_000_000, (slowest - own) * 1_000_000);
            StepTimes { step, wall_ns, wait_ns, ..StepTimes::default() }
        };
        let fact = |rank| Fact::new(about(rank), Signal::Step(Box::new(times(rank)))).with_incarnation(Incarnation(1));
        (0..RANKS).map(fact).collect::<Vec<Fact>>()
    };
    let source = ScriptedSource::new((1..100).map(step)).every(Duration::from_millis(110));
    let runtime = builder(&FakeLauncher::new(), source).build().unwrap();
    let handle = runtime.handle();
    let job = tokio::spawn(runtime.run());
    let fault = first_fault(&handle).await;
    assert_eq!((&fault.primary_suspect().domain, &fault.primary_suspect().class), (&about(VICTIM), &FaultClass::Slow));
    let onset = fault.evidence.iter().find(|clue| clue.what == "slow_onset_step").and_then(|clue| clue.value);
    assert_eq!(onset, Some(81.0));
    job.abort();
}
