//! Embeddable fault-tolerant training runtime: traits, a deterministic kernel, and a local launcher with a guard.
//!
//! A program describes the job and composes a runtime from four kinds of plugins. The runtime starts the ranks,
//! monitors them, decides what to do when something fails, and reports the reason for each decision.
//!
//! **The [guide] can be read from front to back**, beginning with the [quick start](guide::quick_start) and the
//! [concepts](guide::concepts).
//!
//! | question | trait | built in |
//! |---|---|---|
//! | what is every rank doing? | [`TraceSource`] | [`Heartbeats`](launch::Heartbeats), sources over [external processes](launch::ExternalProcs) |
//! | is something wrong? | [`FaultDetector`] | [exit, failed step, program error, silence, stall, hang, restart storm, shrunk world](detect::defaults), [slow rank](detect::SlowRankDetector), any [closure](detect::detector_fn()) |
//! | what would repair it? | [`RecoveryStrategy`] | [retry, recover-in-place, recover, shrink, grow, dump, restart, dump-exit, exit](recover::defaults) |
//! | how are processes started, stopped and watched? | [`Launcher`] | [`LocalLauncher`], [`MultiHostLauncher`](launch::MultiHostLauncher), [`ExternalProcs`](launch::ExternalProcs) |
//!
//! [`Runtime`] combines the plugins. [`RuntimeHandle`] controls a running job. The [`journal`] is the log from which
//! every decision can be replayed.
//!
//! The names that every host program needs are at the root, so that a first program imports from one place:
//!
//! ```no_run
//! use std::{sync::Arc, time::Duration};
//! use taskd_core::{JobSpec, LocalLauncher, Outcome, Runtime, WorkerSpec, detect, guard, recover};
//!
//! # async fn supervise() -> Result<(), Box<dyn std::error::Error>> {
//! guard::init(); // first thing in `main`
//! let launcher = Arc::new(LocalLauncher::builder("/var/run/my-job").build().await?);
//! let report = Runtime::builder()
//!     .job(JobSpec::new("my-job", 8, WorkerSpec::new(["./train"])))
//!     .source(launcher.heartbeats(Duration::from_secs(2)))
//!     .detectors(detect::defaults())
//!     .strategies(recover::defaults())
//!     .launcher(launcher)
//!     .build()?
//!     .run()
//!     .await;
//! assert!(matches!(report.outcome, Outcome::Completed));
//! # Ok(())
//! # }
//! ```
//!
//! | feature | what it adds |
//! |---|---|
//! | `test-util` | `testing` (conformance suites, test doubles, mocks) and `sim` (seeded jobs around the real kernel), for dev-dependencies |
//! | `analysis` | `analysis`: figures and a report page from the traces of all ranks |
//! | `cluster` | `cluster`: jobs on many hosts, with agents and a manager over gRPC |
//! | `live` | `live`: that page of a run that is going on, served on loopback |
//! | `schema` | functions that return the JSON schemas of jobs, events, reports and the control socket |
//! | `venv` | `launch::python::venv`: the Python environment in which a framework's examples and tests run |

#![cfg_attr(docsrs, feature(doc_cfg))]

// The guide also links to test helpers, which exist only with the feature `test-util`.
#[cfg_attr(not(feature = "test-util"), allow(rustdoc::broken_intra_doc_links))]
pub mod guide;

#[cfg(feature = "analysis")]
#[doc(inline)]
pub use taskd_analysis as analysis;
#[cfg(feature = "cluster")]
#[doc(inline)]
pub use taskd_cluster as cluster;
#[cfg(feature = "live")]
#[doc(inline)]
pub use taskd_live as live;
pub use taskd_runtime::delegate;
#[cfg(feature = "schema")]
#[doc(inline)]
pub use taskd_runtime::schema;
#[doc(inline)]
pub use taskd_runtime::{
    detect, host_history, job, journal, kernel, launch, recover, runtime, secrets, state, trace, worker,
};
#[doc(no_inline)]
pub use taskd_runtime::{
    detect::FaultDetector,
    job::{JobSpec, Policy, WorkerSpec},
    kernel::{JobReport, Outcome},
    launch::{Launcher, LocalLauncher, guard},
    recover::RecoveryStrategy,
    runtime::{Runtime, RuntimeBuilder, RuntimeHandle, exit_code},
    trace::TraceSource,
    worker::Lifeline,
};
#[cfg(feature = "test-util")]
#[doc(inline)]
pub use taskd_testing::{sim, testing};

/// Compiles the example in the README as a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
