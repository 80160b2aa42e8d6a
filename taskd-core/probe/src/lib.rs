//! The shared source of the libraries that taskd embeds: `libtaskd.so` and the vendors' probes.
//!
//! Build scripts use [`library`], which compiles the other modules into each embedded library. None of them needs more
//! than the standard library.

#[allow(unsafe_code)] // memory that a vendor's library fills
pub mod buffers;
#[allow(unsafe_code)] // clock_gettime
pub mod clock;
pub mod counters;
#[allow(unsafe_code)] // dlopen and dlsym
pub mod dl;
pub mod library;
#[allow(unsafe_code)] // calls functions of libtaskd.so
pub mod libtaskd;
#[allow(unsafe_code)] // atexit
pub mod own_thread;
pub mod record;
#[allow(unsafe_code)] // pthread_sigmask
pub mod signals;
pub mod slots;
