//! MindCluster's slow-node rule: thresholds over a baseline of the first steps, localisation by clustering of
//! collective times, and its JSON results.
//!
//! Known weaknesses are kept: the baseline is that of the first steps, the standard deviation has no effect with the
//! default settings, and slow input is never reported. Where the reference's behaviour is not published, the item
//! states what was chosen.

mod locate;
mod result;
mod series;

pub use locate::late_in_collective;
pub use result::{ClusterResult, NodeResult, cluster_json, cluster_result, node_json};
pub use series::{CommRow, Degradation, ROWS_MAX, RankSeries, degradation};

use serde::{Deserialize, Serialize};

/// Settings of the rule, with the reference's names in JSON (`FeatConf`) and its defaults.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SlowNodeConfig {
    /// Number of first samples that form the baseline. Default: 20.
    #[serde(rename = "normalNumber")]
    pub normal_number: usize,
    /// Standard deviations above the mean that form the bound if `degradation_percentage` is 0. Default: 3.
    #[serde(rename = "nSigma")]
    pub n_sigma: f64,
    /// Part of the mean by which a value has to exceed it. Default: 0.3. 0: `n_sigma` decides.
    #[serde(rename = "degradationPercentage")]
    pub degradation_percentage: f64,
    /// Number of last samples that all have to be anomalies. Default: 3.
    #[serde(rename = "nConsecAnomaliesSignifySlow")]
    pub n_consec: usize,
    /// Minimum ratio of the means of two clusters. Default: 1.3.
    #[serde(rename = "clusterMeanDistance")]
    pub cluster_mean_distance: f64,
}

impl Default for SlowNodeConfig {
    fn default() -> SlowNodeConfig {
        SlowNodeConfig {
            normal_number: 20,
            n_sigma: 3.0,
            degradation_percentage: 0.3,
            n_consec: 3,
            cluster_mean_distance: 1.3,
        }
    }
}

/// What the rule looks at: one host of a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeInput {
    /// Id of the job.
    pub job_id: String,
    /// Address of the host.
    pub node_ip: String,
    /// Series of the host's ranks.
    pub ranks: Vec<RankSeries>,
    /// Tensor-parallel groups of the host's ranks; a rank that is in none forms a group of its own.
    pub tp_groups: Vec<Vec<u32>>,
}

/// Applies the rule to one host.
#[must_use]
pub fn node_result(input: &NodeInput, config: &SlowNodeConfig) -> NodeResult {
    let mut result = NodeResult::new(input);
    let step_times = input.ranks.iter().filter_map(|rank| degradation(&rank.step_times(), config));
    let slow: Vec<Degradation> = step_times.filter(|degradation| degradation.is_slow).collect();
    let worst = slow.iter().map(|degradation| degradation.ratio).fold(0.0, f64::max);
    result.set_degradation(!slow.is_empty(), worst);
    if !slow.is_empty() {
        locate::locate(input, config, &mut result);
    }
    result
}

#[cfg(test)]
mod tests;
