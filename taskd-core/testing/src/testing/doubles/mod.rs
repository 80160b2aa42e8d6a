//! Doubles for each kind of plugin: a correct one without a machine behind it; [`Faulty`], which makes any plugin slow,
//! failing, panicking or repeating; and [`Counted`], which counts the calls that reach a plugin.
//!
//! The correct doubles keep their contract and pass the [conformance](super::conformance) suites. The faulty ones break
//! one documented clause, for tests of the code around a plugin.
//!
//! | kind | correct double |
//! |---|---|
//! | launcher | [`FakeLauncher`] |
//! | source | [`ScriptedSource`] |
//! | detector | [`HeartbeatDetector`] |
//! | strategy | [`ReplaceStrategy`] |

pub(crate) mod counted;
mod fake_launcher;
mod fake_program;
mod faulty;
mod heartbeat_detector;
mod replace_strategy;
mod scripted_source;

pub use counted::{Calls, Counted};
pub use fake_launcher::FakeLauncher;
pub use fake_program::FakeProgram;
pub use faulty::Faulty;
pub use heartbeat_detector::HeartbeatDetector;
pub use replace_strategy::ReplaceStrategy;
pub use scripted_source::ScriptedSource;

#[cfg(test)]
mod passed_on;
