//! Analysis of training traces: pure functions from the events of all ranks to figures, and the report that shows them.
//!
//! ```text
//! readers (taskd's stores, Kineto, ASCEND_PROFILER_OUTPUT) ──▶ model::Trace ──▶ analysis functions ──▶ document::Analysis
//!                                                                                                        │
//!                                                                     report: HTML, SVG, terminal, JSON ◀┘
//! ```
//!
//! A reader knows one format and no analysis; an analysis function knows no format; a report computes nothing.

mod activity;
mod analyze;
mod boxes;
mod breakdown;
mod clocks;
mod communication;
pub mod comparison;
mod critical_path;
pub mod decimal;
pub mod document;
mod group_role;
mod hints;
mod index;
pub mod intervals;
pub mod kernels;
mod limits;
mod links;
mod matches;
pub mod model;
mod overlap;
mod pairing;
#[cfg(feature = "records")]
pub mod records;
mod reference;
pub mod report;
mod stages;
pub mod summary;
#[cfg(any(test, feature = "test-util"))]
pub mod synthetic;
mod tables;
mod timeline;
mod verdict;
mod waits;
pub mod what_if;

pub use analyze::{Settings, analyze};
pub use comparison::compare;
pub use hints::Thresholds;
pub use reference::{ReferenceRules, reference_rules};
pub use verdict::VerdictRule;
