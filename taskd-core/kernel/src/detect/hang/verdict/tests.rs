use super::*;
use std::collections::BTreeMap;

const SECOND: Duration = Duration::from_secs(1);

/// A call that began `ago_s` seconds ago.
fn call(sequence: u64, operation: &str, elements: u64, ago_s: u64, is_pending: bool) -> Call {
    let (operation, data_type) = (operation.into(), "f32".into());
    Call { sequence, operation, elements, data_type, begun: Duration::from_secs(ago_s), is_pending }
}

fn over(sequence: u64) -> Call {
    call(sequence, "allreduce", 1024, 9, false)
}

fn waits(sequence: u64) -> Call {
    call(sequence, "allreduce", 1024, 3, true)
}

fn position(group: &str, members: &[u32], recent: &[Call]) -> GroupPosition {
    GroupPosition { group: group.into(), members: members.to_vec(), recent: recent.to_vec() }
}

fn report(rank: u32, groups: Vec<GroupPosition>) -> RankReport {
    RankReport { rank: Rank(rank), groups: Some(groups), state: ProcessState::Runs('S') }
}

/// Reports of ranks in one group, from their calls.
fn in_one_group(calls: &[&[Call]]) -> Vec<RankReport> {
    let members: Vec<u32> = (0..).zip(calls).map(|(rank, _)| rank).collect();
    (0..).zip(calls).map(|(rank, recent)| report(rank, vec![position("default", &members, recent)])).collect()
}

/// Returns the named ranks with their causes and texts.
fn verdict(reports: &[RankReport]) -> Vec<(u32, HangCause, String)> {
    let verdict = judge(reports, SECOND);
    assert!(verdict.dispute.is_none());
    verdict.culprits.iter().map(|c| (c.rank.0, c.cause, c.to_string())).collect()
}

#[test]
fn a_rank_that_has_not_made_the_call_is_missing() {
    let reports = in_one_group(&[&[over(7), waits(8)], &[over(7)], &[over(7), waits(8)]]);
    let text =
        "rank 1 has not called allreduce of 1024 f32, number 8 of group default, and waits in no other collective";
    assert_eq!(verdict(&reports), [(1, HangCause::Missing, text.into())]);
    let found = judge(&reports, SECOND);
    assert_eq!((found.culprits[0].waiting.as_slice(), found.culprits[0].since), (&[Rank(0), Rank(2)][..], SECOND * 3));
    assert!(!judge(&reports, SECOND * 4).is_stuck, "it has not been under way for that long");
}

#[test]
fn a_stopped_member_explains_all_else() {
    let mut reports = in_one_group(&[&[waits(8)], &[over(7)], &[over(7)]]);
    reports[2].state = ProcessState::Stopped('T');
    let text = "rank 2 is frozen: its process is stopped (state T) and has not made this call; allreduce of 1024 f32, \
                number 8 of group default waits for rank 2";
    assert_eq!(verdict(&reports), [(2, HangCause::Frozen { is_certain: true }, text.into())]);
    let mut inside = in_one_group(&[&[waits(8)], &[waits(8)], &[waits(8)]]);
    inside[0].state = ProcessState::Silent(SECOND * 6);
    let text = "rank 0 is frozen: its process has had no heartbeat for 6.0 s; allreduce of 1024 f32, number 8 of group \
                default waits for rank 0";
    assert_eq!(verdict(&inside), [(0, HangCause::Frozen { is_certain: false }, text.into())]);
    inside.push(RankReport { rank: Rank(9), groups: None, state: ProcessState::Stopped('T') });
    inside[0].state = ProcessState::Unknown;
    assert!(verdict(&inside).is_empty(), "a stopped process that is in no group that waits is not the reason");
}

#[test]
fn a_rank_that_made_a_different_call_is_a_mismatch() {
    let other = call(8, "broadcast", 1024, 3, true);
    let reports = in_one_group(&[&[over(7), waits(8)], &[over(7), other], &[over(7), waits(8)]]);
    let text = "rank 1 does not take part in allreduce of 1024 f32, number 8 of group default: it has called broadcast of \
                1024 f32 instead";
    assert_eq!(verdict(&reports), [(1, HangCause::Mismatch, text.into())]);
    let bigger = call(8, "allreduce", 2048, 3, true);
    let reports = in_one_group(&[&[waits(8)], &[waits(8)], &[bigger]]);
    assert_eq!(verdict(&reports)[0].1, HangCause::Mismatch, "the same operation of another size");
    let gather = |elements| call(8, "gather", elements, 3, true);
    let reports = in_one_group(&[&[gather(1)], &[gather(1)], &[gather(0)]]);
    assert!(verdict(&reports).is_empty(), "members may give differently much to a gather");
}

