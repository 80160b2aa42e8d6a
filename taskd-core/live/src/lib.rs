//! The report page of a run that is still going on, served on loopback.
//!
//! [`LiveReport`] reads the run again and again while a page is open, and sends each page the figures that have changed. The
//! page is the one of [`report::html`](taskd_analysis::report::html). Nothing is served unless a program asks for it.
//!
//! ```no_run
//! use std::path::Path;
//! use taskd_live::{LiveReport, RunDirectory};
//!
//! # async fn supervise(records: &Path, logs: &Path) -> std::io::Result<()> {
//! let run = RunDirectory::new("my job").with_store(records.join("my-task")).with_log(logs);
//! let live = LiveReport::new(run).serve().await?;
//! println!("live report: {}", live.url()); // on the operator's terminal: the address contains the key
//! // ... the job runs ...
//! live.end().await; // the pages show the last figures, and that the run has ended
//! live.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! # Access
//!
//! Every process of the host can reach a port of loopback. A request is answered if its path begins with the server's
//! random token (160 bits, compared in constant time) and its `Host` names this server, which a page of another site that
//! resolves its own name to loopback cannot send. Responses carry no CORS header; the page's policy admits its own script,
//! its own style and its own server. The token is not logged, and not in `Debug` of [`LiveServer`].
//!
//! # What it costs
//!
//! The run is read on a blocking thread, one reading at a time, only while a page is open or was requested, at most every
//! [interval](LiveReport::every), and for at most [a tenth](SHARE_MAX) of the time: a reading of 2 s is followed by 18 s
//! without. [`LiveServer::status`] has the figures, and the page shows them.

mod access;
mod connections;
mod directory;
mod events;
pub mod incidents;
mod limits;
mod reading;
mod routes;
mod server;
pub mod stores;

pub use directory::{BYTES_MAX, RunDirectory};
pub use limits::LiveLimits;
pub use reading::{EVERY_DEFAULT, EVERY_MIN, ReadError, RunSource, SHARE_MAX};
pub use server::{LiveReport, LiveServer};
