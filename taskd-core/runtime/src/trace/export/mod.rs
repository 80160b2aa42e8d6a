//! Export of records to files for other programs.
//!
//! Exporters write the records that they are given. No part of the runtime reads these files.
//!
//! | module | purpose |
//! |---|---|
//! | [`perfetto`] | viewing: [ui.perfetto.dev](https://ui.perfetto.dev) and its trace processor |
//! | `parquet` (feature of this name) | analysis: pandas, Polars, DuckDB, Spark |
//! | `arrow` (feature `parquet`) | the same columns in memory |

#[cfg(feature = "parquet")]
pub mod arrow;
#[cfg(feature = "parquet")]
pub mod parquet;
pub mod perfetto;
mod words;