#[test]
fn a_rank_in_the_call_that_usually_follows_has_skipped_one() {
    let step = |from: u64| [call(from, "allreduce", 4096, 9, false), call(from + 1, "barrier", 0, 9, false)];
    let usual = [&step(0)[..], &step(2), &[call(4, "allreduce", 4096, 3, true)]].concat();
    let ahead = [&step(0)[..], &step(2), &[call(4, "barrier", 0, 3, true)]].concat();
    let text = "rank 2 has skipped allreduce of 4096 f32, number 4 of group default: it has called barrier instead";
    let reports = in_one_group(&[&usual, &usual, &ahead]);
    assert_eq!(verdict(&reports), [(2, HangCause::Skipped, text.into())]);
}

#[test]
fn an_even_split_blames_no_rank_and_reports_the_difference() {
    let (one, other) = ([waits(8)], [call(8, "barrier", 0, 3, true)]);
    let found = judge(&in_one_group(&[&one, &one, &other, &other]), SECOND);
    assert!(found.culprits.is_empty() && found.is_stuck);
    let text = "the members of group default have made different calls under number 8: ranks 0 and 1 allreduce of 1024 \
                f32, ranks 2 and 3 barrier";
    assert_eq!(found.dispute.map(|dispute| dispute.to_string()).as_deref(), Some(text));
}

#[test]
fn a_rank_whose_records_were_evicted_or_lost_is_not_missing() {
    let ahead: Vec<Call> = (20..36).map(over).collect();
    assert!(verdict(&in_one_group(&[&[over(7), waits(8)], &ahead, &[waits(8)]])).is_empty());
    let end_lost = [waits(6), over(7), over(8)];
    assert!(!judge(&in_one_group(&[&end_lost, &[over(6), over(7), over(8)]]), SECOND).is_stuck);
    let out_of_order = [waits(6), over(7)];
    let found =
        judge(&in_one_group(&[&out_of_order, &[call(6, "barrier", 0, 3, true), over(7)], &out_of_order]), SECOND);
    assert_eq!(found.culprits[0].rank, Rank(1), "nobody's call 6 is over");
}

#[test]
fn a_call_with_all_members_or_an_unknown_one_blames_no_rank() {
    let mut reports = in_one_group(&[&[waits(8)], &[waits(8)], &[waits(8)]]);
    let found = judge(&reports, SECOND);
    assert!(found.culprits.is_empty() && found.dispute.is_none() && found.is_stuck);
    reports[1].groups = None;
    assert!(verdict(&reports).is_empty());
}

#[test]
fn only_a_rank_that_ended_before_the_call_is_blamed() {
    let mut reports = in_one_group(&[&[over(7), waits(8)], &[over(7)], &[over(7), over(8)]]);
    reports[1].state = ProcessState::Ended;
    reports[2].state = ProcessState::Ended;
    assert_eq!(verdict(&reports).iter().map(|v| (v.0, v.1)).collect::<Vec<_>>(), [(1, HangCause::Ended)]);
    reports[1].groups = None; // its positions are not known
    assert_eq!(verdict(&reports)[0].0, 1);
}

/// Rows of two, columns of two: `tp_0` 0 1, `tp_1` 2 3, `dp_0` 0 2, `dp_1` 1 3.
fn grid(tp: [&[Call]; 4], dp: [&[Call]; 4]) -> Vec<RankReport> {
    let groups = |rank: u32| {
        let (row, column, at) = (rank / 2, rank % 2, rank as usize);
        vec![
            position(&format!("tp_{row}"), &[row * 2, row * 2 + 1], tp[at]),
            position(&format!("dp_{column}"), &[column, column + 2], dp[at]),
        ]
    };
    (0..4).map(|rank| report(rank, groups(rank))).collect()
}

