//! The guide: how to embed taskd, how to write plugins for it, and how to run it. It can be read from front to back.
//!
//! | page | task |
//! |---|---|
//! | [`quick_start`] | run a job under supervision from your own program |
//! | [`concepts`] | understand ranks, incarnations, worlds, incidents and the ladder of strategies |
//! | [`source`] | report your own facts to the runtime |
//! | [`detector`] | detect faults |
//! | [`strategy`] | propose a recovery |
//! | [`launcher`] | start processes in your own way |
//! | [`testing`] | test whether a plugin keeps its contract |
//! | [`embedding`] | embed the runtime in a larger program: the guard, and the ways to leave a job |
//! | [`operators`] | drain, pause, approve, explain; report faults from other systems |
//! | [`tracing`] | record every rank, switch the recording while it trains, find slow and hanging ranks |
//! | [`diagnosing`] | find out which rank is slow or stuck, why, and what that costs |
//! | [`recovering`] | keep the surviving ranks of a PyTorch script, with a few more lines in it |
//! | [`observing`] | observe a job that another system runs, without changing it |
//! | [`porting`] | add another framework, or another vendor's devices |
//! | [`exit_codes`] | report the outcome to scripts and service managers |
//! | [`formats`] | read logs, write jobs as JSON, and keep both across versions |
//! | [`environment`] | look up the environment variables of taskd |
//! | [`glossary`] | translate the terms to those of torch, Kubernetes, MindCluster, DLRover and NVIDIA's extension |
//!
//! Every example is compiled; tests run the four plugins and the program for recovery exactly as shown. The
//! documentation of each item has the details; this guide shows how the items work together.

#[doc = include_str!("quick_start.md")]
pub mod quick_start {}

#[doc = include_str!("concepts.md")]
pub mod concepts {}

/// Write a source: what is every rank doing?
///
/// A [`TraceSource`](crate::trace::TraceSource) reports facts. It does not judge them: a temperature of 120 degrees is
/// a fact like any other. This source follows a file to which a training script writes its loss.
///
/// ```
#[doc = include_str!("plugins/source.rs")]
/// ```
///
#[doc = include_str!("source.md")]
pub mod source {}

/// Write a detector: is something wrong, where, since when, and with what confidence?
///
/// A [`FaultDetector`](crate::detect::FaultDetector) receives every observation, in order, and reports faults. This one
/// checks the loss that [the source](crate::guide::source) reports.
///
/// ```
#[doc = include_str!("plugins/detector.rs")]
/// ```
///
#[doc = include_str!("detector.md")]
pub mod detector {}

/// Write a strategy: what would repair the job, and at what cost?
///
/// A [`RecoveryStrategy`](crate::recover::RecoveryStrategy) receives an incident and returns a proposal, or the reason
/// for none. This one is for jobs whose ranks work without each other's state, such as an evaluation: only the lost
/// ranks start again.
///
/// ```
#[doc = include_str!("plugins/strategy.rs")]
/// ```
///
#[doc = include_str!("strategy.md")]
pub mod strategy {}

/// Write a launcher: start, stop and watch processes in your own way.
///
/// Most launchers of a team wrap another [`Launcher`](crate::launch::Launcher): they change the orders to start, and
/// leave the rest to it. This one assigns a device to each rank, through an environment variable.
///
/// ```
#[doc = include_str!("plugins/launcher.rs")]
/// ```
///
#[doc = include_str!("launcher.md")]
/// ```
#[doc = include_str!("plugins/children.rs")]
/// ```
///
/// Next: [test them](crate::guide::testing).
pub mod launcher {}

#[doc = include_str!("testing.md")]
pub mod testing {}

#[doc = include_str!("embedding.md")]
pub mod embedding {}

#[doc = include_str!("operators.md")]
pub mod operators {}

#[doc = include_str!("tracing.md")]
pub mod tracing {}

#[doc = include_str!("diagnosing.md")]
pub mod diagnosing {}

#[doc = include_str!("recovering.md")]
///
/// # plain_steps.py
///
/// For [scripts that also run elsewhere](#where-the-module-comes-from):
///
/// ```python
#[doc = include_str!("plain_steps.py")]
/// ```
///
/// # A whole host program
///
/// It needs `taskd-core`, `taskd-pytorch`, `tokio` and `tracing-subscriber`, and runs any PyTorch script; one without
/// `taskd.steps` is restarted from its own checkpoints. Guard and store are this same program, started again: where
/// `store::init()` is missing, [`build`](crate::runtime::RuntimeBuilder::build) refuses the job and names what to call.
/// The repository compiles this program, and a test of it runs it with the script below.
///
/// ```ignore
#[doc = include_str!("programs/recovering.rs")]
/// ```
///
/// With this script, `my-host /var/lib/my-job python3 train.py 400` trains on when one of the two ranks is killed, and
/// only that rank is started again:
///
/// ```python
#[doc = include_str!("programs/train.py")]
/// ```
pub mod recovering {}

#[doc = include_str!("observing.md")]
pub mod observing {}

#[doc = include_str!("porting.md")]
pub mod porting {}

#[doc = include_str!("exit_codes.md")]
pub mod exit_codes {}

#[doc = include_str!("formats.md")]
pub mod formats {}

#[doc = include_str!("environment.md")]
pub mod environment {}

#[doc = include_str!("glossary.md")]
pub mod glossary {}
