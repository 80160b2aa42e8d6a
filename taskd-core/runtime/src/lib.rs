//! The runtime of taskd: launchers and guards, trace sources and the recorder, the journal, and the supervisor's shell.
//!
//! Use this package through `taskd-core`, which re-exports it together with the pure layers of `taskd-kernel`.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod delegate;
pub mod host_history;
pub mod journal;
pub mod launch;
mod private;
mod proc_fs;
pub mod runtime;
#[cfg(feature = "schema")]
pub mod schema;
pub mod secrets;
pub mod trace;
pub mod worker;

use taskd_kernel::redact;
pub use taskd_kernel::{check, detect, job, kernel, recover, state};

/// Re-exports for code that this crate's macros generate in other crates, and for the other packages of `taskd-core`.
#[doc(hidden)]
pub mod __private {
    pub use crate::private::{create as create_private_file, make_dir as make_private_dir};
    pub use taskd_kernel as kernel;
}
