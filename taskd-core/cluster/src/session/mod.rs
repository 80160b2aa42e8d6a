//! Sessions between an agent and a manager: frames that survive the loss of a connection, and calls over them.

mod calls;
mod link;
mod window;

pub(crate) use calls::{CallError, Calls, Outgoing, Request, Sent};
pub(crate) use link::{Link, LinkEnd};
pub(crate) use window::WindowBounds;
#[cfg(feature = "test-util")]
pub(crate) use window::{Taken, Window};
