//! The native format: a batch of records in a few bytes a record, in a file that is readable at any moment.
//!
//! It knows no directory and no quota. Whatever bytes a file holds, reading it takes bounded memory and ends.
//!
//! # Format, version 2
//! A head, then blocks. Numbers of a fixed width are little-endian; all others have seven bits a byte, the lowest first.
//!
//! ```text
//! head    0            8         12       16    20
//!         | "taskdtrc" | version | length | crc | JSON: {"job", "rank", "incarnation", "pid"} |
//! block   0       3       4        8             12          16
//!         | "tkb" | flags | length | payload crc | frame crc | payload … |
//! ```
//!
//! Flag 1: a *key* block, which can be read without those before it. Flag 2: the payload is the length of what it holds and
//! then that, compressed with LZ4. A key block comes after [`KEY_EVERY_BYTES`] or, where much is to be said anew, 16 times that. So a file that ends anywhere lacks the block in which it ends and nothing else, and a damaged block costs what follows
//! up to the next key block.
//!
//! What a block holds, in this order:
//!
//! | what | how |
//! |---|---|
//! | records that are missing before it | a number |
//! | a key block: rank, incarnation, process | three numbers |
//! | names that are new | their number, and each one's length and bytes |
//! | threads that are new | their number, and their ids |
//! | shapes that are new | their number; of each six codes, name, group, peer, elements, bytes |
//! | which thread made which records | number of runs; of each the thread's place and the number of records |
//! | four columns, each behind its length | the records' shapes, times, ranges, and figures |
//!
//! Figures are those of counters, the lengths of spans, steps and their time on the CPU, the numbers of communications in their
//! groups, and correlations.
//!
//! A *shape* is all of a record that tends to come again. Times and everything that counts on are differences to what was to
//! be expected (by the same model on both sides): time and begun ranges from the thread's last, ended ranges from the
//! kind's last, communications from their group's last, lengths from their shape's last, correlations from their kind's.

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

/// Records of one block, at most. A longer batch becomes several blocks.
pub const BLOCK_RECORDS_MAX: usize = 1 << 16;
/// Bytes of one block, compressed or not, at most.
pub const BLOCK_BYTES_MAX: usize = 16 << 20;
/// Names of one process, at most.
pub const NAMES_MAX: usize = 1 << 18;
/// Bytes of the names of one process, at most.
pub const NAMES_BYTES_MAX: usize = 8 << 20;
/// A key block comes at least so often, in bytes, unless names and shapes take much of it.
pub const KEY_EVERY_BYTES: u64 = 64 << 10;
/// With so many shapes or threads the writer begins anew, so there are at most as many more as a block has records.
const KNOWN_MAX: usize = 1 << 14;
