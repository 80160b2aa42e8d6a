use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const MS: u64 = 1_000_000;

/// A rank with `usual` steps of 100 ms and ZP times of 10 ms, and three further ones.
fn rank(number: u32, last: CommRow, last_step_ms: u64) -> RankSeries {
    let usual = CommRow { zp_device: 10 * MS, zp_host: 5 * MS, pp_device: 2 * MS, pp_host: MS, dataloader_host: MS };
    let mut series = RankSeries { rank: number, ..RankSeries::default() };
    for step in 0..23 {
        let is_last = step >= 20;
        series.steps.insert(step, if is_last { last_step_ms * MS } else { 100 * MS });
        series.comm.insert(step, if is_last { last } else { usual });
    }
    series
}

fn zp(zp_ms: u64) -> CommRow {
    CommRow { zp_device: zp_ms * MS, zp_host: 5 * MS, pp_device: 2 * MS, pp_host: MS, dataloader_host: MS }
}

fn input(ranks: Vec<RankSeries>, tp_groups: &[&[u32]]) -> NodeInput {
    let tp_groups = tp_groups.iter().map(|group| group.to_vec()).collect();
    NodeInput { job_id: "j1".into(), node_ip: "10.0.0.7".into(), ranks, tp_groups }
}

#[test]
fn a_rank_that_waits_least_in_its_group_computes_slowly() {
    // All wait for rank 1, so its own time in the collective stays short.
    let ranks = vec![rank(0, zp(40), 131), rank(1, zp(10), 131), rank(2, zp(41), 131), rank(3, zp(40), 130)];
    let result = node_result(&input(ranks, &[&[0, 1, 2, 3]]), &SlowNodeConfig::default());
    assert_eq!((result.is_slow, result.slow_calculate_ranks.as_slice()), (1, &[1][..]));
    assert_eq!(
        node_json(&result).unwrap(),
        r#"{"slownode_j1":{"10.0.0.7":{"isSlow":1,"degradationLevel":"31.00%","jobId":"j1","nodeRank":"10.0.0.7","slowCalculateRanks":[1],"slowCommunicationDomains":[],"slowSendRanks":[],"slowHostNodes":[],"slowIORanks":[]}}}"#
    );
}

#[test]
fn without_a_slow_step_nothing_is_located() {
    let ranks = vec![rank(0, zp(40), 129), rank(1, zp(10), 129)];
    let result = node_result(&input(ranks, &[&[0, 1]]), &SlowNodeConfig::default());
    assert_eq!((result.is_slow, result.degradation_level.as_str()), (0, "0.00%"));
    assert!(result.slow_calculate_ranks.is_empty());
}

#[test]
fn a_group_that_is_slow_as_a_whole_is_a_slow_domain() {
    let ranks = vec![rank(0, zp(20), 140), rank(1, zp(20), 140)];
    let result = node_result(&input(ranks, &[&[0, 1]]), &SlowNodeConfig::default());
    assert_eq!((result.slow_communication_domains, result.slow_calculate_ranks), (vec![vec![0, 1]], vec![]));
}

#[test]
fn senders_hosts_and_single_ranks_are_located() {
    let last = CommRow { zp_device: 20 * MS, zp_host: 9 * MS, pp_device: 4 * MS, ..zp(20) };
    let result = node_result(&input(vec![rank(4, last, 140)], &[]), &SlowNodeConfig::default());
    assert_eq!((result.slow_calculate_ranks, result.slow_send_ranks), (vec![4], vec![4]));
    assert_eq!((result.slow_host_nodes, result.slow_io_ranks), (vec!["10.0.0.7".to_owned()], vec![]));
}

#[test]
fn a_job_combines_its_hosts_and_drops_incomplete_groups() {
    let last = CommRow { pp_device: 4 * MS, ..zp(20) };
    let result =
        node_result(&input(vec![rank(0, last, 140), rank(1, zp(20), 140)], &[&[0, 1]]), &SlowNodeConfig::default());
    let ranks_of = BTreeMap::from([("10.0.0.7".to_owned(), vec![0, 1])]);
    let cluster = cluster_result("train", std::slice::from_ref(&result), &ranks_of, &[vec![0, 2]]);
    assert_eq!(
        cluster_json(&cluster).unwrap(),
        r#"{"slownode_j1":{"j1":{"isSlow":1,"degradationLevel":"40.00%","jobId":"j1","jobName":"train","nodeRanks":["10.0.0.7"],"slowCalculateRanks":[],"slowCommunicationDomains":[[0,1],[0,2]],"slowCommunicationRanks":[0,1,2],"slowSendRanks":[0],"slowHostNodes":[],"slowIORanks":[]}}}"#
    );
    let partial = BTreeMap::from([("10.0.0.7".to_owned(), vec![0])]);
    assert_eq!(cluster_result("train", &[result], &partial, &[]).slow_communication_domains, Vec::<Vec<u32>>::new());
}

