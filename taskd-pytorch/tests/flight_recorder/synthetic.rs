//! Dumps such as NCCL writes: with states, sends and receives, and a ring that has evicted records.

use std::collections::BTreeMap;
use taskd_core::detect::hang::HangCause;
use taskd_pytorch::flight_recorder::{Dump, Entry, FlightVerdict, GroupConfig, GroupStatus, evaluate};

const RANKS: u32 = 4;

/// A completed all-reduce of 64 elements.
fn entry(record_id: u64, sequence: u64) -> Entry {
    Entry {
        record_id,
        group: "0".into(),
        description: "default_pg".into(),
        collective_seq: sequence,
        name: "nccl:all_reduce".into(),
        created_ns: i64::try_from(record_id).unwrap() * 1_000_000,
        input_sizes: vec![vec![8, 8]],
        output_sizes: vec![vec![8, 8]],
        input_dtypes: vec!["Float".into()],
        output_dtypes: vec!["Float".into()],
        state: "completed".into(),
        retired: true,
        ..Entry::default()
    }
}

fn pending(record_id: u64, sequence: u64, state: &str) -> Entry {
    Entry { state: state.into(), retired: false, ..entry(record_id, sequence) }
}

fn dump(rank: u32, entries: Vec<Entry>) -> Dump {
    let config = GroupConfig { description: "default_pg".into(), ranks: (0..RANKS).collect() };
    let groups = BTreeMap::from([("0".to_owned(), config)]);
    Dump { rank, version: "2.10".into(), groups, entries, ..Dump::default() }
}

fn causes(verdict: &FlightVerdict) -> Vec<(u32, HangCause)> {
    verdict.verdict.culprits.iter().map(|culprit| (culprit.rank.0, culprit.cause)).collect()
}

#[test]
fn another_element_type_is_a_mismatch() {
    let made = |rank: u32| {
        let dtype = if rank == 3 { "Half" } else { "Float" };
        dump(rank, vec![Entry { input_dtypes: vec![dtype.into()], ..pending(7, 7, "started") }])
    };
    let verdict = evaluate(&(0..RANKS).map(made).collect::<Vec<_>>(), None);
    assert_eq!(causes(&verdict), [(3, HangCause::Mismatch)]);
    assert!(verdict.summary.contains("allreduce of 64 Half instead"), "{verdict}");
}

#[test]
fn all_gather_inputs_of_uneven_sizes_are_no_mismatch_but_outputs_are() {
    let gather = |rank: u32, odd: i64| {
        let output_sizes = vec![vec![10]; 3].into_iter().chain([vec![10 + odd]]).collect();
        let input_sizes = vec![vec![10 + i64::from(rank)]];
        dump(
            rank,
            vec![Entry { name: "nccl:all_gather".into(), input_sizes, output_sizes, ..pending(1, 1, "started") }],
        )
    };
    let verdict = evaluate(&(0..RANKS).map(|rank| gather(rank, 0)).collect::<Vec<_>>(), None);
    assert!(causes(&verdict).is_empty() && verdict.verdict.is_stuck, "{verdict}");
    let verdict = evaluate(&(0..RANKS).map(|rank| gather(rank, i64::from(rank == 1))).collect::<Vec<_>>(), None);
    assert_eq!(causes(&verdict), [(1, HangCause::Mismatch)]);
}

#[test]
fn a_call_that_all_have_made_blames_no_rank_but_names_the_queued_ones() {
    let state = |rank: u32| if rank == 2 { "scheduled" } else { "started" };
    let dumps: Vec<Dump> = (0..RANKS).map(|rank| dump(rank, vec![pending(7, 7, state(rank))])).collect();
    let verdict = evaluate(&dumps, None);
    assert!(causes(&verdict).is_empty() && verdict.verdict.is_stuck);
    assert!(verdict.summary.starts_with("all ranks with a dump have made the same call"), "{verdict}");
    let queued = "it has not started on the device of rank 2: it waits behind other work";
    assert!(verdict.evidence[0].ends_with(queued), "{verdict}");
}

