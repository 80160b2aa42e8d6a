//! A store server that speaks the wire protocol of torch's `TCPStore`, so that no rank has to host the store.
//!
//! torch's own server lives in a rank (or in torchrun's agent) and dies with it, serves all attempts from one set of keys,
//! and asks the name service about every client that connects. This one is a process of its own, has keys, listener and
//! clients of its own for each generation, and asks nobody about anybody. Clients are torch's own, unmodified:
//! `TCPStore(..., is_master=False)` of torch 2.9, with either setting of `use_libuv`, and whatever stands above it
//! (`PrefixStore`, `init_process_group`, torchelastic with `TORCHELASTIC_USE_AGENT_STORE=True`).
//!
//! - [`Server`] is the store: one thread, no runtime, for whoever wants it in a process of their own making.
//! - [`init`] and the program `taskd-store` make a process of it; [`StoreProgram::command`] says how that is started.
//! - [`StoreControl`] tells that process which generations to serve.
//!
//! # Where it differs from torch's server
//! What a correct program can see is the same as with torch 2.9.1's libuv server; the tests run one program against both.
//! These are torch's mistakes, and are not repeated:
//!
//! | case | torch's libuv server | here |
//! |---|---|---|
//! | `compare_set` that sets nothing, of a key that is not there | wakes those who wait for that key | nobody is woken |
//! | a `wait` for several names, one a queue with values in it | waits for a further push to that queue | that name is there |
//! | two pushes to one of two queues that are waited for | count as both | count once |
//! | a wait that a queue ended | its leftover can end a later wait of the same client for something else | it is over |
//! | `multi_set` that arrives in parts | its first keys are set again with every part | every key is set once |
//! | a client that is not validated | its first bytes are ignored, what follows is carried out | it is closed |
//!
//! # Bounds
//! [`Limits`] names every bound and its default, [`Bound::action`] says what happens there, and [`Stats::at_bound`] counts it.
//! `set` and its like have no answer in this protocol: so a client whose request cannot be carried out is closed, which its
//! next call reports, and never left believing that it was.

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
pub use entry::{CONTROL_NAME, StartError, StoreProgram, init, main};
pub use limits::{AtBound, Bound, Limits, LimitsError, NotALimit};
pub use server::Server;
pub use stats::{GenerationStats, Stats};
pub use wire::Query;
