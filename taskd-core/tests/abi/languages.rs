//! The library in a program of C, and as a module of every Python that is here.

use crate::support::*;
use std::path::{Path, PathBuf};
use std::process::Command;
use taskd_core::trace::recorder::{Kind, Losses, Switches};
use taskd_core::worker::library;

const PROGRAM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "taskd.h"

int main(void) {
  if (taskd_open() != 1) { printf("failed %s\n", taskd_why()); return 1; }
  uint64_t named = TASKD_NAMED(TASKD_USER, taskd_name("of C", strlen("of C")));
  if (!(*taskd_switches() >> TASKD_USER & 1)) return 2;
  uint64_t range = taskd_begin(named), step = taskd_begin_step(1);
  taskd_communication what = {TASKD_SEND, TASKD_U8, 0, 1, 5, 5, UINT64_MAX};
  taskd_end(taskd_begin_communication(0, &what));
  taskd_end(step), taskd_end(range);
  taskd_mark(named), taskd_counter(named, -1.5);
  taskd_hooked(TASKD_FORWARD), taskd_except(TASKD_FORWARD, "why", 3), taskd_except(TASKD_FORWARD, "", 0);
  taskd_record two[] = {
    {.unix_nanos = 1795305600000000000, .nanos = 250, .kind = TASKD_KERNEL, .name = taskd_name("matmul", 6), .event = TASKD_SPAN,
     .form = TASKD_OF_A_DEVICE, .device = 3, .stream = 7, .number = 99},
    {.value = 1.25, .kind = TASKD_USER, .event = TASKD_FIGURE, .peer = UINT32_MAX},
    {.kind = 77, .event = TASKD_SPAN}, /* no record of this version */
  };
  if (taskd_import(two, 3) != 3 || taskd_import(NULL, 1) != 0) return 3;
  printf("memory %s\ndone\n", getenv("TASKD_LIFELINE")), fflush(stdout);
  pause();
  return 0;
}
"#;

#[tokio::test]
async fn a_program_of_c_records_by_the_header() {
    let dir = tempfile::tempdir().unwrap();
    let (source, program) = (dir.path().join("main.c"), dir.path().join("main"));
    std::fs::write(&source, PROGRAM).unwrap();
    let mut cc = Command::new("cc"); // what cargo links with
    cc.args(["-std=c99", "-D_DEFAULT_SOURCE", "-Wall", "-Wextra", "-pedantic", "-Werror", "-I"]);
    cc.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("runtime/include")).arg(&source);
    std::os::unix::fs::symlink(library::unpack().unwrap(), dir.path().join("libtaskd.so")).unwrap();
    assert!(cc.arg("-L").arg(dir.path()).args(["-ltaskd", "-o"]).arg(&program).status().unwrap().success());
    let found = [("LD_LIBRARY_PATH", dir.path().to_str().unwrap())];
    let rank = Rank::start(&[program.to_str().unwrap()], &found).await;
    rank.printed("done").await;
    let mut recording = rank.recording().await;
    let expected = [
        "begin 0 User(0) \"of C\"",
        "begin 1 Step number 1",
        "begin 2 Communication Send of 5 U8 in 5 bytes in none, peer Some(1), None",
        "end 2 Communication",
        "end 1 Step number 1 with its time",
        "end 0 User(0)",
        "mark User(0) \"of C\"",
        "counter -1.5 User(0) \"of C\"",
        "span of 250 ns Kernel \"matmul\" DeviceWork { device: 3, stream: 7, correlation: 99, bytes: 0 } of thread 0",
    ];
    let unordered = ["counter 1.25 User(0) of thread 0", "mark User(47) of thread 0"]; // their times are unknown
    let expected: Vec<&str> = unordered.into_iter().chain(expected).collect();
    assert_eq!(records_of(&mut recording, &mut Vec::new()), expected);
    assert_eq!((recording.hooked(), recording.exceptions()), (Switches::NONE.with(Kind::Forward), vec![]));
    rank.end().await;
}

