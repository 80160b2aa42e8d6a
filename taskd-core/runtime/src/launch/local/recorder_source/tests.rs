//! The recorder source with recorders of this process in place of ranks: facts, sinks and probes.

use super::*;
use crate::job::{Exit, NodeId, ProcId, Termination};
use crate::launch::Phase;
use crate::launch::guard::wire::JobId;
use crate::trace::recorder::{Communication, DataType, Detail, Kind, NameId, Op, Range, Recorder, RecorderConfig};
use crate::trace::switches::{Mode, Requested};
use crate::trace::{RecordBatch, Signal};
use std::os::fd::AsRawFd;
use std::sync::Mutex;

/// A rank that uses a recorder of this process.
struct Played {
    history: Arc<History>,
    proc: ProcId,
    recorder: Arc<Recorder>,
    memory: File,
}

impl Played {
    fn new(history: &Arc<History>, rank: u32, incarnation: u32) -> Played {
        let config = RecorderConfig { records_per_thread: 1024, ..RecorderConfig::default() };
        let memory = config.memory().unwrap();
        let recorder = Arc::new(Recorder::create(memory.try_clone().unwrap(), config).unwrap());
        let played = Played { history: Arc::clone(history), proc: ProcId::rank(rank, incarnation), recorder, memory };
        played.report(Phase::Running);
        played
    }

    fn report(&self, phase: Phase) {
        let page = Some(format!("/proc/self/fd/{}", self.memory.as_raw_fd()).into());
        let (proc, pid) = (self.proc.clone(), std::process::id());
        self.history.learn(ProcReport { proc, pid, start_time: 1, phase, page });
    }

    fn exit(&self) {
        self.report(Phase::Exited(Box::new(Exit::new(Termination::Unknown))));
    }

    fn steps(&self, numbers: std::ops::RangeInclusive<u64>) {
        let mut thread = self.recorder.thread();
        for number in numbers {
            let step = thread.begin_step(number).unwrap();
            thread.end_step(step);
        }
    }

    fn call(&self, sequence: u64) -> Range {
        let group = self.recorder.name("default|0-1");
        let detail = Detail::Communication(Communication {
            op: Op::AllReduce,
            data_type: DataType::F32,
            group,
            elements: 8,
            bytes: 32,
            peer: None,
            sequence: Some(sequence),
        });
        self.recorder.thread().begin(Kind::Communication, self.recorder.name("allreduce"), detail).unwrap()
    }
}

fn history() -> Arc<History> {
    Arc::new(History::new(JobId("job".into()), NodeId(Name::new("here")), 8))
}

fn step_of(fact: &Fact) -> Option<u64> {
    if let Signal::Step(times) = &fact.signal { Some(times.step) } else { None }
}

async fn facts(source: &mut RecorderSource) -> Vec<Fact> {
    tokio::time::timeout(Duration::from_secs(5), source.next())
        .await
        .map_or(Vec::new(), |found| found.unwrap().unwrap().facts)
}

async fn groups(source: &mut RecorderSource, rank: u32) -> Result<Vec<crate::trace::GroupPosition>, SourceError> {
    let about = Domain::Process(Role::Rank(Rank(rank)));
    let ask = Probe::new(NAME, COLLECTIVES, vec![about.clone()], Duration::from_secs(1)).with_tag(1);
    source.collect(&ask, &about).await.map(|exhibit| match exhibit {
        ProbeResult::Groups(groups) => groups,
        other => panic!("{other:?}"),
    })
}

