//! `libtaskd.so`: the recorder for programs that are not written in Rust.
//!
//! It is a crate of its own, which needs nothing but the standard library; the build script of `taskd-core` builds it, and
//! programs carry it with them. It never fails a program, never makes it wait, never prints, and starts no thread but the one
//! that is asked for: where there is nothing to record into, every function does nothing.
//!
//! | file | its part |
//! |---|---|
//! | `beat` | a heartbeat from a thread of its own |
//! | `exports` | the functions of `include/taskd.h` |
//! | `import` | that of them which brings what others have recorded |
//! | `process` | the recorder of this process |
//! | `python` | the same functions as a module of Python's |
//! | `thread` | that of each of its threads |
//! | `recorder` | the recorder itself, the source of `taskd_core::trace::recorder` |
//! | `signals` | signals held back, as the probes of vendors do it |

mod beat;
pub mod exports;
pub mod import;
mod process;
mod python;
mod thread;

#[path = "../../trace/recorder/mod.rs"]
pub mod recorder;
#[path = "../../../build/probe/signals.rs"]
mod signals;
