//! Analysis of training traces: pure functions from the events of all ranks to figures, and the report that shows them.
//!
//! ```text
//! readers (taskd's stores, Kineto, ASCEND_PROFILER_OUTPUT) ──▶ model::Trace ──▶ analysis functions ──▶ document::Analysis
//!                                                                                                        │
//!                                                                     report: HTML, SVG, terminal, JSON ◀┘
//! ```
//!
//! A reader knows one format and no analysis; an analysis function knows no format; a report computes nothing.

pub mod document;
pub mod model;
pub mod report;
pub mod summary;
