//! Rules of other systems, for comparison with the detectors of this crate on the same data: MindCluster's slow-node
//! rule and msprof-analyze's slow-rank rule.
//!
//! Pure functions over data. They reproduce the rules with their weaknesses; nothing here is registered by default.

pub mod slow_node;
pub mod slow_rank_dixon;