#[tokio::test(start_paused = true)]
async fn steps_of_all_ranks_are_reported_and_each_batch_reaches_the_sink() {
    let history = history();
    let ranks = [0, 1].map(|rank| Played::new(&history, rank, 1));
    let batches: Arc<Mutex<Vec<Arc<RecordBatch>>>> = Arc::default();
    let kept = Arc::clone(&batches);
    let mut source =
        RecorderSource::new(history).sink(move |batch: &Arc<RecordBatch>| kept.lock().unwrap().push(batch.clone()));
    ranks.iter().for_each(|rank| rank.steps(1..=3));
    let found = facts(&mut source).await;
    assert_eq!(found.iter().filter_map(step_of).collect::<Vec<_>>(), [1, 2, 3, 1, 2, 3]);
    assert!(found.iter().all(|fact| fact.incarnation == Some(Incarnation(1)) && !fact.age.is_zero()));
    assert!(found.is_sorted_by(|a, b| a.age >= b.age));
    assert_eq!(batches.lock().unwrap().iter().map(|batch| batch.records.len()).collect::<Vec<_>>(), [6, 6]);
    assert_eq!(facts(&mut source).await, [], "nothing is reported twice");
    assert_eq!(batches.lock().unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_recorder_of_another_version_is_reported_once() {
    let history = history();
    let played = Played::new(&history, 0, 1);
    let version_at = 4096 + 8;
    std::os::unix::fs::FileExt::write_all_at(&played.memory, &9u32.to_ne_bytes(), version_at).unwrap();
    let mut source = RecorderSource::new(Arc::clone(&history));
    let found = source.next().await.unwrap().unwrap_err().to_string();
    let words = "the records of rank 0 #1 cannot be read any more: \
        a recorder's file of version 9, and this program reads version 1";
    assert!(found.ends_with(words), "{found}");
    assert_eq!(facts(&mut source).await, []);
}

#[tokio::test(start_paused = true)]
async fn last_records_of_a_process_are_read_after_its_exit_is_acknowledged() {
    let history = history();
    let first = Played::new(&history, 0, 1);
    let mut source = RecorderSource::new(Arc::clone(&history));
    assert_eq!(facts(&mut source).await, []);
    first.steps(1..=2);
    let _pending = first.call(0);
    first.exit();
    history.acknowledge(std::slice::from_ref(&first.proc));
    drop(first); // only the source still has its memory
    assert_eq!(facts(&mut source).await.iter().filter_map(step_of).collect::<Vec<_>>(), [1, 2]);
    assert!(groups(&mut source, 0).await.unwrap()[0].recent[0].is_pending, "it can still be asked about");
    let second = Played::new(&history, 0, 2);
    second.steps(3..=3);
    let found = facts(&mut source).await;
    assert_eq!((found.len(), found[0].incarnation, step_of(&found[0])), (1, Some(Incarnation(2)), Some(3)));
    assert_eq!(groups(&mut source, 0).await, Ok(vec![]));
    assert_eq!(source.followed.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_question_is_answered_as_of_now() {
    let history = history();
    let rank = Played::new(&history, 1, 1);
    let mut source = RecorderSource::new(Arc::clone(&history));
    assert!(matches!(groups(&mut source, 0).await, Err(SourceError::Unavailable(_))));
    let call = rank.call(4);
    rank.steps(1..=1);
    let position = &groups(&mut source, 1).await.unwrap()[0];
    assert_eq!((position.group.as_str(), &position.members[..]), ("default", &[0, 1][..]));
    assert_eq!((position.recent[0].sequence, position.recent[0].is_pending), (4, true));
    rank.recorder.thread().end(call);
    assert!(!groups(&mut source, 1).await.unwrap()[0].recent[0].is_pending);
    assert_eq!(facts(&mut source).await.iter().filter_map(step_of).collect::<Vec<_>>(), [1], "found when it was asked");
}

#[tokio::test]
async fn a_long_collective_is_reported_once() {
    let history = history();
    let rank = Played::new(&history, 0, 1);
    let bound = Duration::from_millis(30);
    let mut source = RecorderSource::new(history).every(Duration::from_millis(5)).pending_after(bound);
    let call = rank.call(9);
    let found = facts(&mut source).await;
    let [Fact { signal: Signal::CollectivePending { group, sequence: 9, nanos }, .. }] = &found[..] else {
        panic!("{found:?}")
    };
    assert!(group == "default" && *nanos >= 30_000_000);
    rank.steps(1..=1);
    assert_eq!(facts(&mut source).await.iter().filter_map(step_of).collect::<Vec<_>>(), [1], "not reported again");
    rank.recorder.thread().end(call);
}

#[tokio::test(start_paused = true)]
async fn lost_records_are_reported_and_a_rival_reader_is_an_error_once() {
    let history = history();
    let rank = Played::new(&history, 0, 1);
    let mut source = RecorderSource::new(history);
    rank.steps(1..=600); // of 1,200 records the ring keeps 1,024
    let found = facts(&mut source).await;
    let lost: Vec<&Signal> =
        found.iter().map(|fact| &fact.signal).filter(|s| matches!(s, Signal::Lost { .. })).collect();
    assert_eq!(lost, [&Signal::Lost { count: 176 }]);
    assert_eq!(found.iter().filter_map(step_of).count(), 512);
    let mut rival = crate::trace::recorder::RecorderReader::open(rank.memory.try_clone().unwrap()).unwrap();
    rank.steps(601..=601);
    rival.take(|_| ()).unwrap();
    rival.commit().unwrap();
    rank.steps(602..=602);
    let error = source.next().await.unwrap().unwrap_err().to_string();
    assert!(error.contains("rank 0 #1") && error.contains("another reader"), "{error}");
    assert_eq!(facts(&mut source).await, []);
}

#[tokio::test(start_paused = true)]
async fn recorders_are_under_control_while_their_processes_live() {
    let history = history();
    let rank = Played::new(&history, 0, 1);
    let control = TraceControl::new(Mode::Native);
    control.switch(Requested::NONE, "me");
    let mut source = RecorderSource::new(Arc::clone(&history)).control(control.clone());
    assert!(rank.recorder.is_on(Kind::Step));
    assert_eq!(facts(&mut source).await, []);
    assert!(!rank.recorder.is_on(Kind::Step) && control.status().ranks.len() == 1);
    rank.exit();
    assert_eq!(facts(&mut source).await, []);
    assert_eq!(control.status().ranks.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn memory_of_another_process_and_memory_without_a_recorder_are_left_alone() {
    let history = history();
    let rank = Played::new(&history, 0, 1);
    let page = Some(format!("/proc/self/fd/{}", rank.memory.as_raw_fd()).into());
    let report = ProcReport { proc: ProcId::rank(1, 1), pid: 1, start_time: 1, phase: Phase::Running, page };
    history.learn(report);
    rank.steps(1..=1);
    let empty = RecorderConfig::default().memory().unwrap();
    let page = Some(format!("/proc/self/fd/{}", empty.as_raw_fd()).into());
    let report = ProcReport { proc: ProcId::rank(2, 1), pid: 2, start_time: 1, phase: Phase::Running, page };
    history.learn(report);
    let mut source = RecorderSource::new(history);
    let found = facts(&mut source).await;
    assert_eq!(found.iter().map(|fact| fact.about.to_string()).collect::<Vec<_>>(), ["rank 0"]);
    assert!(groups(&mut source, 1).await.is_err() && groups(&mut source, 2).await.is_err());
    assert_eq!(rank.recorder.name(""), NameId(1), "nothing was written into it");
}
