//! The compatible format: one JSON object per line, as written by MindCluster's lightweight profiling.
//!
//! A marker that the format's own fields can express has those fields only; further data is in an additional field,
//! `Taskd`, which other readers ignore. So a conversion between this format and the native one loses nothing except the
//! numbers of names: names are stored with the records that use them. A span has two lines, like a range: the first one
//! has all its data, and the second one is for other readers.
//!
//! | field | contents |
//! |---|---|
//! | `Kind` | 1 (marker) |
//! | `Flag` | 1 instant or figure, 2 beginning, 4 end; 16 and 32 beginning and end on a device |
//! | `SourceKind` | 0 host, 1 device |
//! | `Timestamp` | nanoseconds since 1970 |
//! | `Id` | number of a range; for a span a number unique in the file; otherwise 0 |
//! | `MsptiObjectId` | `Pt` with process and thread; `Ds` with device and stream |
//! | `Name` | `step <n>`, `dataloader`, `save_checkpoint`, `forward`; for a communication a JSON text; for a user-defined kind its name; empty for an end |
//! | `Domain` | `communication` or `default`; empty for an end |

mod line;
mod plain;
mod reader;
mod writer;

pub use reader::CompatibleReader;
pub use writer::CompatibleWriter;

/// Maximum length of a line in a file of the compatible format, in bytes. A batch with a longer line is not written,
/// and a reader skips a longer line. With names as the recorder accepts them, lines are far shorter.
pub const LINE_BYTES_MAX: usize = 64 << 10;
