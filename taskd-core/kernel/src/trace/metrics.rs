//! Names of the figures of a training that detectors read, and the form of a checksum of replicas.
//!
//! Ranks report them as [`Signal::Metric`](super::Signal::Metric). This module compares none.

use crate::job::Name;

/// Loss of a step, as the rank computes it before the gradients are reduced.
pub const LOSS: Name = Name::new("loss");

/// Norm of the gradients of a step.
pub const GRAD_NORM: Name = Name::new("grad_norm");

/// Number of the training step to which the figures that follow belong, from 1. A rank reports it before them. Without
/// it the n-th reports of all ranks belong together.
pub const METRIC_STEP: Name = Name::new("metric_step");

/// Number of steps that a gradient scaler has skipped so far, because gradients had overflowed.
pub const SKIPPED_STEPS: Name = Name::new("skipped_steps");

/// First part of the name of a [`ReplicaChecksum`]. The layout of the parameters may follow, and the ranks of the process
/// group do: `replica_checksum.1f0c9a7e|0-3`. Only reports of equal names are compared.
pub const REPLICA_CHECKSUM: Name = Name::new("replica_checksum");

/// Returns true if a metric of this name is a [`ReplicaChecksum`].
#[must_use]
pub fn is_replica_checksum(name: &str) -> bool {
    name.strip_prefix(REPLICA_CHECKSUM.as_str()).is_some_and(|rest| rest.starts_with(['.', '|']))
}

/// A checksum of one part of the parameters that the ranks of a process group keep equal.
///
/// The value of the metric is a whole number of 52 bits, which a 64-bit floating-point number represents exactly: the
/// number of the part in the upper 12 bits, the checksum in the lower 40.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaChecksum {
    /// Number of the part, from 0. Programs divide their parameters into parts, and compute one at a time.
    pub part: u16,
    /// The checksum: the lower 40 bits count.
    pub sum: u64,
}

impl ReplicaChecksum {
    /// Maximum number of parts.
    pub const PARTS_MAX: u16 = 1 << 12;

    /// Number of bits of a checksum.
    pub const SUM_BITS: u32 = 40;

    /// Returns the checksum in a metric's value; `None` if the value is no whole number of 52 bits.
    #[must_use]
    pub fn from_value(value: f64) -> Option<ReplicaChecksum> {
        const END: f64 = (1_u64 << 52) as f64;
        if !(0.0..END).contains(&value) || value.fract() != 0.0 {
            return None;
        }
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a whole number below 2^52")]
        let bits = value as u64;
        let part = u16::try_from(bits >> ReplicaChecksum::SUM_BITS).ok()?;
        Some(ReplicaChecksum { part, sum: bits & ((1 << ReplicaChecksum::SUM_BITS) - 1) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_is_read_from_the_value_that_contains_it() {
        let value = (4095_u64 << 40 | 0xff_ffff_fffe) as f64;
        assert_eq!(ReplicaChecksum::from_value(value), Some(ReplicaChecksum { part: 4095, sum: 0xff_ffff_fffe }));
        assert_eq!(ReplicaChecksum::from_value(0.0), Some(ReplicaChecksum { part: 0, sum: 0 }));
        for wrong in [-1.0, 0.5, f64::NAN, f64::INFINITY, (1_u64 << 52) as f64] {
            assert_eq!(ReplicaChecksum::from_value(wrong), None, "{wrong}");
        }
    }
}
