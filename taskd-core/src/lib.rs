//! Embeddable fault-tolerant training runtime: traits, a deterministic kernel, a local launcher with a guard.
//!
//! A program says what to run and composes a runtime from four kinds of plugins; the runtime starts the ranks, watches them,
//! decides what to do when something breaks, and says why.
//!
//! **The [guide] can be read from front to back**, beginning with the [quick start](guide::quick_start) and the
//! [concepts](guide::concepts).
//!
//! | question | trait | built in |
//! |---|---|---|
//! | what is every rank doing? | [`TraceSource`](trace::TraceSource) | [`Heartbeats`](launch::Heartbeats), sources over [foreign processes](launch::ForeignProcs) |
//! | is something wrong? | [`FaultDetector`](detect::FaultDetector) | [exit, failed step, program error, silence, stall, hang, restart storm, shrunk world](detect::defaults), [slow rank](detect::SlowRankDetector), any [closure](detect::detector()) |
//! | what would mend it? | [`RecoveryStrategy`](recover::RecoveryStrategy) | [retry, recover-in-place, recover, shrink, grow, dump, restart, dump-exit, exit](recover::defaults) |
//! | start, stop, watch | [`Launcher`](launch::Launcher) | [`LocalLauncher`](launch::LocalLauncher), [`Fleet`](launch::Fleet), [`ForeignProcs`](launch::ForeignProcs) |
//!
//! [`Runtime`](runtime::Runtime) puts them together; [`RuntimeHandle`](runtime::RuntimeHandle) is what one holds while the job
//! runs; the [`journal`] is the log from which every decision can be replayed.
//!
//! | feature | what it adds |
//! |---|---|
//! | `test-util` | `testing` (conformance suites, doubles, mocks) and `sim` (seeded jobs around the real kernel), for dev-dependencies |
//! | `schema` | the JSON schemas of jobs, events, reports and the control socket as functions |
//! | `venv` | `launch::python::venv`: the Python environment that a framework's examples and tests run |

mod delegate;
pub mod detect;
// The guide names what tests use, too, which is there with `test-util`.
#[cfg_attr(not(feature = "test-util"), allow(rustdoc::broken_intra_doc_links))]
pub mod guide;
pub mod job;
pub mod journal;
pub mod kernel;
pub mod launch;
mod private;
pub mod recover;
pub mod runtime;
#[cfg(feature = "schema")]
pub mod schema;
pub mod secrets;
#[cfg(feature = "test-util")]
pub mod sim;
#[cfg(feature = "test-util")]
pub mod testing;
pub mod trace;
pub mod worker;

/// What macros of this crate need where they are used.
#[doc(hidden)]
pub mod __private {
    pub use bytes::Bytes;
}

/// The README's example is compiled like all others.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
