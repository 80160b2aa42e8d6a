//! The recorder: it writes the activity of a training process into memory that outlives the process.
//!
//! The recorder writes records and reads them back. It does not interpret or store them, and knows no framework. It
//! depends on the standard library only, so that it can be built separately for processes that are not written in Rust.
//!
//! | file | purpose |
//! |---|---|
//! | `cells` | the atomics of a ring |
//! | `ring` | one thread's ring buffer: wait-free writes, reads at any time |
//! | `record` | the record types |
//! | `words` | encoding of a record in the seven words of a slot |
//! | `clock` | ticks, and their conversion to time |
//! | `config` | size of a recorder, and its initial switches |
//! | `layout` | layout of the file |
//! | `names` | the table of names |
//! | `importing` | import of records made elsewhere, with their own times |
//! | `own` | opening the memory that a launcher prepared for this process |
//! | `writing` | the recorder of a process and of its threads |
//! | `reader` | reading records, also of a process that died |
//! | `sys` | system calls |

mod cells;
mod clock;
mod config;
mod importing;
mod layout;
mod names;
mod own;
mod reader;
mod record;
mod ring;
mod sys;
mod words;
mod writing;

pub use clock::{Anchor, Clock, Timeline};
pub use config::{RecorderConfig, Switches};
pub use importing::Imported;
pub use names::NAME_BYTES_MAX;
pub use own::Without;
pub use reader::{DrainedRecord, Losses, RecorderReader, ThreadInfo};
pub use record::{
    Communication, DataType, Detail, DeviceCommunication, DeviceWork, Event, Kind, NameId, Op, Range, Record,
    RecordedBy, USER_KINDS_MAX,
};
pub use ring::WhenFull;
pub use writing::{Recorder, StepRange, ThreadRecorder};