#[test]
fn the_degradation_test_follows_its_six_rules() {
    let config = SlowNodeConfig::default();
    let with = |last: &[f64]| [&[100.0; 20][..], last].concat();
    assert_eq!(degradation(&with(&[200.0; 2]), &config), None, "too few values");
    let slow = degradation(&with(&[131.0; 3]), &config).unwrap();
    assert!(slow.is_slow && (slow.ratio - 0.31).abs() < 1e-9);
    assert!(!degradation(&with(&[130.0; 3]), &config).unwrap().is_slow, "the bound itself is no anomaly");
    assert!(!degradation(&with(&[200.0, 200.0, 100.0]), &config).unwrap().is_slow, "it is fast again");
    assert!(degradation(&with(&[100.0, 200.0, 200.0, 200.0]), &config).unwrap().is_slow);
    let mut cold = vec![100.0; 23];
    (cold[0], cold[1], cold[2]) = (9000.0, 8000.0, 7000.0);
    cold[20..].fill(140.0);
    assert!(degradation(&cold, &config).unwrap().is_slow, "the extremes of the baseline are left out");
    let by_sigma = SlowNodeConfig { degradation_percentage: 0.0, ..config };
    assert!(degradation(&with(&[100.1; 3]), &by_sigma).unwrap().is_slow, "a constant baseline has no scatter");
    assert_eq!(
        degradation(&[1.0; 9], &SlowNodeConfig { normal_number: 6, ..config }),
        None,
        "nothing is left of the baseline"
    );
}

#[test]
fn clusters_are_split_at_large_gaps_and_the_small_side_again() {
    let late = |times: &[f64]| late_in_collective(&(0..).zip(times.iter().copied()).collect::<Vec<_>>(), 1.3);
    assert_eq!(late(&[40.0, 10.0, 41.0]), BTreeSet::from([1]));
    assert_eq!(late(&[100.0, 10.0, 12.0, 99.0]), BTreeSet::from([1, 2]));
    assert_eq!(late(&[100.0, 10.0, 20.0, 99.0]), BTreeSet::from([1]), "the small side is split again");
    assert_eq!(late(&[10.0, 11.0, 12.0]), BTreeSet::new(), "no gap");
    assert_eq!(late(&[10.0, 10.0]), BTreeSet::new());
    assert_eq!(late(&[]), BTreeSet::new());
}

#[test]
fn files_with_repeated_headers_are_read() {
    let comm = "step_index,ZP_device,ZP_host,PP_device,PP_host,dataloader_host\n1,10,20,30,40,50\nstep_index,ZP_device,ZP_host,PP_device,PP_host,dataloader_host\n2,1,2,3,4,5\n3,1\n4,-1,2,3,4,5\n";
    let series = RankSeries::of_csv(3, comm, "step time,durations\n1,100\n\n1,200\nstep time,durations\n2,300,7\n");
    let row = CommRow { zp_device: 10, zp_host: 20, pp_device: 30, pp_host: 40, dataloader_host: 50 };
    assert_eq!(series.comm.get(&1), Some(&row));
    assert_eq!((series.comm.len(), series.steps), (2, BTreeMap::from([(1, 200)])));
}

proptest! {
    #[test]
    fn any_text_and_any_settings_give_a_result(
        text in "[0-9,\n]{0,300}",
        normal in 0..40_usize, consec in 0..8_usize, percent in prop_oneof![Just(0.0), any::<f64>()],
    ) {
        let config = SlowNodeConfig { normal_number: normal, n_consec: consec, degradation_percentage: percent, ..SlowNodeConfig::default() };
        let ranks = vec![RankSeries::of_csv(0, &text, &text), RankSeries::of_csv(1, &text, &text)];
        let result = node_result(&input(ranks, &[&[0, 1], &[7], &[]]), &config);
        prop_assert!(node_json(&result).is_ok());
    }
}
