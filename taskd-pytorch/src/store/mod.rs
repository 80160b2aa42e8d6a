//! A store server that speaks the wire protocol of torch's `TCPStore`, so that no rank has to host the store.
//!
//! torch's own server lives in a rank (or in torchrun's agent) and dies with it, serves all attempts from one set of
//! keys, and queries the name service about every client that connects. This server is a process of its own, has
//! separate keys, listener and clients for each generation, and makes no name queries. Clients are torch's own,
//! unmodified: `TCPStore(..., is_master=False)` of torch 2.9, with either setting of `use_libuv`, and everything built
//! on it (`PrefixStore`, `init_process_group`, torchelastic with `TORCHELASTIC_USE_AGENT_STORE=True`).
//!
//! - [`Server`] is the store: one thread, no runtime, for embedding in another process.
//! - [`init`] and the program `taskd-store` run it as a process; [`StoreProgram::command`] returns the command that
//!   starts it.
//! - [`StoreControl`] selects the generations that this process serves.
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
//! | a client that is not validated | its first bytes are ignored, and what follows is carried out | it is closed |
//!
//! # Bounds
//! [`Limits`] names every bound and its default, [`Bound::action`] describes the consequence, and [`Stats::at_bound`]
//! counts it. `set` and similar requests have no answer in this protocol. A client whose request cannot be carried out
//! is therefore closed, which its next call reports, rather than left to believe that the request succeeded.

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
