//! Failures of a rank's environment: the rank continues, losses are counted and reported in one sentence.

use crate::support::*;
use rustix::io::Errno;
use std::process::Command;
use taskd_core::trace::recorder::Losses;

/// From now on the system has no memory for files (`fallocate` fails), for this thread and those that it starts.
const NO_MEMORY: &str = r#"
import struct
def leave_no_memory():
    fallocate = {"x86_64": 285, "aarch64": 47}[os.uname().machine]
    load, equals, answer, enospc, allow = 0x20, 0x15, 0x06, 0x50000 | 28, 0x7FFF0000
    steps = [(load, 0, 0, 0), (equals, 0, 1, fallocate), (answer, 0, 0, enospc), (answer, 0, 0, allow)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = struct.pack("@HP", len(steps), ctypes.addressof(code))
    no_new_privileges, set_filter = 38, 22
    libc = ctypes.CDLL(None)
    assert libc.prctl(no_new_privileges, 1, 0, 0, 0) == 0 and libc.prctl(set_filter, 2, program) == 0
"#;

/// Opening fails, with this reason; then everything does nothing.
const FAILS: &str = r#"
say("open", T.taskd_open(), T.taskd_why().decode())
assert T.taskd_open() < 0 and T.taskd_switches()[0] == 0 and T.taskd_name(b"x", 1) == 0
for i in range(1000):
    T.taskd_end(T.taskd_begin(USER)), T.taskd_mark(USER), T.taskd_end(T.taskd_begin_step(i))
T.taskd_hooked(STEP), T.taskd_except(STEP, b"x", 1)
say("done")
signal.pause()
"#;

/// Why a rank cannot record after it has done this.
async fn why_after(what: &str) -> String {
    let rank = Rank::python(&format!("{NO_MEMORY}{what}{FAILS}"), &[]).await;
    rank.printed("done").await;
    let output = rank.printed("open -1").await;
    rank.end().await;
    output
}

#[tokio::test]
async fn without_memory_a_rank_goes_on_without_a_recorder() {
    let output = why_after("leave_no_memory()").await;
    assert_eq!(output, "no recorder: No space left on device (os error 28); training continues without it");
}

#[tokio::test]
async fn memory_that_is_none_is_refused_in_a_sentence() {
    let output = why_after("os.environ['TASKD_LIFELINE'] = '/nonexistent'").await;
    let why = "/nonexistent, which TASKD_LIFELINE names: No such file or directory (os error 2)";
    assert_eq!(output, format!("no recorder: {why}; training continues without it"));
    let output = why_after("os.environ['TASKD_LIFELINE'] = '/dev/zero'").await;
    assert!(output.contains("does not begin with a lifeline page of version 1"), "{output}");
    let output = why_after("os.environ['TASKD_LIFELINE'] = sys.executable").await;
    assert!(output.starts_with("no recorder: "), "{output}");
    let on_disk = "
import tempfile
file = tempfile.NamedTemporaryFile()
with open(os.environ['TASKD_LIFELINE'], 'rb') as memory:
    file.write(memory.read()), file.flush()
os.environ['TASKD_LIFELINE'] = file.name";
    let output = why_after(on_disk).await;
    assert!(output.starts_with("no recorder: its length is not sealed"), "{output}");
}

const OTHER_THREADS: &str = r#"
T.taskd_open()
T.taskd_mark(named(USER, b"before"))
say("open")
while not os.path.exists(os.environ["GO"]):
    time.sleep(0.001)
break_something()
other = threading.Thread(target=lambda: [T.taskd_mark(USER) for i in range(5)])
other.start(), other.join()
T.taskd_mark(named(USER, b"after"))
say("done")
signal.pause()
"#;

/// A rank that breaks something between its records; what was lost of five that another thread has made.
async fn other_thread_after(breaks: &str, from_outside: impl AsyncFnOnce(&Rank)) {
    let dir = tempfile::tempdir().unwrap();
    let go = dir.path().join("go");
    let program = format!("{NO_MEMORY}def break_something():\n    {breaks}\n{OTHER_THREADS}");
    let rank = Rank::python(&program, &[("GO", go.to_str().unwrap())]).await;
    rank.printed("open").await;
    from_outside(&rank).await;
    std::fs::write(&go, "").unwrap();
    rank.printed("done").await;
    let mut recording = rank.recording().await;
    let others = usize::from(breaks == "pass") * 5;
    let mut expected = vec!["mark User(0) \"before\""];
    expected.extend(std::iter::repeat_n("mark User(0)", others));
    expected.push("mark User(0) \"after\"");
    assert_eq!(records_of(&mut recording, &mut Vec::new()), expected, "{breaks}");
    let losses = if others > 0 { Losses::default() } else { Losses { refused: 5, threads: 1, ..Losses::default() } };
    assert_eq!(recording.losses(), losses, "{breaks}");
    rank.end().await;
}

#[tokio::test]
async fn a_thread_for_which_there_is_no_memory_is_counted_and_the_others_go_on() {
    other_thread_after("leave_no_memory()", async |_| ()).await;
    // Its descriptor is gone as well if the program closes what it has not opened, and may mean another file.
    other_thread_after("os.closerange(3, 100); open('/etc/passwd')", async |_| ()).await;
}

#[tokio::test]
async fn recorder_memory_cannot_be_resized_from_outside() {
    let cut = async |rank: &Rank| {
        let memory = rank.memory().await;
        for length in [0, 4096, 1 << 30] {
            assert_eq!(Errno::from_io_error(&memory.set_len(length).unwrap_err()), Some(Errno::PERM));
        }
    };
    other_thread_after("pass", cut).await;
}

#[test]
fn a_library_without_a_writable_cache_is_held_in_memory() {
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", "faults::recorder_memory_cannot_be_resized_from_outside", "--nocapture"]);
    let again = again.env("XDG_CACHE_HOME", "/proc").output().unwrap();
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
    assert!(String::from_utf8_lossy(&again.stdout).contains("1 passed"));
}
