//! Times the decisions about hosts: the next world of 10,000, and the fault domains of 100,000.
//!
//! `cargo run --release -p taskd-cluster --example bench_membership`

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;
use taskd_cluster::membership::{Decision, Health, Host, Next, Policy, State, choose_voters, decide};
use taskd_cluster::topology::Topology;
use taskd_runtime::job::{JobTime, Name, NodeId};

fn main() {
    println!("{:<34} {:>10}", "of 10,000 hosts", "ms");
    world_of_ten_thousand();
    println!("\n{:<34} {:>10}", "of 100,000 hosts", "ms");
    domains_of_a_hundred_thousand();
}

fn host(name: String) -> NodeId {
    NodeId(Name::from(name))
}

fn seconds(seconds: u64) -> JobTime {
    JobTime::from_nanos(seconds * 1_000_000_000)
}

/// Runs `work`, and prints how long it took.
fn timed<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    let result = work();
    println!("{what:<34} {:>10.1}", begin.elapsed().as_secs_f64() * 1e3);
    result
}

fn world_of_ten_thousand() {
    let mut state = State::default();
    let mut text = "levels: zone, spine, leaf\n".to_owned();
    for i in 0..10_000_u32 {
        let joined = seconds(u64::from(i));
        state.hosts.insert(host(format!("host-{i:05}")), Host::new(joined, 8));
        text += &format!("host-{i:05}: leaf=l{}, spine=s{}, zone=z{}\n", i / 16, i / 512, i / 5120);
    }
    state.topology = match Topology::parse(&text) {
        Ok(topology) => topology,
        Err(error) => return println!("the topology is refused: {error}"),
    };
    let policy = Policy::new(1000, 9000).with_node_unit(8).with_spares(16);
    let decided = |state: &State| decide(state, &policy, seconds(20_000));
    let Decision { next: Next::World { ranks, .. }, .. } = timed("first world", || decided(&state)) else {
        return println!("no world begins");
    };
    state.world = Some(ranks.clone());
    timed("world is kept", || decided(&state));
    let left = Health::Left { since: seconds(20_000) };
    for (what, step) in [("one host lost", usize::MAX), ("every tenth lost", 10), ("every second lost", 2)] {
        for lost in ranks.values().step_by(step) {
            if let Some(host) = state.hosts.get_mut(lost) {
                host.health = left;
            }
        }
        timed(what, || decided(&state));
    }
    timed("voters", || choose_voters(&state.hosts, &state.topology, &BTreeSet::new()));
}

fn domains_of_a_hundred_thousand() {
    let built = timed("insert", || {
        let mut topology = Topology::new(["zone", "spine", "leaf"].map(Name::new))?;
        for i in 0..100_000 {
            let name = |level: &'static str, i: usize| (Name::new(level), Name::from(format!("{level}{i}")));
            // Spines and zones are stated late, by the last host of each leaf.
            let mut place = BTreeMap::from([name("leaf", i / 16)]);
            if i % 16 == 15 {
                place.extend([name("spine", i / 512), name("zone", i / 20_480)]);
            }
            topology.insert(&host(format!("host-{i:06}")), &place)?;
        }
        Ok::<_, taskd_cluster::topology::TopologyError>(topology)
    });
    let topology = match built {
        Ok(topology) => topology,
        Err(error) => return println!("the topology is refused: {error}"),
    };
    let all: BTreeSet<NodeId> = topology.hosts().cloned().collect();
    let lost: BTreeSet<NodeId> = all.iter().step_by(3).cloned().collect();
    let live: BTreeSet<NodeId> = all.difference(&lost).cloned().collect();
    let _ = timed("spread of 50,000", || topology.spread(&all, 50_000, "leaf"));
    let _ = timed("neighbours together", || topology.pack(&all));
    let _ = timed("partners", || topology.partners(&all, "leaf"));
    let _ = timed("causes of 33,334 losses", || topology.causes(&lost, &live));
    let _ = timed("spares for 33,334 losses", || topology.spares_for(&lost, &live, &live));
}
