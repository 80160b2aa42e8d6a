//! The reference's results, and their JSON.

use super::NodeInput;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Result of one host (`NodeLevelDetectionResult/<ip>_Result.json`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeResult {
    /// 1 if a rank is slow, otherwise 0.
    pub is_slow: u8,
    /// Largest degradation of a rank's step time, such as `31.25%`; `0.00%` if none is slow.
    pub degradation_level: String,
    /// Id of the job.
    pub job_id: String,
    /// Address of the host.
    pub node_rank: String,
    /// Ranks that compute slowly.
    pub slow_calculate_ranks: Vec<u32>,
    /// Groups of ranks with slow communication.
    pub slow_communication_domains: Vec<Vec<u32>>,
    /// Ranks with slow sends to the next pipeline stage.
    pub slow_send_ranks: Vec<u32>,
    /// Addresses of slow hosts: this one, or none.
    pub slow_host_nodes: Vec<String>,
    /// Always empty, as in the reference.
    #[serde(rename = "slowIORanks")]
    pub slow_io_ranks: Vec<u32>,
    /// Degradation as a number.
    #[serde(skip)]
    thousandths_of_percent: u64,
}

impl NodeResult {
    pub(super) fn new(input: &NodeInput) -> NodeResult {
        NodeResult {
            is_slow: 0,
            degradation_level: String::new(),
            job_id: input.job_id.clone(),
            node_rank: input.node_ip.clone(),
            slow_calculate_ranks: Vec::new(),
            slow_communication_domains: Vec::new(),
            slow_send_ranks: Vec::new(),
            slow_host_nodes: Vec::new(),
            slow_io_ranks: Vec::new(),
            thousandths_of_percent: 0,
        }
    }

    pub(super) fn set_degradation(&mut self, is_slow: bool, ratio: f64) {
        self.is_slow = u8::from(is_slow);
        self.degradation_level = format!("{:.2}%", ratio * 100.0);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
        let level = (ratio * 1e5) as u64;
        self.thousandths_of_percent = level;
    }
}

/// Returns the JSON of a host's result: `{"slownode_<jobId>": {"<nodeIp>": {…}}}`.
///
/// # Errors
/// Returns the error of the JSON library; none is known for this type.
pub fn node_json(result: &NodeResult) -> Result<String, serde_json::Error> {
    let by_node = BTreeMap::from([(&result.node_rank, result)]);
    serde_json::to_string(&BTreeMap::from([(format!("slownode_{}", result.job_id), by_node)]))
}

/// Result of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterResult {
    /// 1 if a host has a slow rank, otherwise 0.
    pub is_slow: u8,
    /// Largest degradation of a host.
    pub degradation_level: String,
    /// Id of the job.
    pub job_id: String,
    /// Name of the job.
    pub job_name: String,
    /// Addresses of the hosts that have reported.
    pub node_ranks: Vec<String>,
    /// Ranks that compute slowly.
    pub slow_calculate_ranks: Vec<u32>,
    /// Groups of ranks with slow communication: tensor-parallel groups of which every member's host has reported,
    /// and pairs of a slow sender and the next rank of its pipeline group.
    pub slow_communication_domains: Vec<Vec<u32>>,
    /// Ranks of these groups. The content of this field is not published; this is what its name suggests.
    pub slow_communication_ranks: Vec<u32>,
    /// Ranks with slow sends to the next pipeline stage.
    pub slow_send_ranks: Vec<u32>,
    /// Addresses of slow hosts.
    pub slow_host_nodes: Vec<String>,
    /// Always empty, as in the reference.
    #[serde(rename = "slowIORanks")]
    pub slow_io_ranks: Vec<u32>,
}

/// Combines the results of the hosts of a job. `pp_groups` are its pipeline groups in order, and `ranks_of` the ranks
/// of each host that has reported, by address.
#[must_use]
pub fn cluster_result(
    job_name: &str,
    nodes: &[NodeResult],
    ranks_of: &BTreeMap<String, Vec<u32>>,
    pp_groups: &[Vec<u32>],
) -> ClusterResult {
    let reported: BTreeSet<u32> =
        nodes.iter().filter_map(|node| ranks_of.get(&node.node_rank)).flatten().copied().collect();
    let worst = nodes.iter().max_by_key(|node| node.thousandths_of_percent);
    let all = |of: fn(&NodeResult) -> &Vec<u32>| -> Vec<u32> {
        nodes.iter().flat_map(of).copied().collect::<BTreeSet<_>>().into_iter().collect()
    };
    let slow_send_ranks = all(|node| &node.slow_send_ranks);
    let is_whole = |domain: &&Vec<u32>| domain.iter().all(|rank| reported.contains(rank));
    let tensor = nodes.iter().flat_map(|node| &node.slow_communication_domains).filter(is_whole).cloned();
    let next = |rank: &u32| {
        let pairs = pp_groups.iter().flat_map(|group| group.windows(2));
        pairs.filter(|pair| pair[0] == *rank).map(<[u32]>::to_vec).next()
    };
    let mut domains: Vec<Vec<u32>> = tensor.chain(slow_send_ranks.iter().filter_map(next)).collect();
    domains.sort();
    domains.dedup();
    ClusterResult {
        is_slow: u8::from(nodes.iter().any(|node| node.is_slow == 1)),
        degradation_level: worst.map_or_else(|| "0.00%".to_owned(), |node| node.degradation_level.clone()),
        job_id: nodes.first().map(|node| node.job_id.clone()).unwrap_or_default(),
        job_name: job_name.to_owned(),
        node_ranks: nodes.iter().map(|node| node.node_rank.clone()).collect(),
        slow_calculate_ranks: all(|node| &node.slow_calculate_ranks),
        slow_communication_ranks: domains.iter().flatten().copied().collect::<BTreeSet<_>>().into_iter().collect(),
        slow_communication_domains: domains,
        slow_send_ranks,
        slow_host_nodes: nodes.iter().flat_map(|node| node.slow_host_nodes.clone()).collect(),
        slow_io_ranks: Vec::new(),
    }
}

/// Returns the JSON of a job's result: `{"slownode_<jobId>": {"<jobId>": {…}}}`, with the job's name as the inner key
/// if the id is empty.
///
/// # Errors
/// Returns the error of the JSON library; none is known for this type.
pub fn cluster_json(result: &ClusterResult) -> Result<String, serde_json::Error> {
    let key = if result.job_id.is_empty() { &result.job_name } else { &result.job_id };
    serde_json::to_string(&BTreeMap::from([(format!("slownode_{}", result.job_id), BTreeMap::from([(key, result)]))]))
}
