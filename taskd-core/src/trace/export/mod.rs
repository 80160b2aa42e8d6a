//! Records in files that other programs open.
//!
//! It only writes what it is given: it neither decides nor judges, and no runtime reads any of these files.
//!
//! | module | for |
//! |---|---|
//! | [`perfetto`] | looking at it: [ui.perfetto.dev](https://ui.perfetto.dev) and its trace processor |
//! | `parquet` (feature of this name) | reckoning with it: pandas, Polars, DuckDB, Spark |
//! | `arrow` (feature `parquet`) | the same columns in memory |

#[cfg(feature = "parquet")]
pub mod arrow;
#[cfg(feature = "parquet")]
pub mod parquet;
pub mod perfetto;
mod words;
