//! Ranks that record, and what is read while they run and after they were killed.

use crate::support::*;
use rustix::process::Signal;
use taskd_core::job::Termination;
use taskd_core::trace::recorder::*;

const RECORDS: &str = r#"
assert (T.taskd_open(), T.taskd_open(), T.taskd_why()) == (1, 1, b"")
step = T.taskd_begin_step(7)
forward = T.taskd_begin(named(FORWARD, b"layer 1"))
T.taskd_end(forward)
what = Communication(1, 3, T.taskd_name(b"dp:0", 4), 0xffffffff, 1000, 2000, 0)
reduce = T.taskd_begin_communication(T.taskd_name(b"all_reduce", 10), ctypes.byref(what))
other = threading.Thread(target=T.taskd_end, args=[reduce])
other.start(), other.join()
receive = T.taskd_begin_communication(0, ctypes.byref(Communication(11, 1, 0, 3, 1, 4, 5)))
T.taskd_end(receive)
T.taskd_end(T.taskd_begin_communication(0, None))
T.taskd_mark(named(SAVE, b"rank.pt"))
T.taskd_counter(named(USER + 2, b"loss"), 0.25)
T.taskd_end(step)
for nothing in (0, 15 << 58):
    T.taskd_end(nothing), T.taskd_mark(nothing & 0xffffffff)
T.taskd_hooked(STEP), T.taskd_hooked(99)
T.taskd_except(COMMUNICATION, b"another profiler is active", 26)
say("recorded")
signal.pause()
"#;

#[tokio::test]
async fn records_are_read_while_a_rank_runs_and_after_it_is_killed() {
    let rank = Rank::python(RECORDS, &[]).await;
    rank.printed("recorded").await;
    let (mut recording, mut ranges) = (rank.recording().await, Vec::new());
    let communication =
        "begin 2 Communication \"all_reduce\" AllReduce of 1000 Bf16 in 2000 bytes in dp:0, peer None, Some(0)";
    let expected = [
        "begin 0 Step number 7",
        "begin 1 Forward \"layer 1\"",
        "end 1 Forward",
        communication,
        "end 2 Communication",
        "begin 3 Communication Recv of 1 F32 in 4 bytes in none, peer Some(3), Some(5)",
        "end 3 Communication",
        "begin 4 Communication",
        "end 4 Communication",
        "mark SaveCheckpoint \"rank.pt\"",
        "counter 0.25 User(2) \"loss\"",
        "end 0 Step number 7 with its time",
    ];
    assert_eq!(records_of(&mut recording, &mut ranges), expected);
    eventually(
        || "one of its two threads has ended".to_owned(),
        || {
            let ended: Vec<bool> = recording.threads().iter().map(|thread| thread.has_ended).collect();
            (ended == [false, true]).then_some(()) // Python's `join` does not wait for the system's thread
        },
    )
    .await;
    assert_eq!((recording.pid() as i32, recording.losses()), (rank.pid().await, Losses::default()));
    assert_eq!(recording.hooked(), Switches::NONE.with(Kind::Step));
    assert_eq!(recording.exceptions(), [(Kind::Communication, "another profiler is active".to_owned())]);

    rank.send(Signal::KILL).await;
    assert!(matches!(rank.exit().await, Termination::Signal { number: 9, .. }));
    assert!(records_of(&mut recording, &mut ranges).is_empty(), "nothing came after");
    // The exit is not acknowledged, so a reader that comes only now finds the memory, too.
    assert_eq!(records_of(&mut rank.recording().await, &mut ranges), expected);
    rank.end().await;
}

const SWITCHED: &str = r#"
T.taskd_open()
def wait(kind, on):
    while bool(T.taskd_switches()[0] >> kind & 1) != on:
        time.sleep(0.001)
assert T.taskd_begin(FORWARD) == 0 and T.taskd_begin_step(1) == 0, "they are off"
open = T.taskd_begin(named(DATALOADER, b"on from the start"))
say("off")
wait(STEP, True)
T.taskd_mark(STEP), T.taskd_mark(DATALOADER), T.taskd_end(open)
say("done")
signal.pause()
"#;

#[tokio::test]
async fn kinds_are_switched_from_outside() {
    let rank = Rank::python(SWITCHED, &[("TASKD_TRACE", "dataloader"), ("TASKD_TRACE_RECORDS", "1024")]).await;
    rank.printed("off").await;
    let mut recording = rank.recording().await;
    recording.switch(Switches::NONE.with(Kind::Step));
    rank.printed("done").await;
    let expected = ["begin 0 DataLoader \"on from the start\"", "mark Step", "end 0 DataLoader"];
    assert_eq!(records_of(&mut recording, &mut Vec::new()), expected);
    let bytes = RecorderConfig { records_per_thread: 1024, ..RecorderConfig::default() }.bytes() as u64;
    assert_eq!(rank.memory().await.metadata().unwrap().len(), bytes, "the guard goes by the rank's environment");
    rank.end().await;
}

#[tokio::test]
async fn a_rank_without_hooks_has_no_library() {
    let program = "import os; print('library', os.environ.get('TASKD_LIB'), flush=True)";
    let rank = Rank::start(&["python3", "-c", program], &[("TASKD_HOOKS", "0")]).await;
    assert_eq!(rank.printed("library").await, "None");
    rank.end().await;
}
