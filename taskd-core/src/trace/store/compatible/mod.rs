//! The compatible format: one JSON object a line, as MindCluster's lightweight profiling writes it.
//!
//! It knows no directory and no quota. A marker that can be told with the fields of that format has those fields and no others;
//! what they cannot hold stands in one more, `Taskd`, which other readers pass over. So nothing is lost between this format and
//! the native one, but the numbers of names: names are stored with the records that use them. A span has two lines, as a range
//! has: the first one says all of it, and the second one is for others.
//!
//! | field | of a record |
//! |---|---|
//! | `Kind` | 1, a marker |
//! | `Flag` | 1 a moment or a figure, 2 a beginning, 4 an end; 16 and 32 beginning and end on a device |
//! | `SourceKind` | 0, the host; 1, a device |
//! | `Timestamp` | nanoseconds since 1970 |
//! | `Id` | the number of a range; of a span a number of the file's own; 0 for what is none |
//! | `MsptiObjectId` | `Pt` with process and thread; `Ds` with a device and its stream |
//! | `Name` | `step <n>`, `dataloader`, `save_checkpoint`, `forward`; of a communication a JSON text; of a user's kind its name; of an end nothing |
//! | `Domain` | `communication` or `default`; of an end nothing |

mod line;
mod plain;
mod reader;
mod writer;

pub use reader::CompatibleReader;
pub use writer::CompatibleWriter;

/// Bytes of a line, at most. With names as the recorder takes them, lines are far below it.
pub const LINE_BYTES_MAX: usize = 64 << 10;
