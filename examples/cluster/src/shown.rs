//! What the manager prints about its hosts.

use std::path::Path;
use std::time::Duration;
use taskd_core::cluster::{HostStatus, Manager, RecordsRequest};
use tokio::time::{Instant, sleep};

/// Time to wait for the clocks of hosts that have just registered: some requests for a lease.
const MEASURED_WITHIN: Duration = Duration::from_secs(1);
/// Hosts of which a line is printed each; a job of more prints the extremes only.
const LINES_MAX: usize = 16;

/// Waits until the clocks of all hosts are measured, for some time, and returns the hosts.
pub(crate) async fn measured(manager: &Manager) -> Vec<HostStatus> {
    let until = Instant::now() + MEASURED_WITHIN;
    loop {
        let hosts = manager.hosts();
        if hosts.iter().all(|host| host.clock.is_some()) || Instant::now() >= until {
            return hosts;
        }
        sleep(Duration::from_millis(20)).await;
    }
}

/// Prints the hosts, and how far the calendar clock of each is ahead of the manager's.
pub(crate) fn hosts(hosts: &[HostStatus]) {
    println!("hosts         {}", hosts.iter().map(|host| host.host.0.to_string()).collect::<Vec<_>>().join(", "));
    let clock = |host: &HostStatus| host.clock.map_or("not measured yet".to_owned(), |clock| clock.to_string());
    if hosts.len() <= LINES_MAX {
        return hosts.iter().for_each(|host| println!("clock         {} {}", host.host.0, clock(host)));
    }
    let mut known: Vec<&HostStatus> = hosts.iter().filter(|host| host.clock.is_some()).collect();
    known.sort_by_key(|host| host.clock.map(|clock| clock.nanos));
    for host in known.first().into_iter().chain(known.last()) {
        println!("clock         {} {}, of {} that are measured", host.host.0, clock(host), known.len());
    }
}

/// Prints how many facts the sources of the hosts have reported.
pub(crate) fn facts(hosts: &[HostStatus]) {
    let sum = |count: fn(&HostStatus) -> u64| hosts.iter().map(count).fold(0, u64::saturating_add);
    println!(
        "facts         {} in {} messages of {} hosts; {} lost, {} errors of sources, {} messages waited",
        sum(|host| host.facts.facts),
        sum(|host| host.facts.messages),
        hosts.len(),
        sum(|host| host.facts.lost),
        sum(|host| host.facts.failed),
        sum(|host| host.facts.waited),
    );
}

/// Copies the records of all hosts to `dir/HOST`, and prints what came.
pub(crate) async fn fetch_records(manager: &Manager, dir: &Path) {
    for HostStatus { host, .. } in manager.hosts() {
        let into = dir.join(host.0.as_str());
        match manager.fetch_records(&host, &RecordsRequest::default(), &into).await {
            Ok(fetched) => println!(
                "records       {}: {} files with {} bytes in {}; {} files stay there",
                host.0,
                fetched.files,
                fetched.bytes,
                into.display(),
                fetched.left_out
            ),
            Err(error) => println!("records       {}: {error}", host.0),
        }
    }
}
