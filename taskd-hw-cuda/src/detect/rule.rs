//! Bounds for GPU metrics, as data: the limit, the samples or time that violate it, and the condition for the end.
//!
//! Violations have fault classes of their own, which no strategy acts on.

use crate::health::metric;
use std::fmt;
use std::time::Duration;
use taskd_core::job::Name;

/// Maximum number of samples that one rule considers.
pub(super) const SAMPLES_MAX: u32 = 64;

/// Limit with which a [`Rule`] compares a metric.
#[derive(Clone, Debug, PartialEq)]
pub enum Limit {
    /// A constant, in the unit of the metric.
    Value(f64),
    /// The value of another metric of the same device. The rule applies only if the device reports that metric with a
    /// value above 0.
    Metric(Name),
}

/// Condition under which a metric violates a [`Rule`].
#[derive(Clone, Debug, PartialEq)]
pub enum Way {
    /// The metric is at or above the limit in `least` of the last `of` samples.
    Level {
        /// Minimum number of samples at or above the limit that is a violation, 1 to `of`.
        least: u32,
        /// Number of latest samples that the rule considers, 1 to 64.
        of: u32,
    },
    /// The metric has grown by at least the limit within the time `within`.
    Growth {
        /// Time within which growth by the limit is a violation.
        within: Duration,
    },
}

/// A bound for one metric of every GPU, with advice for the case that a GPU violates it.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Name of the rule, unique among the rules of a detector. It is the class of the faults that report violations.
    pub name: Name,
    /// Name of the metric that the rule limits, one of [`metric::ALL`].
    pub metric: Name,
    /// Limit for the metric: a level or growth at or above the limit counts as a violation, as [`way`](Self::way)
    /// states.
    pub limit: Limit,
    /// Condition for a violation: the level of the metric in several samples, or the metric's growth within a time.
    pub way: Way,
    /// Distance below the limit, in the metric's unit. A violation by level ends once the metric has stayed at least
    /// this far below the limit for the time `over_after`. Not used for growth.
    pub margin: f64,
    /// Time for which the metric has to stay `margin` below the limit, or must not grow, before a violation ends.
    pub over_after: Duration,
    /// Recommended action for the operator in the case of a violation, as a sentence.
    pub advice: String,
}

impl Rule {
    /// Returns the default rules for the metrics of GPUs. Where DCGM defines a limit (PCIe replays, NVLink CRC errors
    /// and recoveries), the rules have the limit of NVIDIA's diagnostics.
    #[must_use]
    pub fn usual() -> Vec<Rule> {
        usual()
    }

    /// Creates a rule for a metric's level. It is violated if three of the last five samples are at or above `limit`.
    /// The violation ends once the metric has stayed at least `margin` below the limit for 30 s.
    #[must_use]
    pub fn level(name: impl Into<Name>, metric: Name, limit: Limit, margin: f64, advice: &str) -> Rule {
        let way = Way::Level { least: 3, of: 5 };
        let over_after = Duration::from_secs(30);
        Rule { name: name.into(), metric, limit, way, margin, over_after, advice: advice.into() }
    }

    /// Creates a rule for a metric's growth. It is violated if the metric grows by `by` or more within 60 s. The
    /// violation ends after 300 s without growth.
    #[must_use]
    pub fn growth(name: impl Into<Name>, metric: Name, by: f64, advice: &str) -> Rule {
        let way = Way::Growth { within: Duration::from_secs(60) };
        let (limit, over_after) = (Limit::Value(by), Duration::from_secs(300));
        Rule { name: name.into(), metric, limit, way, margin: 0.0, over_after, advice: advice.into() }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rule { name, metric, margin, .. } = self;
        write!(f, "{name}: {metric}")?;
        match &self.limit {
            Limit::Value(value) => write!(f, ">={value}")?,
            Limit::Metric(other) => write!(f, ">={other}")?,
        }
        match &self.way {
            Way::Level { least, of } => write!(f, " {least}/{of}")?,
            Way::Growth { within } => write!(f, " more in {} ms", within.as_millis())?,
        }
        write!(f, " margin={margin} over_ms={}", self.over_after.as_millis())
    }
}

/// Returns the default rules. Limits are those of NVIDIA's diagnostics where DCGM defines them (PCIe replays, NVLink
/// CRC errors and recoveries).
pub(super) fn usual() -> Vec<Rule> {
    let once = |name: &'static str, metric: Name, advice: &str| {
        let rule = Rule::level(name, metric, Limit::Value(1.0), 0.0, advice);
        Rule { way: Way::Level { least: 1, of: 1 }, over_after: Duration::ZERO, ..rule }
    };
    let (cool, power) = ("check the node's fans, air flow and room", "check the node's power supply");
    vec![
        Rule::level("gpu-hot", metric::TEMPERATURE, Limit::Metric(metric::TEMPERATURE_SLOWDOWN), 5.0, cool),
        Rule::level(
            "gpu-memory-hot",
            metric::MEMORY_TEMPERATURE,
            Limit::Metric(metric::MEMORY_TEMPERATURE_MAX),
            5.0,
            cool,
        ),
        Rule::level("gpu-slowed-by-heat", metric::THROTTLE_HW_THERMAL, Limit::Value(1.0), 0.0, cool),
        Rule::level("gpu-slowed-by-power", metric::THROTTLE_POWER_BRAKE, Limit::Value(1.0), 0.0, power),
        once(
            "gpu-rows-used-up",
            metric::ROW_REMAP_FAILED,
            "no spare rows are left for bad memory: run NVIDIA's field diagnostic, and replace the card if it fails",
        ),
        Rule::growth(
            "gpu-memory-errors",
            metric::ECC_UNCORRECTED_VOLATILE,
            1.0,
            "the driver ended the processes that used the bad memory; reset the GPU when it is free",
        ),
        Rule::growth("gpu-pcie-replays", metric::PCIE_REPLAY, 8.0, "check the card's seat and the PCIe slot"),
        Rule::growth("gpu-nvlink-recoveries", metric::NVLINK_RECOVERY, 1.0, "check NVLink (nvidia-smi nvlink -e)"),
        Rule::growth("gpu-nvlink-check-sums", metric::NVLINK_CRC_FLIT, 6000.0, "check NVLink (nvidia-smi nvlink -e)"),
    ]
}