#[test]
fn blame_across_groups_ends_at_the_rank_that_waits_for_no_other() {
    // Rank 3 is missing. Rank 2 waits for it in its row, rank 1 in its column, and rank 0 waits for rank 1 in its row.
    let reports =
        grid([&[waits(5)], &[over(4)], &[waits(5)], &[over(4)]], [&[over(2)], &[waits(3)], &[over(2)], &[over(2)]]);
    let found: Vec<u32> = verdict(&reports).into_iter().map(|(rank, ..)| rank).collect();
    assert_eq!(found, [3, 3], "in both of its groups");
}

#[test]
fn a_circle_of_two_is_nobodys_fault_for_certain() {
    // Rank 0 waits for rank 1 in group a, and rank 1 waits for rank 0 in group b.
    let (a, b) = (|calls: &[Call]| position("a", &[0, 1], calls), |calls: &[Call]| position("b", &[0, 1], calls));
    let reports = [report(0, vec![a(&[waits(5)])]), report(1, vec![b(&[waits(2)])])];
    let found = judge(&reports, SECOND);
    assert!(found.culprits.is_empty());
    let text = found.dispute.map(|dispute| dispute.to_string()).unwrap_or_default();
    assert!(text.ends_with("the groups are called in different orders"), "{text}");
}

#[test]
fn ranks_that_wait_in_a_slow_call_of_all_members_will_come() {
    // All of group b are in its call, which is slow. Rank 2 waits for rank 1 in group c.
    let (a, b) = (|calls: &[Call]| position("a", &[0, 1, 2, 3], calls), |calls: &[Call]| position("b", &[1, 3], calls));
    let c = |calls: &[Call]| position("c", &[1, 2], calls);
    let reports = [
        report(0, vec![a(&[waits(5)])]),
        report(1, vec![a(&[over(4)]), b(&[waits(2)]), c(&[over(1)])]),
        report(2, vec![a(&[over(4)]), c(&[waits(2)])]),
        report(3, vec![a(&[over(4)]), b(&[waits(2)])]),
    ];
    let found = judge(&reports, SECOND);
    assert!(found.is_stuck && found.culprits.is_empty() && found.dispute.is_none(), "{found:?}");
}

#[test]
fn in_a_circle_the_one_against_all_others_is_blamed() {
    let all = [0, 1, 2, 3];
    let (a, b) = (|calls: &[Call]| position("a", &all, calls), |calls: &[Call]| position("b", &all, calls));
    let others = || vec![a(&[over(4), waits(5)]), b(&[over(1)])];
    let lone = vec![a(&[over(4)]), b(&[over(1), waits(2)])];
    let reports = [report(0, others()), report(1, others()), report(2, lone), report(3, others())];
    let text = "rank 2 has skipped allreduce of 1024 f32, number 5 of group a, and waits for other ranks in allreduce \
                of 1024 f32 of group b";
    assert_eq!(verdict(&reports), [(2, HangCause::Skipped, text.into())]);
}

/// The calls of a stage of a pipeline, in the order in which it makes them: two micro-batches, then the gradients of the
/// stage, then the losses of all. `left_out` is left out of the last step, and the next call never ends.
fn pipeline(rank: u32, steps: u64, left_out: Option<&str>) -> RankReport {
    let (peer, mate) = ((rank + 2) % 4, rank ^ 1);
    let (sends, receives) = (format!("pp from {rank} to {peer}"), format!("pp from {peer} to {rank}"));
    let stage = [&*sends, &sends, &receives, &receives, "dp", "world"];
    let last = [&*receives, &receives, &sends, &sends, "dp", "world"];
    let order = if rank < 2 { stage } else { last };
    let mut positions: BTreeMap<&str, GroupPosition> = BTreeMap::new();
    let mut ago = 3 + steps * 6;
    for step in 0..=steps {
        for (at, place) in order.iter().enumerate() {
            let is_left_out = step + 1 == steps && left_out == Some(*place) && (at == 0 || order[at - 1] != *place);
            if is_left_out {
                continue;
            }
            // All others wait in the last call of the step before; the rank that left one out waits in the first of the next.
            if step == steps && (left_out.is_none() || at > 0) {
                break;
            }
            let members = match *place {
                "world" => vec![0, 1, 2, 3],
                "dp" => vec![rank.min(mate), rank.max(mate)],
                name if name == sends => vec![rank, peer],
                _ => vec![peer, rank],
            };
            let position = positions.entry(place).or_insert_with(|| position(place, &members, &[]));
            let sequence = position.recent.last().map_or(0, |call| call.sequence + 1);
            let is_last = if left_out.is_some() { step == steps } else { step + 1 == steps && *place == "world" };
            ago = ago.saturating_sub(1).max(3);
            position.recent.push(call(sequence, "call", 0, if is_last { 3 } else { ago + 1 }, is_last));
        }
    }
    report(rank, positions.into_values().collect())
}