const MODULE: &str = r#"
import ctypes, os, signal, sys
from importlib import machinery, util
loader = machinery.ExtensionFileLoader("_taskd", os.environ["TASKD_LIB"])
taskd = util.module_from_spec(util.spec_from_loader("_taskd", loader))
loader.exec_module(taskd)
assert (taskd.is_on(16), taskd.begin(16), taskd.name("x")) == (False, 0, 0), "nothing is open"
assert (taskd.open(), taskd.why()) == (1, "")
assert taskd.is_on(16) is True and taskd.is_on(15) is False
assert ctypes.c_uint64.from_address(taskd.switches_address()).value == 2**64 - 1 - (15 << 6), "what devices do is off"
named = 16 | taskd.name("Größe") << 32
assert taskd.name("\udc80") == 0, "it has no UTF-8"
references = sys.getrefcount(None)
for i in range(1000):
    assert taskd.end(0) is None
assert abs(sys.getrefcount(None) - references) < 100
def raises(error, function, *arguments):
    try:
        function(*arguments)
    except error as raised:
        return str(raised)
    raise AssertionError("no %s" % error)
raises(TypeError, taskd.begin, "x"), raises(TypeError, taskd.begin), raises(TypeError, taskd.end, None)
raises(OverflowError, taskd.begin, -1), raises(OverflowError, taskd.begin, 2**64), raises(TypeError, taskd.counter, 16, "x")
assert "number of arguments" in raises(TypeError, taskd.begin_communication, 1, 2)
range_, step = taskd.begin(named), taskd.begin_step(3)
taskd.end(taskd.begin_communication(0, 9, 0, taskd.name("dp:0"), 0xffffffff, 0, 0, 2**64 - 1))
taskd.end(step), taskd.end(range_), taskd.mark(named), taskd.counter(named, 2)
taskd.hooked(2), taskd.except_(5, "another profiler is active"), taskd.except_(4, "x"), taskd.except_(4, "")
sys.stdout.write("memory %s\ndone\n" % os.environ["TASKD_LIFELINE"]), sys.stdout.flush()
signal.pause()
"#;

#[tokio::test]
async fn every_python_records_through_the_module() {
    let pythons: Vec<PathBuf> = (8..=13).filter_map(python).collect();
    let usual = PathBuf::from("python3");
    for python in pythons.iter().chain([&usual]) {
        let rank = Rank::start(&[python.to_str().unwrap(), "-c", MODULE], &[]).await;
        rank.printed("done").await;
        let mut recording = rank.recording().await;
        let expected = [
            "begin 0 User(0) \"Größe\"",
            "begin 1 Step number 3",
            "begin 2 Communication Barrier of 0 Other in 0 bytes in dp:0, peer None, None",
            "end 2 Communication",
            "end 1 Step number 3 with its time",
            "end 0 User(0)",
            "mark User(0) \"Größe\"",
            "counter 2 User(0) \"Größe\"",
        ];
        assert_eq!(records_of(&mut recording, &mut Vec::new()), expected, "{}", python.display());
        let exception = (Kind::Communication, "another profiler is active".to_owned());
        assert_eq!((recording.exceptions(), recording.losses()), (vec![exception], Losses::default()));
        assert_eq!(recording.hooked(), Switches::NONE.with(Kind::DataLoader));
        rank.end().await;
    }
    println!("{} besides python3: {pythons:?}", pythons.len());
}

/// CPython 3.`minor`, where it is on PATH or among pyenv's versions.
fn python(minor: u32) -> Option<PathBuf> {
    let name = format!("python3.{minor}");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let of_pyenv = std::env::home_dir().map(|home| home.join(".pyenv/versions"));
    let versions = of_pyenv.and_then(|versions| std::fs::read_dir(versions).ok()).into_iter().flatten();
    let versions = versions.filter_map(|version| Some(version.ok()?.path().join("bin")));
    let places = std::env::split_paths(&path).filter(|place| !place.ends_with(".pyenv/shims")).chain(versions);
    places.map(|place| place.join(&name)).find(|program| program.is_file())
}
