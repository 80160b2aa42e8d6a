//! What comes out of a process in which a stand-in makes up what an NPU does.

use super::standin_rank::{OLDER, PATIENCE, STAND_IN, StandInRank};
use std::path::Path;
use std::time::Instant;
use taskd_core::trace::recorder::{Event, Kind, Switches};

/// Waits until something that the process says of itself is so.
fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::yield_now();
    }
}

const EVERYTHING: &str = r#"
until(lambda: is_enabled(1) and is_enabled(9))
step = start_on(b"step 12", b"default", 3, 7)
load = start(b"dataloader", b"default"); end(load)
save = start(b"save_checkpoint", b"default"); end(save)
forward = start_on(b"forward", b"default", 3, 7); end_on(forward, 3, 7)
new = start_on(b'{"streamId":"7","count":"1024","dataType":"bfp16","opName":"HcclAllReduce","groupName":"group_name_12"}', b"communication", 3, 8)
old = start(b"comm:HcclSend,group_name_3,fp32,16", b"communication")
end(old); end_on(new, 3, 8)
mark(b"epoch 1", b"default"); mark_on(b"here", b"mine", 3, 7)
own = start(b"optimizer", b"mine"); end(own)
end_on(step, 3, 7)
api(b"aclrtLaunchKernel", 900, 55); kernel(b"MatMul", 3, 7, 5000, 55)
copy(0, 4096, 3, 7, 800, 56); copy(1, 64, 3, 7, 20, 57)
communication(b"hcom_allReduce__1_0", b"group_name_12", 11, 1024, 3, 8, 7000)
end(99999)
say("done", from_callbacks(), dropped())
wait()
say("left", from_callbacks())
"#;

#[test]
fn everything_that_the_stand_in_makes_up_is_recorded() {
    let mut rank = StandInRank::start(EVERYTHING);
    assert_eq!(rank.said(), "done 0 0");
    rank.go_on();
    assert_eq!(rank.said(), "left 0", "no call of mspti from a callback");
    rank.end();
    let mut told = rank.told();
    told.sort();
    let mut expected = [
        r#"span Step "" step 12 of a thread"#,
        r#"span Step "" on 3/7 for 12 with 0 bytes"#,
        r#"span DataLoader "" of a thread"#,
        r#"span SaveCheckpoint "" of a thread"#,
        r#"span Forward "" of a thread"#,
        r#"span Forward "" on 3/7 for 0 with 0 bytes"#,
        r#"span Communication "HcclAllReduce" all_reduce of 1024 bf16 in 2048 bytes in "group_name_12" peer None of a thread"#,
        r#"span Communication "HcclAllReduce" all_reduce of bf16 in "group_name_12" on 3/8 for 0 with 2048 bytes"#,
        r#"span Communication "HcclSend" send of 16 f32 in 64 bytes in "group_name_3" peer None of a thread"#,
        r#"mark Marker "epoch 1" of a thread"#,
        r#"mark Marker "here" of a thread"#,
        r#"span Marker "here" on 3/7 for 0 with 0 bytes"#,
        r#"span Marker "optimizer" of a thread"#,
        r#"span Api "aclrtLaunchKernel" on -/- for 55 with 0 bytes of a thread"#,
        r#"span Kernel "MatMul" on 3/7 for 55 with 0 bytes"#,
        r#"span Copy "memcpy host to device" on 3/7 for 56 with 4096 bytes"#,
        r#"span Copy "memset" on 3/7 for 57 with 64 bytes"#,
        r#"span Communication "hcom_allReduce__1_0" all_reduce of bf16 in "group_name_12" on 3/8 for 0 with 2048 bytes"#,
    ];
    expected.sort_unstable();
    assert_eq!(told, expected);
    let kernel = rank.records.iter().find(|record| record.kind == Kind::Kernel).unwrap();
    assert_eq!(kernel.event, Event::Span { nanos: 5000 });
    assert!(rank.records.iter().all(|record| record.unix_nanos.abs_diff(kernel.unix_nanos) < 60_000_000_000));
    let figures = ["stand_in", "unjoined", "cut_buffers", "refused_requests"];
    assert_eq!(figures.map(|name| rank.figure(&format!("mspti.{name}"))), [Some(1.0), Some(1.0), Some(0.0), Some(0.0)]);
    assert_eq!((rank.lost, rank.exceptions()), (0, vec![]));
}

