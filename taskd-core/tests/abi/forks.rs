//! What a rank starts is not the rank: it records nothing.

use crate::support::*;

const FORKS: &str = r#"
import subprocess
T.taskd_open()
T.taskd_mark(named(USER, b"before"))
child = os.fork()
if child == 0:
    quiet = T.taskd_open() == 0 and T.taskd_why() == b"this process was forked from the recording process"
    quiet = quiet and T.taskd_switches()[0] == 0 and T.taskd_begin(named(USER, b"x")) == 0 and T.taskd_name(b"y", 1) == 0
    T.taskd_mark(USER), T.taskd_end(T.taskd_begin_step(1)), T.taskd_hooked(STEP), T.taskd_except(STEP, b"z", 1)
    os._exit(0 if quiet else 1)
say("forked", os.waitpid(child, 0)[1])
helper = "import ctypes, os; T = ctypes.CDLL(os.environ['TASKD_LIB']); T.taskd_why.restype = ctypes.c_char_p;"
helper += "print('helper', T.taskd_open(), T.taskd_mark(16), T.taskd_why().decode(), flush=True)"
subprocess.run([sys.executable, "-c", helper], check=True)
T.taskd_mark(named(USER, b"after"))
say("done")
signal.pause()
"#;

#[tokio::test]
async fn forked_and_started_helpers_record_nothing() {
    let rank = Rank::python(FORKS, &[]).await;
    rank.printed("done").await;
    assert_eq!(rank.printed("forked").await, "0", "it saw everything off");
    let helper = rank.printed("helper").await;
    assert!(helper.starts_with("0 ") && helper.ends_with("a process that the rank has started"), "{helper}");
    let mut recording = rank.recording().await;
    assert_eq!(records_of(&mut recording, &mut Vec::new()), ["mark User(0) \"before\"", "mark User(0) \"after\""]);
    assert_eq!((recording.threads().len(), recording.exceptions()), (1, vec![]));
    rank.end().await;
}
