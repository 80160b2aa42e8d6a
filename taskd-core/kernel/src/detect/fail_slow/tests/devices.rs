//! Jobs on devices: the processes return early, or wait for their devices, so that their steps look equal.

use super::*;
use crate::trace::DeviceTimes;

/// How the processes take part.
#[derive(Clone, Copy, Debug)]
enum Host {
    /// They launch the work and return.
    ReturnsEarly,
    /// They wait for the device at the end of the step.
    WaitsForDevice,
}

/// Reports `count` steps of devices that compute for `compute_ms`; `reports` decides if a rank reports its device.
fn steps(
    play: &mut Play,
    host: Host,
    count: u32,
    compute_ms: &[u64],
    reports: impl Fn(u32, &mut DeviceTimes) -> bool,
) -> Vec<Finding> {
    let longest = compute_ms.iter().copied().max().unwrap_or_default();
    let mut found = Vec::new();
    for _ in 0..count {
        play.step += 1;
        play.scene.pass(longest + 15);
        for (rank, compute) in (0..).zip(compute_ms) {
            let noise = (play.step * 7 + u64::from(rank) * 13) % 11 * MS / 5;
            let wall = (longest + 15) * MS;
            let (compute_ns, idle_ns) = (compute * MS + noise, 5 * MS);
            let wait_ns = wall - compute_ns - idle_ns;
            let mut device = DeviceTimes {
                step: play.step,
                wall_ns: wall,
                compute_ns,
                communication_ns: wait_ns + 30 * MS, // most of it beside kernels
                wait_ns,
                copy_ns: 0,
                idle_ns,
                spans: 900,
                lost: 0,
            };
            let wall_ns = match host {
                Host::ReturnsEarly => 12 * MS + noise / 4,
                Host::WaitsForDevice => wall,
            };
            let times = StepTimes {
                step: play.step,
                wall_ns,
                cpu_ns: Some(11 * MS),
                communications: 2,
                ..StepTimes::default()
            };
            if reports(rank, &mut device) {
                found.extend(play.scene.tell(&mut play.detector, rank, Signal::DeviceStep(Box::new(device))));
            }
            found.extend(play.scene.tell(&mut play.detector, rank, Signal::Step(Box::new(times))));
        }
    }
    found
}

fn all(_: u32, _: &mut DeviceTimes) -> bool {
    true
}

#[test]
fn a_slow_device_is_blamed_whether_the_processes_return_early_or_wait() {
    for host in [Host::ReturnsEarly, Host::WaitsForDevice] {
        let mut play = Play::new(Scene::of(4));
        assert!(steps(&mut play, host, 60, &[100; 4], all).is_empty());
        let found = steps(&mut play, host, 30, &[100, 100, 120, 100], all);
        let fault = fault(&found);
        assert_eq!(fault.primary_suspect().domain, rank_domain(2), "{host:?}");
        assert_eq!(fault.primary_suspect().confidence_permille, 900, "its peers wait for it: {:?}", fault.evidence);
        assert!(fault.evidence.iter().any(|clue| clue.what == "fail_slow_devices"), "{:?}", fault.evidence);
        assert!(fault.evidence.iter().all(|clue| clue.what != "fail_slow_starved"), "{:?}", fault.evidence);
        assert_eq!(steps(&mut play, host, 30, &[100; 4], all), [Finding::Clear(rank_domain(2), FaultClass::Slow)]);
    }
}

#[test]
fn without_figures_of_devices_the_slow_device_is_not_visible() {
    let mut play = Play::new(Scene::of(4));
    let none = |_, _: &mut DeviceTimes| false;
    steps(&mut play, Host::WaitsForDevice, 60, &[100; 4], none);
    let found = steps(&mut play, Host::WaitsForDevice, 60, &[100, 100, 120, 100], none);
    assert!(!found.iter().any(|finding| is_blame(&finding)), "{found:?}");
}

#[test]
fn a_rank_without_spans_among_ranks_with_spans_is_not_blamed() {
    let mut play = Play::new(Scene::of(4));
    let but_one = |rank, _: &mut DeviceTimes| rank != 1;
    assert!(steps(&mut play, Host::WaitsForDevice, 100, &[100; 4], but_one).is_empty());
    let saved = play.detector.snapshot().unwrap_or_default();
    play.detector = FailSlowDetector::new();
    assert_eq!(play.detector.restore(&saved), Ok(()), "also with a rank of which nothing is known");
    let found = steps(&mut play, Host::WaitsForDevice, 30, &[100, 100, 100, 130], but_one);
    assert_eq!(fault(&found).primary_suspect().domain, rank_domain(3));

    // One loses its spans later: to the probe, or because its figures are incomplete.
    for is_lossy in [false, true] {
        let mut play = Play::new(Scene::of(4));
        steps(&mut play, Host::ReturnsEarly, 60, &[100; 4], all);
        let loses = |rank, device: &mut DeviceTimes| {
            device.lost = u64::from(rank == 1);
            rank != 1 || is_lossy
        };
        assert!(steps(&mut play, Host::ReturnsEarly, 100, &[100; 4], loses).is_empty());
    }
}

#[test]
fn a_trace_that_is_switched_on_and_off_blames_no_rank() {
    let mut play = Play::new(Scene::of(4));
    let none = |_, _: &mut DeviceTimes| false;
    steps(&mut play, Host::ReturnsEarly, 60, &[100; 4], none);
    for length in [3, 7, 40, 5, 100] {
        let found = [
            steps(&mut play, Host::ReturnsEarly, length, &[100; 4], all),
            steps(&mut play, Host::ReturnsEarly, length, &[100; 4], none),
        ];
        assert!(found.concat().is_empty(), "{found:?}");
    }
    // It is blamed while its device is seen, and cleared when the devices are not compared any more.
    steps(&mut play, Host::ReturnsEarly, 60, &[100; 4], all);
    let found = steps(&mut play, Host::ReturnsEarly, 30, &[130, 100, 100, 100], all);
    assert_eq!(fault(&found).primary_suspect().domain, rank_domain(0));
    let found = steps(&mut play, Host::ReturnsEarly, 30, &[130, 100, 100, 100], none);
    assert_eq!(found, [Finding::Clear(rank_domain(0), FaultClass::Slow)]);
}

#[test]
fn all_devices_slower_is_no_blame() {
    let mut play = Play::new(Scene::of(4));
    steps(&mut play, Host::WaitsForDevice, 60, &[100; 4], all);
    let found = steps(&mut play, Host::WaitsForDevice, 60, &[130; 4], all);
    assert!(!found.iter().any(|finding| is_blame(&finding)), "{found:?}");
    assert!(found.iter().any(|finding| matches!(finding, Finding::Note(Domain::Job, _))), "{found:?}");
}