#[test]
fn a_stage_that_left_a_collective_out_is_blamed_though_it_waits_in_a_send_or_receive() {
    for culprit in 0..4 {
        let of = |rank| pipeline(rank, 7, (rank == culprit).then_some("world"));
        let found = verdict(&(0..4).map(of).collect::<Vec<_>>());
        let [(rank, HangCause::Skipped, text)] = &found[..] else { panic!("rank {culprit}: {found:?}") };
        assert_eq!(*rank, culprit);
        assert!(text.contains("has skipped call, number 6 of group world: it waits in"), "{text}");
    }
}

#[test]
fn an_unknown_habit_blames_no_stage_and_may_resolve() {
    let of = |rank| pipeline(rank, 2, (rank == 1).then_some("world"));
    let found = judge(&(0..4).map(of).collect::<Vec<_>>(), SECOND);
    assert!(found.culprits.is_empty(), "{found:?}");
    assert!(found.dispute.is_some_and(|dispute| dispute.may_resolve));
}

#[test]
fn a_rank_that_reports_no_receive_from_the_sender_may_receive_from_any() {
    let sender = position("pp from 0 to 1", &[0, 1], &[waits(4)]);
    let found = judge(&[report(0, vec![sender.clone()]), report(1, vec![])], SECOND);
    assert!(found.culprits.is_empty() && found.dispute.is_none() && found.is_stuck);
    let behind = position("pp from 0 to 1", &[0, 1], &[over(3)]);
    let found = judge(&[report(0, vec![sender]), report(1, vec![behind])], SECOND);
    assert_eq!((found.culprits[0].rank, found.culprits[0].cause), (Rank(1), HangCause::Missing));
}

#[test]
fn ranks_in_words() {
    let named = |ranks: std::ops::Range<u32>| super::ranks(&ranks.map(Rank).collect::<Vec<_>>());
    assert_eq!(named(0..0), "no rank");
    assert_eq!(named(3..4), "rank 3");
    assert_eq!(named(0..3), "ranks 0, 1 and 2");
    assert_eq!(named(0..12), "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 4 more");
}

mod properties {
    use super::*;
    use proptest::prelude::*;

    fn any_call() -> impl Strategy<Value = Call> {
        let operation = prop_oneof![Just("allreduce"), Just("barrier"), Just("")];
        (any::<u8>(), operation, 0..3_u64, 0..9_u64, any::<bool>()).prop_map(
            |(sequence, operation, n, ago, pending)| call(u64::from(sequence % 8), operation, n, ago, pending),
        )
    }

    fn any_report() -> impl Strategy<Value = RankReport> {
        let members = prop_oneof![Just(vec![]), Just(vec![0, 1, 2]), Just(vec![2, 7])];
        let group = (prop_oneof![Just("a"), Just("b")], members, proptest::collection::vec(any_call(), 0..6))
            .prop_map(|(name, members, calls)| position(name, &members, &calls));
        let states = prop_oneof![
            Just(ProcessState::Runs('S')),
            Just(ProcessState::Stopped('t')),
            Just(ProcessState::Silent(SECOND * 9)),
            Just(ProcessState::Ended),
            Just(ProcessState::Unknown)
        ];
        let groups = proptest::option::of(proptest::collection::vec(group, 0..3));
        (0..5_u32, groups, states).prop_map(|(rank, groups, state)| RankReport { rank: Rank(rank), groups, state })
    }

    proptest! {
        #[test]
        fn a_rank_that_waits_in_the_call_is_not_blamed_unless_frozen(
            reports in proptest::collection::vec(any_report(), 0..6),
        ) {
            let found = judge(&reports, SECOND);
            for culprit in &found.culprits {
                let may_wait = matches!(culprit.cause, HangCause::Frozen { .. });
                prop_assert!(may_wait || !culprit.waiting.contains(&culprit.rank), "{culprit:?}");
            }
            prop_assert!(found.is_stuck || found.culprits.is_empty() && found.dispute.is_none());
        }
    }
}
