//! Which kinds are recorded: what is asked for, what becomes of it, and how every rank stands.
//!
//! It stores nothing and takes no record out: it writes one word of each recorder's file, and reads what the process says there.
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
//! | file | its part |
//! |---|---|
//! | `requested` | the kinds, and the document that switches them |
//! | `rule` | what a request comes to, by the compatible rule and by the native one |
//! | `control` | one request for all recorders |
//! | `status` | how every rank stands, and all of them in one word |
//! | `watch` | a file that switches |

mod control;
mod requested;
mod rule;
mod status;
mod watch;

pub use control::{SwitchHandle, TraceControl};
pub use requested::{Changed, PerKind, Requested, Switch, SwitchError};
pub use rule::{Mode, by_rule, effective};
pub use status::{KindState, KindSummary, Overall, RANKS_SHOWN_MAX, RankStatus, TraceStatus};
pub use watch::{FILE_BYTES_MAX, FileStatus, LOOK_EVERY, SwitchFile};
