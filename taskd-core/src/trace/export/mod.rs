//! Records in files that other programs open.
//!
//! It only writes what it is given: it neither decides nor judges, and none of these files is read by a runtime.
//!
//! | module | for |
//! |---|---|
//! | [`perfetto`] | looking at it: [ui.perfetto.dev](https://ui.perfetto.dev) and its trace processor |

pub mod perfetto;
mod words;
