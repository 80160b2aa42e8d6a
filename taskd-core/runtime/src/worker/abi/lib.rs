//! `libtaskd.so`: the recorder for programs that are not written in Rust.
//!
//! It is a crate of its own, which needs only the standard library; the build script of `taskd-core` builds it, and
//! programs embed it. It never fails a program, never makes it wait, never prints, and starts no thread except the
//! heartbeat that a caller requests. If there is nothing to record into, every function does nothing.
//!
//! | file | its part |
//! |---|---|
//! | `beat` | a heartbeat from a thread of its own |
//! | `exports` | the functions of `include/taskd.h` |
//! | `import` | the function that imports what other interfaces have recorded |
//! | `process` | the recorder of this process |
//! | `python` | the same functions as a Python module |
//! | `thread` | the recorder of each thread |
//! | `recorder` | the recorder itself, the source of `taskd_core::trace::recorder` |

mod beat;
pub mod exports;
pub mod import;
mod process;
mod python;
mod thread;

#[path = "../../trace/recorder/mod.rs"]
pub mod recorder;