#[test]
fn kinds_are_switched_while_the_program_runs() {
    let program = r#"
def state():
    return [k for k in range(1, 10) if is_enabled(k)], is_subscribed(), domain_is_on(b"default"), domain_is_on(b"communication")
for expected in [([], 0, 0, 0), ([2], 1, 0, 0), ([1, 3], 1, 1, 0), ([1], 1, 0, 1), ([1, 2, 6, 7, 9], 1, 0, 1), ([], 0, 0, 0)]:
    until(lambda: state() == expected)
    kernel(b"k", 0, 0, 1, 1); end(start(b"dataloader", b"default")); end(start(b"comm:HcclSend,g,fp32,1", b"communication"))
    say("as", *expected[0])
    wait()
"#;
    let mut rank = StandInRank::with(program, "off", &STAND_IN, &[]);
    let none = Switches::NONE;
    let rounds = [
        ("as", none.with(Kind::Kernel), "[]"),
        ("as 2", none.with(Kind::Api).with(Kind::DataLoader), r#"["span Kernel \"k\" on 0/0 for 1 with 0 bytes"]"#),
        ("as 1 3", none.with(Kind::Communication), r#"["span DataLoader \"\" of a thread"]"#),
        (
            "as 1",
            none.with(Kind::Communication).with(Kind::Kernel).with(Kind::Copy),
            r#"["span Communication \"HcclSend\" send of 1 f32 in 4 bytes in \"g\" peer None of a thread"]"#,
        ),
    ];
    for (said, next, told) in rounds {
        assert_eq!(rank.said(), said);
        rank.take_until(told, |rank| format!("{:?}", rank.told()) == told);
        rank.records.clear();
        rank.switch(next);
        rank.go_on();
    }
    assert_eq!(rank.said(), "as 1 2 6 7 9");
    rank.switch(none);
    rank.go_on();
    assert_eq!(rank.said(), "as");
    rank.go_on();
    rank.end();
}

#[test]
fn another_profiler_is_an_exception_until_it_lets_go() {
    let program = r#"
handle = ctypes.c_void_p()
assert S.msptiSubscribe(ctypes.byref(handle), None, None) == 0
say("taken"); wait()
S.msptiUnsubscribe(handle)
until(lambda: is_enabled(2))
kernel(b"k", 0, 0, 1, 1)
"#;
    let mut rank = StandInRank::with(program, "off", &STAND_IN, &[]);
    assert_eq!(rank.said(), "taken");
    rank.switch(Switches::NONE.with(Kind::Kernel));
    eventually("it is told", || rank.exceptions().len() == 4);
    assert!(rank.exceptions().iter().all(|(_, why)| why == "mspti: another profiler is active (result 2)"));
    rank.go_on();
    rank.end();
    assert_eq!(rank.told(), [r#"span Kernel "k" on 0/0 for 1 with 0 bytes"#]);
    assert_eq!(rank.exceptions(), []);
}

#[test]
fn kinds_that_need_ld_preload_are_exceptions_without_it() {
    let probe = taskd_hw_ascend::mspti::PROBE.unpack().unwrap();
    let preload = [("LD_PRELOAD", probe.to_str().unwrap())];
    let program = "until(lambda: is_enabled(2)); kernel(b'k', 0, 0, 1, 1); say('done'); wait()";
    let mut rank = StandInRank::with(program, "kernel,copy", &STAND_IN, &preload);
    assert_eq!(rank.said(), "done");
    let why = "mspti: LD_PRELOAD does not name libmspti.so (result 6)".to_owned();
    eventually("it is told", || rank.exceptions() == [(Kind::Copy, why.clone())]);
    rank.go_on();
    rank.end();
    assert_eq!(rank.told(), [r#"span Kernel "k" on 0/0 for 1 with 0 bytes"#]);
}

#[test]
fn missing_library_is_reported_as_the_exception_of_each_kind() {
    let probe = taskd_hw_ascend::mspti::PROBE.unpack().unwrap();
    let env = [("LD_PRELOAD", probe.to_str().unwrap()), ("TASKD_MSPTI_LIB", "/nowhere/libmspti.so")];
    let mut rank = StandInRank::with("", "all", Path::new("/nowhere"), &env);
    let _ = rank.said(); // the stand-in's functions are not there either: Python says so, and ends
    eventually("it is told", || rank.exceptions().len() == 4);
    let why = &rank.exceptions()[0].1;
    assert!(why.starts_with("there is no libmspti.so (looked for: /nowhere/libmspti.so): install CANN"), "{why}");
    rank.take();
    assert!(
        rank.told()[0].starts_with(r#"mark Marker "mspti is unavailable: there is no libmspti.so"#),
        "{:?}",
        rank.told()
    );
}

#[test]
fn a_library_without_the_newer_functions_will_do() {
    let program = "until(lambda: is_enabled(2)); kernel(b'k', 0, 0, 1, 1); say('done'); wait()";
    let mut rank = StandInRank::with(program, "kernel", &OLDER, &[]);
    assert_eq!(rank.said(), "done");
    rank.take_until("flushed by the probe", |rank| rank.told() == [r#"span Kernel "k" on 0/0 for 1 with 0 bytes"#]);
    rank.go_on();
    rank.end();
}

#[test]
fn a_record_that_is_not_known_costs_its_buffer_and_is_counted() {
    let program = r#"
until(lambda: is_enabled(2))
kernel(b"before", 0, 0, 1, 1); unknown(); kernel(b"after", 0, 0, 1, 1)
S.msptiActivityFlushAll(1)
kernel(b"next", 0, 0, 1, 1)
"#;
    let mut rank = StandInRank::start(program);
    rank.end();
    let kernel = |name| format!(r#"span Kernel "{name}" on 0/0 for 1 with 0 bytes"#);
    assert_eq!(rank.told(), [kernel("before"), kernel("next")]);
    assert_eq!((rank.figure("mspti.cut_buffers"), rank.figure("mspti.cut_bytes")), (Some(1.0), Some(112.0)));
}

#[test]
fn forked_process_records_nothing() {
    let program = r#"
until(lambda: is_enabled(1))
end(start(b"dataloader", b"default"))
child = os.fork()
if child == 0:
    ranges(b"of the child", b"default", 100000, 0)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
end(start(b"forward", b"default"))
"#;
    let mut rank = StandInRank::start(program);
    rank.end();
    let mut told = rank.told();
    told.sort();
    assert_eq!(told, [r#"span DataLoader "" of a thread"#, r#"span Forward "" of a thread"#]);
}

#[test]
fn records_at_a_sustainable_rate_are_not_lost() {
    let program = r#"
until(lambda: is_enabled(1))
say("ready"); wait()
ranges(b"forward", b"default", 100000, 400000)
say("done", recorded(), dropped(), from_callbacks())
"#;
    let mut rank = StandInRank::start(program);
    assert_eq!(rank.said(), "ready");
    rank.go_on();
    let spans = |rank: &StandInRank| rank.records.iter().filter(|record| record.kind == Kind::Forward).count();
    rank.take_until("all of them", |rank| spans(rank) == 100_000);
    assert_eq!(rank.said(), "done 200000 0 0");
    rank.end();
    assert_eq!((spans(&rank), rank.lost), (100_000, 0));
}

#[test]
fn unread_records_beyond_the_bound_are_dropped_and_counted() {
    let program = r#"
until(lambda: is_enabled(1))
ranges(b"forward", b"default", 2300000, 0)
say("full", min(1, dropped()), from_callbacks()); wait()
until(lambda: S.msptiActivityFlushAll(1) == 0)
"#;
    let mut rank = StandInRank::start(program);
    assert_eq!(rank.said(), "full 1 0");
    rank.take_until("what 100 buffers hold", |rank| {
        let figure = |name| rank.figure(name).unwrap_or(0.0);
        figure("mspti.refused_requests") > 0.0 && figure("mspti.brought") >= 1_400_000.0
    });
    rank.go_on();
    rank.end();
    let spans = rank.records.iter().filter(|record| record.kind == Kind::Forward).count();
    assert!((1_400_000..2_300_000).contains(&spans), "what 100 buffers hold came through: {spans}");
    assert_eq!(rank.lost, 0, "the recorder itself has lost nothing");
}
