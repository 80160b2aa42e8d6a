//! The control protocol of a store's process: frames on a Unix socket, with the listeners passed beside them.
//!
//! Only processes of the same user may connect. This module knows no keys.

mod caller;
mod host;
mod wire;

pub use caller::{ControlError, StoreControl};
pub(super) use host::Controllers;
pub use wire::Refusal;
