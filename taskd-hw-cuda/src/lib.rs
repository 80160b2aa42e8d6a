//! NVIDIA for taskd: what only this vendor's systems know, in the terms of `taskd-core`.
//!
//! Nothing here links a library of the vendor's: what it needs is loaded at run time, and where it is missing a typed error
//! says so, and what to do.

pub mod cupti;
pub mod detect;
pub mod health;
pub mod xid;
