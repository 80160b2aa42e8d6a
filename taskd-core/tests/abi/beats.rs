//! A heartbeat that continues while the program blocks its interpreter.

use crate::support::*;

const HELD_UP: &str = r#"
libc = ctypes.PyDLL(None)  # keeps the interpreter's lock while it is called
T.taskd_beat.argtypes = [ctypes.c_void_p, u32]
word = u64(0)
assert T.taskd_beat(None, 10) == 0 and T.taskd_beat(ctypes.addressof(word) + 1, 10) == 0
assert T.taskd_beat(ctypes.addressof(word), 10) == 1
first = word.value  # the first beat is written when the call returns
assert abs(first - time.monotonic_ns()) < 5e9, "it is the monotonic clock"
held = 0
while word.value - first < 100e6:  # no other thread runs any Python meanwhile
    libc.usleep(100000)
    held += 1
mask = [line for line in open("/proc/self/task/%d/status" % max(map(int, os.listdir("/proc/self/task")))) if "SigBlk" in line]
say("done", held, mask[0].split()[1])
"#;

#[tokio::test]
async fn the_heartbeat_continues_without_python_and_blocks_signals() {
    let rank = Rank::python(HELD_UP, &[]).await;
    let output = rank.printed("done").await;
    let (held, mask) = output.split_once(' ').unwrap();
    assert!(held.parse::<u32>().unwrap() >= 1, "{output}");
    let blocked = u64::from_str_radix(mask, 16).unwrap();
    assert_eq!(blocked & 0x7fff_fffe, 0x7fff_fffe & !(1 << 8 | 1 << 18), "all but SIGKILL and SIGSTOP: {mask}");
    rank.end().await;
}
