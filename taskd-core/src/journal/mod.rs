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
//! # Reading one
//! Reading takes no lock and changes nothing, so it also works beside the supervisor that writes. [`dump`] prints what
//! happened, step by step: lines with `#` say who wrote it with which plugins, numbered lines what the kernel was told,
//! `->` what it commanded, `!` what is missing or damaged.
//!
//! ```text
//! # job digits, 4 ranks, start 1 of the supervisor at unix time 1795276795926 ms, from nothing
//! #   detector exit version 1 (exact_within_ms=10000)
//!        212        7.470 s  changed: rank 2#1 exited: signal 9 (SIGKILL)
//!              ->  command 31: announce incident 1 opened by exit of rank 2 by exit, 1000 permille sure, since 7.470 s
//! ```
//!
//! Most of that is what the runtime has waited for. [`dump_decisions`] prints the rest: incidents as they were opened, decided and
//! closed, orders with their answers, and worlds, by the calendar in UTC and with the processes' ids.
//!
//! ```text
//! 2026-11-22T02:40:03.396Z  incident 1 opened by exit of rank 2 by exit, 1000 permille sure, since 7.470 s (rank 2#1, process 4711 on node n0)
//! ```
//!
//! [`replay`] takes every step again and compares the commands, byte for byte; [`what_if`] shows other detectors what
//! was seen then, and says what they would have found. Both need the plugins with which the log was written, and name
//! what differs. A program of a few lines does all three:
//!
//! ```
//! use std::path::Path;
//! use std::time::Duration;
//! use taskd_core::detect::{ExitDetector, SilenceDetector};
//! use taskd_core::journal::{JournalError, ReplayFrom, dump_decisions, replay, what_if};
//! use taskd_core::kernel::Plugins;
//! use taskd_core::recover::Restart;
//!
//! fn plugins() -> Plugins {
//!     Plugins { detectors: vec![Box::new(ExitDetector::new())], strategies: vec![Box::new(Restart::new())] }
//! }
//!
//! fn look_into(dir: &Path) -> Result<(), JournalError> {
//!     dump_decisions(dir, &mut std::io::stdout())?; // or `dump`, for all of it
//!     println!("{}", replay(dir, ReplayFrom::Start, plugins)?);
//!     let keener = SilenceDetector::after(Duration::from_secs(2));
//!     println!("{}", what_if(dir, vec![Box::new(keener)], plugins)?);
//!     Ok(())
//! }
//!
//! let error = look_into(Path::new("/proc/self/task")).unwrap_err().to_string();
//! assert!(error.starts_with("there is no log in /proc/self/task: name the directory"));
//! ```
//!
//! A log is as trustworthy as its directory: the check sums find accidents, not forgeries.
//!
//! It writes what it is given. A [`Runtime`](crate::runtime::Runtime) gives it no secrets of the job: marks stand in their place, and
//! a later supervisor has the values from its own job ([`secrets`](crate::secrets)).
//!
//! | file | its part |
//! |---|---|
//! | `record`, `form`, `header`, `files` | the format: frames, payloads, heads, names |
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
mod form;
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
pub use dump::{dump, dump_decisions};
pub use error::{JournalError, Missing, Problem};
pub use files::Log;
pub use header::{Difference, FORMAT_VERSION, FORMAT_VERSION_MIN, Header, PluginInfo, PluginKind};
pub use history::{History, Life};
pub use lock::Holder;
pub use recover::Recovered;
pub use replay::{Divergence, MISSING_MAX, Rebuilt, ReplayFrom, ReplayReport, replay};
pub use status::{Gap, Health, JournalCounts, JournalMonitor, LogHealth, Written};
pub use steps::{Entry, Step, Steps};
pub(crate) use text::on_one_line;
pub use what_if::{FINDINGS_MAX, Said, WhatIf, what_if};
