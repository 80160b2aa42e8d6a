//! Selection of the recorded kinds: the request, the effective switches, and every rank's state.
//!
//! This module stores nothing and reads no records: it writes one word of each recorder's file, and reads the state
//! that the process reports there.
//!
//! # In one program
//! ```
//! use taskd_core::trace::switches::{Mode, Requested, effective};
//!
//! let document = br#"{"CommunicationOperator":"off","Step":"on","SaveCheckpoint":"off","FP":"off","DataLoader":"off"}"#;
//! let (requested, unknown) = Requested::parse(document).expect("a profilingSwitch document");
//! assert!(unknown.is_empty());
//! // By the compatible rule four kinds go together, and communication by itself.
//! let everything_but_communication = effective(&requested, Mode::Compatible);
//! assert_ne!(everything_but_communication, effective(&requested, Mode::Native));
//! ```
//!
//! | file | purpose |
//! |---|---|
//! | `rule` | the effective switches of a request |
//! | `control` | one request for all recorders |
//! | `status` | the state of every rank, and a summary of all ranks |
//! | `watch` | a watched file that switches |

mod control;
mod rule;
mod status;
mod watch;

pub use control::{SwitchHandle, TraceControl};
pub use rule::{KINDS, effective, of_kind};
pub use status::{KindState, KindSummary, Overall, RANKS_SHOWN_MAX, RankStatus, TraceStatus};
pub use taskd_kernel::trace::switches::{Changed, Mode, PerKind, Requested, Switch, SwitchError, by_rule};
pub use watch::{FILE_BYTES_MAX, FileStatus, LOOK_EVERY, SwitchFile};
