//! Events of whole traces in the common model.

use super::{generated, write_job};
use serde_json::json;
use std::path::Path;
use taskd_core::analysis::model::{GroupRole, Kind, RankTrace};
use taskd_pytorch::kineto::generate::{BASE_UNIX_NS, Plan};
use taskd_pytorch::kineto::{read, read_directory};

fn count(rank: &RankTrace, kind: Kind) -> usize {
    rank.events.iter().filter(|event| event.kind == kind).count()
}

/// Two ranks of a DDP training over gloo, which PyTorch 2.15 recorded: two steps, each with one all-reduce and one message
/// from rank 0 to rank 1.
#[test]
fn recorded_gloo_training_has_its_steps_and_communications() {
    let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kineto/samples");
    let directory = tempfile::tempdir().unwrap();
    for rank in 0..2 {
        let name = format!("gloo_rank{rank}.json.gz");
        std::fs::copy(samples.join(&name), directory.path().join(&name)).unwrap();
    }
    let trace = read_directory(directory.path()).unwrap();
    assert_eq!(trace.missing, []);
    for (number, rank) in &trace.ranks {
        let steps: Vec<u64> = rank.steps.iter().map(|step| step.number).collect();
        assert_eq!(steps, [2, 3]);
        for (kind, expected) in [
            (Kind::Collective, 2),
            (Kind::Forward, 2),
            (Kind::Backward, 2),
            (Kind::Optimizer, 2),
            (Kind::DataLoader, 2),
            (Kind::Send, if *number == 0 { 2 } else { 0 }),
            (Kind::Receive, if *number == 0 { 0 } else { 2 }),
        ] {
            assert_eq!(count(rank, kind), expected, "rank {number}: {kind:?}");
        }
        assert!(count(rank, Kind::Compute) > 50);
        let bytes: Vec<(&str, u64)> =
            rank.communications.iter().map(|one| (rank.names.get(one.operation), one.bytes)).collect();
        let message = if *number == 0 { ("send", 12) } else { ("receive", 12) };
        assert_eq!(bytes, [("all_reduce", 360), message, ("all_reduce", 360), message]);
        assert_eq!((rank.groups[0].role, rank.groups[0].members.as_slice()), (GroupRole::World, [0, 1].as_slice()));
    }
    // Both ranks leave the all-reduce at nearly the same time: their clocks have one axis.
    let end = |rank: u32| {
        let events = &trace.ranks[&rank].events;
        events.iter().find(|event| event.kind == Kind::Collective).map(|event| event.end_ns()).unwrap()
    };
    assert!((end(0) - end(1)).abs() < 5_000_000, "{} and {}", end(0), end(1));
}

#[test]
fn generated_job_has_its_kernels_groups_and_one_axis() {
    let directory = tempfile::tempdir().unwrap();
    let plan = Plan { layers: 4, steps: 2, ..Plan::default() };
    write_job(directory.path(), plan, 2);
    let trace = read_directory(directory.path()).unwrap();
    assert_eq!(trace.missing, []);
    assert!(trace.began_unix_ns.unwrap() > BASE_UNIX_NS);
    let first = trace.ranks.values().flat_map(|rank| rank.events.first()).map(|event| event.start_ns).min();
    assert!(first >= Some(0));
    for rank in trace.ranks.values() {
        assert_eq!((rank.steps.len(), rank.device, rank.host.as_deref()), (2, Some(0), Some("node-0")));
        assert_eq!((count(rank, Kind::Collective), count(rank, Kind::Forward), count(rank, Kind::Backward)), (4, 2, 2));
        assert_eq!((count(rank, Kind::Copy), count(rank, Kind::DataLoader), count(rank, Kind::Optimizer)), (4, 2, 2));
        let sequences: Vec<Option<u64>> = rank.communications.iter().map(|one| one.sequence).collect();
        assert_eq!(sequences, [Some(1), Some(2), Some(3), Some(4)]);
        for event in rank.events.iter().filter(|event| event.kind == Kind::Collective) {
            let details = &rank.communications[event.communication.unwrap() as usize];
            assert_eq!((rank.names.get(details.operation), details.bytes, event.lane), ("all_reduce", 13_107_200, 28));
            assert_eq!(rank.groups[details.group.unwrap() as usize].members, [0, 1]);
        }
        assert!(rank.events.windows(2).all(|pair| pair[0].start_ns <= pair[1].start_ns));
    }
}