#[test]
fn an_evicted_record_is_not_a_missing_call() {
    // Rank 1 has made call 7 as well; its ring only holds later calls of another group.
    let later = |group: &str, sequence| Entry { group: group.into(), group_id: 1, ..entry(900 + sequence, sequence) };
    let mut dumps: Vec<Dump> = (0..RANKS).map(|rank| dump(rank, vec![pending(7, 7, "started")])).collect();
    dumps[1].entries = vec![later("1", 40), later("1", 41)];
    let verdict = evaluate(&dumps, None);
    assert!(causes(&verdict).is_empty(), "{verdict}");
    assert!(verdict.notes.iter().any(|note| note.contains("position of rank 1")), "{verdict}");
    // With a record of the group that is left, and its status, the position is known.
    dumps[1].entries.insert(0, entry(890, 3));
    let status = |enqueued| GroupStatus { enqueued: Some(enqueued), started: None, completed: Some(6) };
    dumps[1].status = BTreeMap::from([(0, status(7))]);
    assert!(causes(&evaluate(&dumps, None)).is_empty());
    dumps[1].status = BTreeMap::from([(0, status(6))]);
    assert_eq!(causes(&evaluate(&dumps, None)), [(1, HangCause::Missing)], "it has made call 6, and not 7");
}

#[test]
fn a_receive_without_a_send_blames_the_sender() {
    let p2p = |record, name: &str, is_pending: bool| Entry {
        is_p2p: true,
        name: name.into(),
        retired: !is_pending,
        state: if is_pending { "started" } else { "completed" }.into(),
        ..entry(record, 0)
    };
    let mut dumps = vec![
        dump(0, vec![p2p(0, "nccl:send 0->1", false), p2p(1, "nccl:recv 0<-1", true)]),
        dump(1, vec![p2p(0, "nccl:recv 1<-0", false)]),
        dump(2, vec![]),
        dump(3, vec![]),
    ];
    let verdict = evaluate(&dumps, None);
    assert_eq!(causes(&verdict), [(1, HangCause::Missing)], "{verdict}");
    assert!(
        verdict.summary.contains("send and receive of 64 Float, number 1 of group 0 (default_pg) from 1 to 0"),
        "{verdict}"
    );
    // With evicted records the calls in progress alone are compared.
    for dump in &mut dumps[..2] {
        dump.entries.iter_mut().for_each(|entry| entry.record_id += 500);
        dump.entries.remove(0);
    }
    dumps[1].entries.push(p2p(600, "nccl:recv 1<-0", false));
    assert_eq!(causes(&evaluate(&dumps, None)), [(1, HangCause::Missing)]);
    dumps[1].entries.push(p2p(601, "nccl:send 1->0", true));
    assert!(causes(&evaluate(&dumps, None)).is_empty(), "both sides are in it");
    let any = p2p(900, "gloo:recv 2<-?", true);
    dumps[2].entries.push(any);
    let verdict = evaluate(&dumps, None);
    assert!(verdict.notes[0].contains("1 sends or receives in progress have no known peer"), "{verdict}");
}

#[test]
fn two_sides_of_different_size_are_a_dispute() {
    let p2p = |name: &str, elements| Entry {
        is_p2p: true,
        name: name.into(),
        input_sizes: vec![vec![elements]],
        output_sizes: vec![vec![elements]],
        ..pending(0, 0, "started")
    };
    let dumps = [dump(0, vec![p2p("nccl:send 0->1", 64)]), dump(1, vec![p2p("nccl:recv 1<-0", 32)])];
    let verdict = evaluate(&dumps, None);
    let text = "the members of group 0 (default_pg) from 0 to 1 have made different calls under number 1: rank 1 send and \
                receive of 32 Float, rank 0 send and receive of 64 Float";
    assert_eq!(verdict.summary, text);
}

#[test]
fn no_dump_at_all_is_not_a_verdict() {
    assert_eq!(evaluate(&[], Some(4)).to_string(), "there is no dump");
}
