use super::*;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::cell::Cell;
use std::fs::{self, File};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// More than any process id: `PID_MAX_LIMIT` of the kernel is 4,194,304.
const NO_PROCESS: &str = "taskd-hosts-4194305-0-h1";
/// Time after which a packet counts as lost.
const LOST_AFTER: Duration = Duration::from_millis(300);
/// Time within which something happens on a loaded machine.
const WITHIN: Duration = Duration::from_secs(20);

fn hosts(test: &str, count: usize) -> Option<Hosts> {
    Hosts::create(count, 1.0).inspect_err(|why| eprintln!("{test} is skipped: {why}")).ok()
}

/// Returns a socket on a host.
fn socket(host: &Host) -> UdpSocket {
    let (namespace, address) = (File::open(format!("/run/netns/{}", host.namespace())).unwrap(), host.address());
    let bind = move || {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap(); // of this thread only
        UdpSocket::bind((address, 0)).unwrap()
    };
    let socket = std::thread::spawn(bind).join().unwrap();
    socket.set_read_timeout(Some(LOST_AFTER)).unwrap();
    socket
}

#[test]
fn hosts_reach_each_other_until_a_direction_or_a_link_is_cut() {
    let Some(hosts) = hosts("hosts_reach_each_other", 2) else { return };
    let [one, other] = hosts.all() else { panic!("two hosts") };
    let ends = (socket(one), socket(other));
    let number = Cell::new(0_u8);
    // Returns true for the number that was sent last only: an earlier one may be late.
    let arrives = |from: &UdpSocket, to: &UdpSocket| {
        number.set(number.get().wrapping_add(1));
        let (at, mut read): (SocketAddr, _) = (to.local_addr().unwrap(), [0]);
        let is_sent = from.send_to(&[number.get()], at).is_ok();
        is_sent
            && std::iter::repeat_with(|| to.recv(&mut read).map(|_| read[0]))
                .map_while(Result::ok)
                .any(|n| n == number.get())
    };
    let directions = || (arrives(&ends.0, &ends.1), arrives(&ends.1, &ends.0));
    // On a loaded machine, or before a neighbour's address is known, a packet may need longer than `LOST_AFTER`.
    let comes_to = |expected: (bool, bool)| {
        let until = Instant::now() + WITHIN;
        while directions() != expected {
            assert!(Instant::now() < until, "{expected:?}");
        }
    };
    comes_to((true, true));
    one.cut_to(other).unwrap();
    comes_to((false, true));
    assert!(!directions().0, "one direction is cut");
    one.heal_to(other).unwrap();
    comes_to((true, true));
    other.set_link(false).unwrap();
    assert_eq!(directions(), (false, false));
    other.set_link(true).unwrap();
    comes_to((true, true));
}

#[test]
fn a_host_has_its_own_files_processes_and_processors() {
    let Some(hosts) = hosts("a_host_has_its_own_files", 2) else { return };
    let [one, other] = hosts.all() else { panic!("two hosts") };
    let (own, shared) = (one.dir().join("file"), hosts.shared().join("file"));
    let write = |path: &Path| one.command("touch").arg(path).status().unwrap().success();
    assert!(write(&own) && write(&shared) && shared.exists() && !own.exists());
    let sees = |host: &Host, path: &Path| host.command("test").arg("-e").arg(path).status().unwrap().success();
    assert!(sees(one, &own) && !sees(other, &own) && sees(other, &shared));
    assert!(one.from_outside(&own).exists());

    let groups = one.command("cat").arg("/proc/self/cgroup").output().unwrap().stdout;
    let is_limited = String::from_utf8_lossy(&groups).contains(one.namespace());
    assert_eq!(is_limited, hosts.notes().is_empty(), "{:?}", hosts.notes());

    let mut child = one.command("sleep").arg("1000").spawn().unwrap();
    let pid = i32::try_from(child.id()).unwrap();
    let until = Instant::now() + WITHIN;
    while one.pids().unwrap() != [pid] {
        assert!(Instant::now() < until, "it runs on the host");
    }
    assert!(other.pids().unwrap().is_empty() && network_of(pid).as_deref() == Some(one.network()));
    assert_eq!(one.kill_all().unwrap(), 1);
    assert!(!child.wait().unwrap().success());
}

#[test]
fn nothing_is_left_of_dropped_hosts_and_of_killed_programs() {
    let Some(first) = hosts("nothing_is_left", 1) else { return };
    let (namespace, root) = (first.all()[0].namespace().to_owned(), first.names.root());
    let names = || fs::read_dir("/run/netns").unwrap().map(|one| one.unwrap().file_name().into_string().unwrap());
    assert!(names().any(|name| name == namespace) && root.exists());
    drop(first);
    assert!(!names().any(|name| name == namespace) && !root.exists());

    ip(&["netns", "add", NO_PROCESS]).unwrap();
    let second = hosts("nothing_is_left", 1).unwrap();
    assert!(!names().any(|name| name == NO_PROCESS) && names().any(|name| name == second.all()[0].namespace()));
}
