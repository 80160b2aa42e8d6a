//! Bounds for figures, as data: what is too much, for how long, and when it is over.
//!
//! They name no class of fault that a strategy would act on.

use crate::health::metric;
use std::fmt;
use std::time::Duration;
use taskd_core::job::Name;

/// Most samples that one rule looks at.
pub(super) const SAMPLES_MAX: u32 = 64;

/// What a figure is compared with.
#[derive(Clone, Debug, PartialEq)]
pub enum Limit {
    /// This value.
    Value(f64),
    /// Another figure of the same device, where the device has it, and it is above 0.
    Metric(Name),
}

/// How a figure is compared.
#[derive(Clone, Debug, PartialEq)]
pub enum Way {
    /// It is at the limit or beyond in `least` of the last `of` samples.
    Level {
        /// At least 1.
        least: u32,
        /// At least `least`, at most 64.
        of: u32,
    },
    /// It has grown by the limit or more within this time.
    Growth {
        /// The time.
        within: Duration,
    },
}

/// A bound for one figure of every GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Under which it is told; unique among the rules.
    pub name: Name,
    /// What is bounded, one of [`metric::ALL`].
    pub metric: Name,
    /// Where it begins.
    pub limit: Limit,
    /// For how long.
    pub way: Way,
    /// It is over when a level has stayed below its limit by more than this, in the figure's unit ...
    pub margin: f64,
    /// ... or growth has stayed away, for this time.
    pub over_after: Duration,
    /// What to do, as a sentence.
    pub advice: String,
}

impl Rule {
    /// The rules that there are unless somebody says otherwise.
    #[must_use]
    pub fn usual() -> Vec<Rule> {
        usual()
    }

    /// A level's usual way to be judged: three of five samples; over after half a minute.
    #[must_use]
    pub fn level(name: impl Into<Name>, metric: Name, limit: Limit, margin: f64, advice: &str) -> Rule {
        let way = Way::Level { least: 3, of: 5 };
        let over_after = Duration::from_secs(30);
        Rule { name: name.into(), metric, limit, way, margin, over_after, advice: advice.into() }
    }

    /// So much growth within a minute; over after five without.
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

/// Where NVIDIA's diagnostics draw a line (DCGM: replays over PCIe, NVLink's check sums and recoveries), it is drawn there.
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
            "no spare rows are left for bad memory: run NVIDIA's field diagnostic, and replace the card when it says so",
        ),
        Rule::growth(
            "gpu-memory-errors",
            metric::ECC_UNCORRECTED_VOLATILE,
            1.0,
            "what held the bad memory was ended by the driver; reset the GPU when it is free",
        ),
        Rule::growth("gpu-pcie-replays", metric::PCIE_REPLAY, 8.0, "check the card's seat and the PCIe slot"),
        Rule::growth("gpu-nvlink-recoveries", metric::NVLINK_RECOVERY, 1.0, "check NVLink (nvidia-smi nvlink -e)"),
        Rule::growth("gpu-nvlink-check-sums", metric::NVLINK_CRC_FLIT, 6000.0, "check NVLink (nvidia-smi nvlink -e)"),
    ]
}
