//! The two logs with one order: what a kernel was told and what it commanded, for restarts, replays and people.
//!
//! It never decides anything, never holds the shell up, and never stops a recovery: a log that cannot be written loses
//! records, says so, counts them, and names the gap as soon as it can be written again.
//!
//! Every input has one number ([`Seq`](crate::job::Seq)), the order in which the kernel took it. *Observations* are the
//! bulk: bounded, oldest first out. *Decisions* are all other inputs and all commands. *Snapshots* of the kernel's whole
//! state make a restart short: it takes the newest one and the steps after it.
//!
//! # Files
//! `observations-START-INPUT.log`, `decisions-START-INPUT.log`, `snapshot-START-INPUT.log`: which start of the
//! supervisor wrote it, and its first input (of a snapshot, its last). Every file begins with whose log it is and with
//! which plugins, every record has check sums and can be read alone, and no file is ever written to by a later start.
//! So a torn tail stays where it is, and a new start simply says up to where the old records count. The file `lock` is
//! held by the supervisor that writes, for as long as it lives.
//!
//! ```
//! use std::time::Duration;
//! use taskd_core::job::{JobTime, Name};
//! use taskd_core::journal::{Header, Journal, JournalConfig, dump};
//! use taskd_core::kernel::{Input, Kernel, Plugins};
//!
//! # let scratch = tempfile::tempdir()?;
//! # let dir = scratch.path();
//! let header = Header { job: Name::new("demo"), job_id: "1".into(), ranks: 4, started_unix_ms: 0, plugins: vec![] };
//! let (mut journal, recovered) = Journal::open(dir, header, JournalConfig::default())?;
//! let mut kernel = recovered.resume(Plugins::default()).map_err(|(error, _plugins)| error)?.kernel;
//! let (now, input) = (JobTime::START, Input::Deadline);
//! let commands = kernel.step(now, &input);
//! journal.append(kernel.seq(), now, &input, &commands);
//! if journal.snapshot_due() {
//!     journal.snapshot(&kernel.snapshot());
//! }
//! // `journal.written(kernel.seq()).await`, and the commands may leave
//! assert!(journal.close(Duration::from_secs(10)));
//! dump(dir, &mut std::io::stdout())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A log is as trustworthy as its directory: the check sums find accidents, not forgeries.
//!
//! | file | its part |
//! |---|---|
//! | `record`, `header`, `files` | the format: frames, heads, names |
//! | `append`, `queue`, `writer`, `sync` | writing: the shell's side, and two threads |
//! | `lock` | one supervisor a directory |
//! | `cursor`, `steps`, `history` | reading: one log, both merged, all starts |
//! | `recover` | what a restart finds |
//! | `replay`, `what_if` | the log once more through a kernel, or past other detectors |
//! | `dump`, `text` | for people |

mod append;
mod config;
mod cursor;
mod dump;
mod error;
mod files;
mod header;
mod history;
mod lock;
mod queue;
mod record;
mod recover;
mod replay;
mod status;
mod steps;
mod sync;
pub(crate) mod text;
mod what_if;
mod writer;

pub use append::Journal;
pub use config::JournalConfig;
pub use dump::dump;
pub use error::{JournalError, Missing, Problem};
pub use files::Log;
pub use header::{Difference, FORMAT_VERSION, Header, PluginInfo, PluginKind};
pub use history::{History, Life};
pub use lock::Holder;
pub use recover::Recovered;
pub use replay::{Divergence, MISSING_MAX, Rebuilt, ReplayFrom, ReplayReport, replay};
pub use status::{Gap, Health, JournalCounts, JournalMonitor, LogHealth, Written};
pub use steps::{Entry, Step, Steps};
pub use what_if::{FINDINGS_MAX, Said, WhatIf, what_if};
