//! The guide: how to embed taskd, how to write plugins for it, and how to run it. It can be read from front to back.
//!
//! | page | what you can do after it |
//! |---|---|
//! | [`quick_start`] | run a job under supervision from a program of yours |
//! | [`concepts`] | read what the runtime says: ranks, incarnations, worlds, incidents, the ladder |
//! | [`source`] | bring facts of your own into it |
//! | [`detector`] | say what is wrong |
//! | [`strategy`] | say what would mend it |
//! | [`launcher`] | start processes your way |
//! | [`testing`] | find out whether your plugin keeps its contract |
//! | [`embedding`] | live in a larger program: the guard, and the ways to leave a job |
//! | [`operators`] | drain, pause, approve, ask why; report faults from outside |
//! | [`tracing`] | see what every rank does, switch it while it trains, find out who is slow and who hangs |
//! | [`recovering`] | keep the ranks that live, in a PyTorch script with a few lines more |
//! | [`observing`] | watch a job that something else runs, and touch nothing |
//! | [`porting`] | bring another framework, or another vendor's devices |
//! | [`exit_codes`] | tell scripts and service managers how it went |
//! | [`formats`] | read logs, write jobs as JSON, keep both over versions |
//!
//! Every example is compiled, the four plugins are tested as they stand here, and the program for recovery is run as it stands here. What an item does in detail is said
//! where it is defined; this guide says how the items go together.

#[doc = include_str!("quick_start.md")]
pub mod quick_start {}

#[doc = include_str!("concepts.md")]
pub mod concepts {}

/// Write a source: what is every rank doing?
///
/// A [`TraceSource`](crate::trace::TraceSource) brings facts. It judges nothing: a temperature of 120 degrees is a fact like
/// any other. This one follows a file into which a training script writes its loss.
///
/// ```
#[doc = include_str!("plugins/source.rs")]
/// ```
///
#[doc = include_str!("source.md")]
pub mod source {}

/// Write a detector: is something wrong, where, since when, and how sure are we?
///
/// A [`FaultDetector`](crate::detect::FaultDetector) sees every observation, in order, and says what is wrong. This one looks
/// at the loss that [the source](crate::guide::source) tells.
///
/// ```
#[doc = include_str!("plugins/detector.rs")]
/// ```
///
#[doc = include_str!("detector.md")]
pub mod detector {}

/// Write a strategy: what would mend it, and at what cost?
///
/// A [`RecoveryStrategy`](crate::recover::RecoveryStrategy) looks at an incident and proposes, or says why it cannot help.
/// This one is for jobs whose ranks work side by side without each other's state, such as an evaluation: only those that
/// were lost start anew, and the others are not touched.
///
/// ```
#[doc = include_str!("plugins/strategy.rs")]
/// ```
///
#[doc = include_str!("strategy.md")]
pub mod strategy {}

/// Write a launcher: start, stop and watch processes your way.
///
/// Most launchers of a team's own stand around another [`Launcher`](crate::launch::Launcher): they change what is started,
/// and leave the rest to it. This one gives each rank a device of its own, as a container's or a framework's environment
/// would be set.
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
/// It needs `taskd-core`, `taskd-pytorch`, `tokio` and `tracing-subscriber`, and runs any PyTorch script; one without `taskd.steps`
/// is restarted from its own checkpoints. Guard and store are this same program, started again: where `store::init()` is missing,
/// [`build`](crate::runtime::RuntimeBuilder::build) refuses the job and names what to call. The repository compiles this program,
/// and a test of it runs it with the script below.
///
/// ```ignore
#[doc = include_str!("programs/recovering.rs")]
/// ```
///
/// With this script, `my-host /var/lib/my-job python3 train.py 400` trains on when one of the two ranks is killed, and only that
/// rank is started again:
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
