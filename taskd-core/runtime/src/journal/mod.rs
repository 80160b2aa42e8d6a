//! Journal: the logs of a kernel's inputs and commands, for restarts, replays and operators.
//!
//! The journal makes no decisions, never blocks the shell, and never stops a recovery. A log that cannot be written
//! loses records. The journal then reports the loss, counts the records, and records the gap as soon as the log can be
//! written again.
//!
//! Every input has a number ([`Seq`](crate::job::Seq)), in the order in which the kernel took the inputs. The two logs
//! share this order. *Observations* are the bulk: their log is bounded, and the oldest are removed first. *Decisions*
//! are all other inputs and all commands. *Snapshots* of the kernel's whole state keep a restart short: it reads the
//! newest snapshot and the steps after it.
//!
//! # Files
//! The files are `observations-START-INPUT.log`, `decisions-START-INPUT.log` and `snapshot-START-INPUT.log`. `START` is
//! the number of the supervisor start that wrote the file. `INPUT` is the number of its first input, or for a snapshot
//! of its last one. Every file begins with a header that names the job and the plugins. Every record has checksums and
//! can be read on its own. No later start writes to a file, so a torn tail stays where it is; the new start records up
//! to which input the old records count. The writing supervisor holds the file `lock` for as long as it lives.
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
//! # Reading a journal
//! Reading takes no lock and changes nothing, so it also works while a supervisor writes. [`dump`] prints every step:
//! lines with `#` name the writer and its plugins, numbered lines are the kernel's inputs, `->` marks its commands, and
//! `!` marks missing or damaged parts.
//!
//! ```text
//! # job digits, 4 ranks, start 1 of the supervisor at unix time 1795276795926 ms, from an empty state
//! #   detector exit version 1 (exact_within_ms=10000)
//!        212        7.470 s  changed: rank 2#1 exited: signal 9 (SIGKILL)
//!              ->  command 31: announce incident 1 opened by exit of rank 2 by exit, confidence 1000 permille, since 7.470 s
//! ```
//!
//! Most of these steps are observations and other routine inputs. [`dump_decisions`] prints the rest: incidents when
//! opened, decided and closed, orders with their answers, and worlds, with UTC wall-clock times and process ids.
//!
//! ```text
//! 2026-11-22T02:40:03.396Z  incident 1 opened by exit of rank 2 by exit, confidence 1000 permille, since 7.470 s (rank 2#1, process 4711 on node n0)
//! ```
//!
//! [`replay`] runs every step again and compares the commands byte for byte. [`what_if`] runs other detectors on the
//! logged observations and returns what they would have found. Both need the plugins with which the log was written,
//! and report the differences. A short program does all three:
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
//! A log is as trustworthy as its directory: checksums detect accidents, not forgeries.
//!
//! The journal writes its inputs unchanged. A [`Runtime`](crate::runtime::Runtime) passes it no secrets of the job:
//! marks replace them, and a later supervisor takes the values from its own job ([`secrets`](crate::secrets)).
//!
//! | file | content |
//! |---|---|
//! | `record`, `form`, `header`, `files` | the format: frames, payloads, headers, names |
//! | `append`, `queue`, `writer`, `sync` | writing: the shell's side, and two threads |
//! | `lock` | one supervisor per directory |
//! | `cursor`, `steps`, `history` | reading: one log, both merged, all starts |
//! | `recover` | state that a restart finds |
//! | `replay`, `what_if` | running a log through a kernel or through other detectors |
//! | `config`, `status`, `error` | limits; health and counters; errors |
//! | `dump`, `text` | plain text for operators |

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
pub(crate) mod what_if;
mod writer;

pub(crate) use crate::kernel::text::on_one_line;
pub use append::Journal;
pub use config::JournalConfig;
pub use dump::{dump, dump_decisions};
pub use error::{JournalError, MissingInputs, Problem};
pub use files::Log;
pub use header::{Difference, FORMAT_VERSION, FORMAT_VERSION_MIN, Header, PluginInfo, PluginKind};
pub use history::{History, Life};
pub use lock::Holder;
pub use recover::Recovered;
pub use replay::{Divergence, MISSING_MAX, Rebuilt, ReplayFrom, ReplayReport, replay};
pub use status::{Gap, Health, JournalCounts, JournalMonitor, LogHealth, Written};
pub use steps::{Entry, Step, Steps};
pub use what_if::{FINDINGS_MAX, WhatIf, WhatIfFinding, what_if};
