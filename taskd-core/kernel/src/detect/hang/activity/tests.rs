use super::*;
use crate::trace::ProbeResult;

fn at(ms: u64) -> JobTime {
    JobTime::START + Duration::from_millis(ms)
}

fn seen(words: &str) -> Sighting {
    Sighting::of(&Found::of(&ProbeResult::Text(words.to_owned())))
}

fn evidence(activity: &Activity) -> (String, String) {
    activity.evidence(Rank(1)).map(|clue| (clue.what.to_string(), clue.text)).unwrap_or_default()
}

#[test]
fn a_process_that_uses_a_processor_is_busy_even_if_its_main_thread_sleeps() {
    let mut activity = Activity::new(seen("state=S wchan=futex_do_wait cpu_ms=1000"), at(0));
    activity.add(seen("state=S wchan=futex_do_wait cpu_ms=1250"), at(500));
    let text = "rank 1 is busy: its process has used 0.25 s of processor time in 0.50 s";
    assert_eq!(evidence(&activity), ("hang_busy".into(), text.into()));
    assert_eq!(Activity::new(seen("state=R"), at(0)).doing, Doing::Busy);
    assert_eq!(Activity::new(seen("state=D runnable=1"), at(0)).doing, Doing::Busy);
}

#[test]
fn a_blocked_process_is_blocked_since_it_last_computed() {
    let disk = |cpu: u64| seen(&format!("state=D wchan=nfs_wait_bit_killable cpu_ms={cpu}"));
    let mut activity = Activity::new(disk(1000), at(0));
    activity.add(disk(1010), at(2_000));
    assert_eq!(activity.blocked_for(), Duration::from_secs(2), "a heartbeat thread needs little");
    let text = "rank 1 is blocked: its process waits for a disk, a file server or a driver (state D, in \
                nfs_wait_bit_killable), and has computed nothing for 2.0 s";
    assert_eq!(evidence(&activity), ("hang_blocked".into(), text.into()));
    activity.add(disk(1510), at(4_000));
    assert_eq!(activity.blocked_for(), Duration::ZERO, "it has computed");
    activity.add(disk(1510), at(6_000));
    activity.add(disk(1510), at(7_000));
    assert_eq!(activity.blocked_for(), Duration::from_secs(1));
}

#[test]
fn a_sleeping_process_is_stuck_alone_with_the_thing_that_it_waits_for() {
    let mut activity = Activity::new(seen("state=S wchan=futex_do_wait cpu_ms=7"), at(0));
    activity.add(seen("state=S wchan=futex_do_wait cpu_ms=7"), at(1_500));
    let text = "rank 1 is stuck alone: its main thread waits for a lock or another thread (state S, in futex_do_wait), and \
                its process has computed nothing for 1.5 s";
    assert_eq!(evidence(&activity), ("hang_sleeps".into(), text.into()));
    assert_eq!(activity.blocked_for(), Duration::ZERO);
    assert_eq!(Activity::new(seen(""), at(0)).evidence(Rank(1)), None);
}
