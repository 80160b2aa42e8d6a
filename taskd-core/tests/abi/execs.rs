//! A rank that turns itself into another program keeps its pid, and its memory.

use crate::support::*;
use taskd_core::trace::recorder::{Kind, Losses, Switches};

const EXECS: &str = r#"
assert T.taskd_open() == 1, T.taskd_why()
turn = int(os.environ.get("TURN", 0))
T.taskd_mark(named(USER, b"turn %d" % turn))
T.taskd_begin(named(FORWARD, b"never ended"))
T.taskd_hooked(STEP + turn)
if turn == 2:
    say("done")
    signal.pause()
os.environ["TURN"] = str(turn + 1)
threading.Thread(target=lambda: T.taskd_mark(named(USER, b"of a thread"))).start()
os.execv(sys.executable, [sys.executable, "-c", os.environ["PROGRAM"]])
"#;

#[tokio::test]
async fn a_program_that_the_rank_becomes_goes_on_in_the_same_file() {
    let program = format!("{PRELUDE}{EXECS}");
    let rank = Rank::start(&["python3", "-c", &program], &[("PROGRAM", &program)]).await;
    rank.printed("done").await;
    let mut recording = rank.recording().await;
    let mut ranges = Vec::new();
    let mut found = records_of(&mut recording, &mut ranges);
    found.retain(|record| record != "mark User(0) \"of a thread\""); // the exec may come first
    let expected = [0, 1, 2]
        .map(|turn| [format!("mark User(0) \"turn {turn}\""), format!("begin {turn} Forward \"never ended\"")]);
    assert_eq!(found, expected.concat());
    let is_running: Vec<bool> = recording.threads().iter().map(|thread| !thread.has_ended).collect();
    assert_eq!(
        is_running.iter().filter(|running| **running).count(),
        1,
        "the threads before have ended: {is_running:?}"
    );
    assert_eq!(recording.hooked(), Switches::NONE.with(Kind::SaveCheckpoint), "what the last program reports");
    assert_eq!(recording.losses(), Losses::default());
    rank.end().await;
}
