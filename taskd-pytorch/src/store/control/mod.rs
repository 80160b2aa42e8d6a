//! Telling a store's process what to serve: frames on a Unix socket, with the listener itself beside them.
//!
//! Only processes of the same user may speak there. Nothing here knows a key.

mod caller;
mod host;
mod wire;

pub use caller::{ControlError, StoreControl};
pub(super) use host::Controllers;
pub use wire::Refusal;
