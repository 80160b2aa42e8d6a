//! A store server that speaks the wire protocol of torch's `TCPStore`, so that no rank has to host the store.
//!
//! torch's own server lives in a rank (or in torchrun's agent) and dies with that process, serves all attempts from one
//! set of keys, and looks up the host name of every client that connects. This server is a process of its own, has
//! separate keys, listener and clients for each generation, and looks up no names. Clients are torch's own, unmodified:
//! `TCPStore(..., is_master=False)` of torch 2.9, with either setting of `use_libuv`, and everything built on that
//! (`PrefixStore`, `init_process_group`, torchelastic with `TORCHELASTIC_USE_AGENT_STORE=True`).
//!
//! - [`Server`] is the store, for embedding in another process: it runs in the caller's thread, without an async
//!   runtime.
//! - [`init`] and the program `taskd-store` run a [`Server`] as a process of its own; [`StoreProgram::command`] returns
//!   the command line of that process.
//! - [`StoreControl`] is a client of that process's control socket. It adds and retires the generations that the store
//!   serves.
//!
//! # Where it differs from torch's server
//! A correct program sees the same behaviour as with torch 2.9.1's libuv server; the tests run one program against
//! both. The following mistakes of torch's server are not repeated:
//!
//! | case | torch's libuv server | here |
//! |---|---|---|
//! | `compare_set` that sets nothing, for a missing key | wakes the clients that wait for that key | no client is woken |
//! | a `wait` for several names, one of them a queue with values | waits for another push to that queue | that name counts as present |
//! | two pushes to one of two queues in a wait | count as both | count once |
//! | a wait that a queue ended | its leftover can end a later wait of the same client for another key | it is over |
//! | `multi_set` that arrives in parts | its first keys are set again with every part | every key is set once |
//! | a client that does not send `validate` first | its first bytes are ignored, the rest is executed | it is closed |
//!
//! # Bounds
//! [`Limits`] lists the bounds and their defaults, [`Bound::action`] returns what the store does at a bound, and
//! [`Stats::at_bound`] counts how often each bound was reached. In torch's protocol `set` and similar requests have no
//! answer. If such a request cannot be carried out, the store therefore closes the client's connection, so that the
//! client's next call fails instead of the client taking the request for done.

mod client;
mod control;
mod entry;
mod inherited;
mod limits;
mod outbox;
mod peer;
mod poller;
mod server;
mod space;
mod stats;
mod value;
mod wire;

pub use control::{ControlError, Refusal, StoreControl};
pub(crate) use entry::{BECOME, init_was_called};
pub use entry::{StartError, StoreProgram, init, main};
pub use limits::{AtBound, Bound, Limits, LimitsError, ParseLimitError};
pub use server::Server;
pub use stats::{GenerationStats, Stats};
pub use wire::Query;
