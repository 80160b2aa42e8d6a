//! The recorder: what a training process does, in memory that outlives it.
//!
//! It records and reads back; it judges nothing, stores nothing, and knows no framework. It needs nothing but the standard
//! library, so that it can be built on its own for a process that is not written in Rust.
//!
//! | file | its part |
//! |---|---|
//! | `cells` | what a ring is made of |
//! | `ring` | one thread's ring: written without ever waiting, read at any time |
//! | `record` | what is recorded |
//! | `words` | how it lies in a slot, in seven words |
//! | `clock` | ticks, and what they are in time |
//! | `config` | how a recorder is laid out, and what it records |
//! | `layout` | what stands where in the file |
//! | `names` | the table of names |
//! | `importing` | what somebody else has recorded, with its own times |
//! | `own` | opening what a launcher has laid out for this very process |
//! | `writing` | the recorder of a process and of its threads |
//! | `reading` | taking records out, also of a process that died |
//! | `sys` | system calls |

mod cells;
mod clock;
mod config;
mod importing;
mod layout;
mod names;
mod own;
mod reading;
mod record;
mod ring;
mod sys;
mod words;
mod writing;

pub use clock::{Anchor, Clock, TimeLine};
pub use config::{RecorderConfig, Switches};
pub use importing::Imported;
pub use names::NAME_BYTES_MAX;
pub use own::Without;
pub use reading::{Losses, Recording, Taken, ThreadInfo};
pub use record::{
    By, Communication, DataType, Detail, DeviceCommunication, DeviceWork, Event, Kind, NameId, Op, Range, Record,
    USER_KINDS_MAX,
};
pub use ring::WhenFull;
pub use writing::{Recorder, StepRange, ThreadRecorder};
