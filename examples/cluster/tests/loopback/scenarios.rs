//! What the jobs must survive.

use crate::etcd::Servers;
use crate::hosts::{Job, PATIENCE, Plan};
use rustix::process::{Pid, Signal, kill_process};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Long, so that a machine with much other work loses no host.
const LEASE: Duration = Duration::from_secs(12);
/// Steps of each rank between two faults.
const STEPS: usize = 20;
/// Time for which etcd is stopped; `TASKD_ETCD_STOPPED_S` sets another.
const STOPPED: Duration = Duration::from_secs(18);

fn voters(job: &Job, hosts: &[&str]) -> Vec<String> {
    let places: Vec<String> = hosts.iter().map(|host| job.place(host)).collect();
    vec!["--voters".into(), places.join(",")]
}

/// The manager's host is lost, its voter is replaced, and the next manager's host is lost, too.
pub(crate) async fn two_hosts_lost() {
    let mut job = Job::new();
    let engine = voters(&job, &["h1", "h2", "h3"]);
    let plan = Plan { engine, ranks: 3, slots: 2, hosts: 4, lease: LEASE, names: &["h1", "h2", "h3", "h4"] };
    job.start(&plan);
    let (first, elections) = job.elected(0).await;
    job.trains(3, STEPS).await;
    a_port_in_use_is_named(&job, &plan).await;

    let lost = Instant::now();
    job.lose(&first);
    let (second, elections) = job.elected(elections).await;
    println!("the host of the manager is lost: {second} is elected {:.1} s later", lost.elapsed().as_secs_f64());
    job.trains(3, STEPS).await;
    println!("all ranks train {:.1} s after the loss", lost.elapsed().as_secs_f64());
    let replaced = "the voter of a lost host is replaced";
    job.until(replaced, || job.read(&second, "err").contains(replaced).then_some(())).await;
    println!("its voter is replaced {:.1} s after the loss", lost.elapsed().as_secs_f64());

    // Without the replacement, one of three voters would be left.
    job.lose(&second);
    job.elected(elections).await;
    job.trains(3, STEPS).await;
    let ended = job.end().await;
    assert!(ended.len() == 2 && ended.values().all(|status| status.success()), "{ended:?}\n{}", job.excerpt());
}

/// A second process at the address of a host ends with one sentence.
async fn a_port_in_use_is_named(job: &Job, plan: &Plan<'_>) {
    let mut twice = job.train("h9", "h4", plan);
    let deadline = Instant::now() + PATIENCE;
    while twice.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline, "a second process listens at the same port");
        sleep(Duration::from_millis(50)).await;
    }
    let error = job.read("h9", "err");
    assert!(error.contains("cannot listen at") && error.contains("choose another port (--listen)"), "{error}");
}

/// Of two hosts, that of the manager is lost: the witness gives the other one a majority.
pub(crate) async fn witness() {
    let mut job = Job::new();
    let mut engine = voters(&job, &["h1", "h2"]);
    engine.extend(["--witness".into(), job.place("w3")]);
    let plan = Plan { engine, ranks: 2, slots: 2, hosts: 2, lease: LEASE, names: &["h1", "h2"] };
    let mut words = vec!["witness".to_owned()];
    words.extend(plan.engine.iter().cloned());
    words.extend(["--dir".into(), job.dir("w3").display().to_string()]);
    let mut witness = job.program("w3", &words);
    job.start(&plan);
    let (first, elections) = job.elected(0).await;
    job.trains(2, STEPS).await;
    let lost = Instant::now();
    job.lose(&first);
    let (second, _) = job.elected(elections).await;
    println!("one host of two is lost: {second} is elected {:.1} s later", lost.elapsed().as_secs_f64());
    job.trains(2, STEPS).await;
    println!("all ranks train {:.1} s after the loss", lost.elapsed().as_secs_f64());
    let ended = job.end().await;
    assert!(ended.values().all(|status| status.success()), "{ended:?}\n{}", job.excerpt());
    assert!(witness.try_wait().unwrap().is_none(), "the witness serves until it is stopped:\n{}", job.excerpt());
    witness.kill().unwrap();
    witness.wait().unwrap();
}

/// etcd does not answer: training goes on, a killed rank is not replaced; then it is.
pub(crate) async fn etcd_stopped() {
    let mut job = Job::new();
    let members = ["e5", "e6", "e7"].map(|member| job.address(member));
    let Some(servers) = Servers::start(&members) else {
        return eprintln!("skipped: this machine has no etcd");
    };
    let candidates: Vec<String> = ["h1", "h2"].iter().map(|host| job.place(host)).collect();
    let engine = vec!["--etcd".into(), servers.uris.join(","), "--candidates".into(), candidates.join(",")];
    job.start(&Plan { engine, ranks: 3, slots: 1, hosts: 3, lease: LEASE, names: &["h1", "h2", "h3"] });
    let (manager, elections) = job.elected(0).await;
    let before = job.trains(3, STEPS).await;
    assert!(job.read(&manager, "out").contains("engine        etcd: the record is in etcd"), "{}", job.excerpt());

    let seconds = std::env::var("TASKD_ETCD_STOPPED_S").ok().and_then(|text| text.parse().ok());
    let stopped = seconds.map_or(STOPPED, Duration::from_secs);
    let since = Instant::now();
    servers.signal(Signal::STOP);
    job.until("decisions are held", || job.read(&manager, "out").contains("decisions     held").then_some(())).await;
    kill_process(before[2].parse().ok().and_then(Pid::from_raw).unwrap(), Signal::KILL).unwrap();
    sleep(stopped.saturating_sub(since.elapsed())).await;
    let during = job.trains(2, STEPS).await;
    assert_eq!(during, before[..2], "etcd is stopped for {stopped:?}, and training is not affected");
    let steps = job.pids(2);
    assert_eq!(steps.last(), before.get(2), "no decision is made: rank 2 is not replaced");

    servers.signal(Signal::CONT);
    let resumed = Instant::now();
    job.until("rank 2 is replaced", || job.pids(2).last().filter(|pid| **pid != before[2]).map(|_| ())).await;
    println!("etcd was stopped for {stopped:?}; rank 2 is replaced {:.1} s later", resumed.elapsed().as_secs_f64());
    job.trains(3, STEPS).await; // a plain script has no state to keep: its recovery starts all ranks again

    let (manager, elections) = job.manager().filter(|(_, number)| *number >= elections).unwrap();
    let lost = Instant::now();
    job.lose(&manager);
    let (second, _) = job.elected(elections).await;
    println!("the manager's host is lost: {second} is elected {:.1} s later", lost.elapsed().as_secs_f64());
}

/// One manager without a standby.
pub(crate) async fn single() {
    let mut job = Job::new();
    let engine = vec!["--single".into(), job.place("h1")];
    job.start(&Plan { engine, ranks: 2, slots: 1, hosts: 2, lease: LEASE, names: &["h1", "h2"] });
    job.trains(2, STEPS).await;
    let line = |host: &str| job.read(host, "out").lines().find(|line| line.starts_with("engine")).map(str::to_owned);
    let lines = [line("h1"), line("h2")].map(Option::unwrap_or_default);
    assert!(lines.iter().all(|line| line.contains("no standby")), "{lines:?}");
    let ended = job.end().await;
    assert!(ended.values().all(|status| status.success()), "{ended:?}\n{}", job.excerpt());
}
