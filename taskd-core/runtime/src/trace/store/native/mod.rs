//! The native format: batches of records at a few bytes per record, in a file that is readable at any moment.
//!
//! Reading takes bounded memory and ends, whatever bytes a file contains.
//!
//! # Format, version 2
//! A head, then blocks. Numbers of a fixed width are little-endian; all others are varints with seven bits per byte,
//! lowest first.
//!
//! ```text
//! head    0            8         12       16    20
//!         | "taskdtrc" | version | length | crc | JSON: {"job", "rank", "incarnation", "pid"} |
//! block   0       3       4        8             12          16
//!         | "tkb" | flags | length | payload crc | frame crc | payload … |
//! ```
//!
//! Flag 1: a *key* block, which can be read without earlier blocks. Flag 2: the payload is compressed: its uncompressed
//! length, then LZ4 data. A key block follows after [`KEY_EVERY_BYTES`] or, if its names, threads and shapes are large,
//! after 16 times their size. So a truncated file lacks only the block in which it ends, and a damaged block costs the
//! blocks up to the next key block.
//!
//! Contents of a block, in this order:
//!
//! | contents | encoding |
//! |---|---|
//! | records lost before the block | a number |
//! | in a key block: rank, incarnation, process | three numbers |
//! | new names | their number, then the length and bytes of each |
//! | new threads | their number, and their ids |
//! | new shapes | their number, then for each six codes, name, group, peer, elements, bytes |
//! | runs of records of one thread | number of runs, then for each the index of the thread and the number of records |
//! | four columns, each after its length | the records' shapes, times, ranges, and figures |
//!
//! Figures are the values of counters, the durations of spans, steps and their CPU time, the sequence numbers of
//! communications, and correlations.
//!
//! A *shape* is the part of a record that tends to repeat. Times and numbers that increase are stored as differences
//! from a prediction (by the same model on both sides): times and begun ranges from the thread's last, ended ranges
//! from the kind's last, sequence numbers from their group's last, durations from their shape's last, correlations from
//! their kind's last.

mod decode;
mod encode;
mod frame;
mod model;
mod reader;
mod varint;
mod writer;

pub use frame::{FORMAT_VERSION, NativeHead};
pub use reader::NativeReader;
pub use writer::NativeWriter;

/// Maximum number of records in a block of a native file. A longer batch becomes several blocks.
pub const BLOCK_RECORDS_MAX: usize = 1 << 16;
/// Maximum length of a block of a native file in bytes, compressed or not.
pub const BLOCK_BYTES_MAX: usize = 16 << 20;
/// Maximum number of different names in the records of one process. A batch with more names is not written.
pub const NAMES_MAX: usize = 1 << 18;
/// Maximum total length of all names in the records of one process, in bytes. A batch with longer names is not written.
pub const NAMES_BYTES_MAX: usize = 8 << 20;
/// Distance in bytes between the key blocks of a native file. A key block can be read without earlier blocks. The
/// distance is larger if names, threads and shapes (the repeated parts of records) take a large part of a file.
pub const KEY_EVERY_BYTES: u64 = 64 << 10;
/// Number of shapes or threads beyond which the writer starts with a new key block. There are at most as many more as a
/// block has records.
const KNOWN_MAX: usize = 1 << 14;