#[test]
fn equal_plans_give_equal_files_of_the_planned_size() {
    let plan = Plan::default().with_bytes(3 << 20);
    let [one, other] = [generated(&plan), generated(&plan)];
    assert!(one == other && one != generated(&Plan { seed: 2, ..plan }));
    let size = one.len() as f64 / f64::from(3 << 20);
    assert!((0.9..1.1).contains(&size), "{size}");
    serde_json::from_slice::<serde_json::Value>(&one).unwrap();
}

#[test]
fn messages_have_their_peer_and_kernels_their_direction() {
    let bytes = br#"{"distributedInfo":{"rank":1,"world_size":1},"traceEvents":[
        {"ph":"X","cat":"kernel","name":"ncclDevKernel_SendRecv(x)","ts":1,"dur":2,"pid":0,"tid":9,"args":{"stream":9,
         "Collective name":"send","Out msg nelems":3,"In msg nelems":3,"dtype":"Half","Dst Rank":4,
         "Process Group Name":"pp","Process Group Description":"mesh_pp","Process Group Ranks":"[1, 4]"}},
        {"ph":"X","cat":"kernel","name":"ncclDevKernel_SendRecv(x)","ts":5,"dur":2,"pid":0,"tid":9,"args":{"stream":9,
         "Collective name":"recv","In msg nelems":0,"Out msg nelems":3,"dtype":"Half","Src Rank":"4","Process Group Name":"pp"}},
        {"ph":"X","cat":"user_annotation","name":"gloo:barrier","ts":9,"dur":2,"pid":1,"tid":1}]}"#;
    let trace = read("a", bytes.as_slice());
    let rank = &trace.ranks[&1];
    let rows: Vec<_> = rank.events.iter().map(|event| (event.kind, event.communication)).collect();
    assert_eq!(rows, [(Kind::Send, Some(0)), (Kind::Receive, Some(1)), (Kind::Host, None)]);
    let details: Vec<_> = rank.communications.iter().map(|one| (one.peer, one.bytes, one.group)).collect();
    assert_eq!(details, [(Some(4), 6, Some(0)), (Some(4), 6, Some(0))]);
    assert_eq!((rank.groups[0].role, rank.groups[0].members.as_slice()), (GroupRole::Pipeline, [1, 4].as_slice()));
}

#[test]
fn memory_and_matrix_products_become_resources_over_time() {
    let event = |at: u32, kind: u32, bytes: u64| {
        json!({"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 1, "tid": 1, "ts": at,
               "args": {"Total Allocated": bytes, "Device Type": kind, "Device Id": 0}})
    };
    let product = json!({"ph": "X", "cat": "cpu_op", "name": "aten::addmm", "pid": 1, "tid": 1, "ts": 1010, "dur": 4,
                         "args": {"Input Dims": [[32], [8, 64], [64, 32], [], []]}});
    let step = json!({"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "pid": 1, "tid": 1, "ts": 1000,
                      "dur": 100, "args": {}});
    let events = [step, event(1002, 0, 7), event(1020, 1, 300), event(1004, 1, 200), product];
    let file = serde_json::to_vec(&json!({"distributedInfo": {"rank": 0}, "traceEvents": events})).unwrap();
    let trace = read("rank0.json", &file[..]);
    let resources = &trace.ranks[&0].resources;
    assert_eq!(resources.memory, [(4_000, 200), (20_000, 300)], "the memory of the device, in the order of time");
    assert_eq!(resources.flop, [(12_000, 32_768.0)]);
    assert_eq!(resources.flop_per_step, Some(32_768.0));
}
