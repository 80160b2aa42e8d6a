//! Record types: fixed-size records of the beginning, the end or an instant of an activity, or of a complete activity.
//!
//! Plain data; `words` defines the encoding in memory.

/// Kind of a recorded activity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A training step.
    Step,
    /// Waiting for the next batch of training data.
    DataLoader,
    /// Saving a checkpoint.
    SaveCheckpoint,
    /// The forward pass (FP).
    Forward,
    /// A collective or point-to-point operation.
    Communication,
    /// A GPU or NPU kernel: a piece of work that a device executes.
    Kernel,
    /// A copy or a fill of device memory.
    Copy,
    /// A call into the vendor's runtime library, such as CUDA's.
    Api,
    /// A range or an instant that a program or library named for profilers, for example with NVTX.
    Marker,
    /// A user-defined kind, by number from 0 to 47.
    User(u8),
}

/// Upper bound of the numbers of kinds (exclusive).
pub(super) const KINDS_MAX: usize = 64;
/// Maximum number of record kinds that users can define for one recorder.
pub const USER_KINDS_MAX: u8 = 48;
/// Number of the first user-defined kind.
const USER: u8 = 16;

impl Kind {
    /// Returns the kind's number, below 64, which is also the position of its bit in a set of switches.
    #[inline]
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Kind::Step => 1,
            Kind::DataLoader => 2,
            Kind::SaveCheckpoint => 3,
            Kind::Forward => 4,
            Kind::Communication => 5,
            Kind::Kernel => 6,
            Kind::Copy => 7,
            Kind::Api => 8,
            Kind::Marker => 9,
            Kind::User(which) if which < USER_KINDS_MAX => USER + which,
            Kind::User(_) => USER + USER_KINDS_MAX - 1,
        }
    }

    /// Returns the kind with this number; `None` if no kind has it.
    #[must_use]
    pub const fn of_number(number: u8) -> Option<Kind> {
        Some(match number {
            1 => Kind::Step,
            2 => Kind::DataLoader,
            3 => Kind::SaveCheckpoint,
            4 => Kind::Forward,
            5 => Kind::Communication,
            6 => Kind::Kernel,
            7 => Kind::Copy,
            8 => Kind::Api,
            9 => Kind::Marker,
            USER..64 => Kind::User(number - USER),
            _ => return None,
        })
    }
}

/// A range that has begun: the period of one activity. Any thread that knows the range's [number](Range::number)
/// can end it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a range that never ends has no length"]
pub struct Range {
    kind: Kind,
    number: u64,
}

/// Bit position of the claim in a range's number; below it is a counter, which wraps after 69 billion ranges.
const CLAIM_AT: u32 = 36;
/// Bit position of the kind.
const KIND_AT: u32 = 58;

impl Range {
    /// Creates a range from the count of ranges under a thread's claim. Each part is cut to its bits.
    #[inline]
    pub(super) const fn new(kind: Kind, claim: u64, count: u64) -> Range {
        let claim = (claim << CLAIM_AT) & ((1 << KIND_AT) - 1);
        let number = (kind.number() as u64) << KIND_AT | claim | (count & ((1 << CLAIM_AT) - 1));
        Range { kind, number }
    }

    /// Returns the range's number, never 0. No two ranges of a file that are open at one time have the same number.
    #[inline]
    #[must_use]
    pub const fn number(self) -> u64 {
        self.number
    }

    /// Returns the range with this number; `None` if no range can have it.
    #[inline]
    #[must_use]
    pub const fn of_number(number: u64) -> Option<Range> {
        match Kind::of_number((number >> KIND_AT) as u8) {
            Some(kind) => Some(Range { kind, number }),
            None => None,
        }
    }

    /// Returns the kind of the range's activity.
    #[inline]
    #[must_use]
    pub const fn kind(self) -> Kind {
        self.kind
    }
}

/// Form of a trace record: beginning or end of a range, instant, value of a counter, or complete span.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// The beginning of a range, that is, of an activity with a duration.
    Begin {
        /// Number that identifies the range, unique in the recorder's file. The record of the range's end has the same
        /// number.
        range: u64,
    },
    /// The end of a range, that is, of an activity with a duration.
    End {
        /// Number that identifies the range, as in the record of its beginning.
        range: u64,
    },
    /// An event without duration.
    Instant,
    /// The value of a counter at one moment.
    Counter {
        /// Value of the counter; may be NaN.
        value: f64,
    },
    /// A complete activity; the record's time is that of its beginning.
    Span {
        /// Duration of the activity in nanoseconds, at most 25 days. Durations from 36 minutes on are in whole
        /// microseconds.
        nanos: u64,
    },
}

/// Number of a name in the table of names to which trace records refer; 0 means no name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameId(pub u32);

/// Data of a collective or point-to-point operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Communication {
    /// The operation, such as an all-reduce.
    pub op: Op,
    /// Data type of the elements.
    pub data_type: DataType,
    /// Name of the process group, as an index into the table of names.
    pub group: NameId,
    /// Number of input elements on this rank.
    pub elements: u64,
    /// Size of the input on this rank, in bytes.
    pub bytes: u64,
    /// The other rank of a point-to-point operation, or the root of a collective, as a global rank.
    pub peer: Option<u32>,
    /// Sequence number of the operation in the order of the calls. A collective is numbered within its process group,
    /// from 0; a point-to-point operation, among the operations between the same two ranks in the same direction.
    pub sequence: Option<u64>,
}

/// Further data of a record, depending on its kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Detail {
    /// No further data.
    #[default]
    None,
    /// Data of a training step.
    Step {
        /// The step's number, as counted by the training script.
        number: u64,
        /// CPU time that the step's thread used during the step, in nanoseconds; set in the record of the step's end. 0 if
        /// unknown.
        cpu_nanos: u64,
    },
    /// Data of a collective or point-to-point operation.
    Communication(Communication),
    /// Data of a piece of work of a device, such as a GPU kernel or a copy, or of the call that launched the work.
    Device(DeviceWork),
    /// Details of a communication operation, such as a collective, that runs on a device.
    DeviceCommunication(DeviceCommunication),
}

/// Device and stream that executed a piece of work, such as a GPU kernel or a copy, and the number that links the
/// work to the call that launched it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DeviceWork {
    /// Index of the device in the process; all bits are ones if there is no device.
    pub device: u32,
    /// Number of the device's stream, as the vendor's runtime assigns it; all bits are ones if there is no stream.
    pub stream: u32,
    /// Number by which the vendor's trace interface links the work to the call that launched it; both have the same
    /// number. 0 if there is no number.
    pub correlation: u64,
    /// Number of bytes of device memory that the work copied or filled.
    pub bytes: u64,
}

/// Data of a collective or point-to-point operation that a device carries out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceCommunication {
    /// The operation, such as an all-reduce.
    pub op: Op,
    /// Data type of the elements.
    pub data_type: DataType,
    /// Name of the process group, as an index into the table of names.
    pub group: NameId,
    /// The other rank of a point-to-point operation, or the root of a collective, as a global rank.
    pub peer: Option<u32>,
    /// Device and stream that carry out the operation, its correlation number, and the size in bytes of the input on
    /// this rank.
    pub work: DeviceWork,
}

/// Writer of a record: the thread that did the recorded activity, or a later import.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RecordedBy {
    /// The thread that did the activity wrote the record itself, at the time of the activity.
    #[default]
    Itself,
    /// The record was imported after the activity. Its time is in nanoseconds since 1970, on the recorder's calendar,
    /// which does not move when the system's calendar is set.
    Import {
        /// System id of the thread that did the activity; 0 for work of a device, and for values of counters, whose thread
        /// is not stored.
        thread: u32,
    },
}

/// One trace record.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Record {
    /// Time in ticks of the recorder's clock; for imported records see [`RecordedBy::Import`].
    pub ticks: u64,
    /// Origin of the record: the acting thread, or a later import.
    pub by: RecordedBy,
    /// Kind of the activity.
    pub kind: Kind,
    /// Form of the record: beginning or end of a range, instant, value of a counter, or complete span.
    pub event: Event,
    /// Name of the activity.
    pub name: NameId,
    /// Further data of the record, which depends on its kind.
    pub detail: Detail,
}

macro_rules! codes {
    ($(#[$doc:meta])* $name:ident { $($(#[$what:meta])* $variant:ident = $code:literal, $word:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum $name {
            /// An unknown value, or none.
            #[default]
            Other,
            $($(#[$what])* $variant,)*
        }

        impl $name {
            /// Returns the number that stands for this value in a record.
            #[inline]
            #[must_use]
            pub const fn code(self) -> u8 {
                match self { $name::Other => 0, $($name::$variant => $code,)* }
            }

            /// Returns the value that this number stands for in a record; `Other` for a number that this version does
            /// not know.
            #[must_use]
            pub const fn of_code(code: u8) -> $name {
                match code { $($code => $name::$variant,)* _ => $name::Other }
            }

            /// Returns the name of this value in exported files. It is part of their format and MUST NOT change.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $name::Other => "other", $($name::$variant => $word,)* }
            }
        }
    };
}

codes! {
    /// Operation of a process group, such as an all-reduce or a send.
    Op {
        /// Every rank gets the reduction of all inputs.
        AllReduce = 1, "all_reduce";
        /// Every rank gets all inputs.
        AllGather = 2, "all_gather";
        /// Every rank gets its part of the reduction of all inputs.
        ReduceScatter = 3, "reduce_scatter";
        /// Every rank gets the root's input.
        Broadcast = 4, "broadcast";
        /// The root gets the reduction of all inputs.
        Reduce = 5, "reduce";
        /// The root gets all inputs.
        Gather = 6, "gather";
        /// Every rank gets its part of the root's input.
        Scatter = 7, "scatter";
        /// Every rank gets a part of every rank's input.
        AllToAll = 8, "all_to_all";
        /// Every rank waits for all ranks.
        Barrier = 9, "barrier";
        /// Sends to one peer.
        Send = 10, "send";
        /// Receives from one peer.
        Recv = 11, "recv";
    }
}

codes! {
    /// Data type of an element of a communication.
    DataType {
        /// IEEE 754 binary32.
        F32 = 1, "f32";
        /// IEEE 754 binary16.
        F16 = 2, "f16";
        /// bfloat16.
        Bf16 = 3, "bf16";
        /// IEEE 754 binary64.
        F64 = 4, "f64";
        /// Signed, 8 bits.
        I8 = 5, "i8";
        /// Signed, 16 bits.
        I16 = 6, "i16";
        /// Signed, 32 bits.
        I32 = 7, "i32";
        /// Signed, 64 bits.
        I64 = 8, "i64";
        /// Unsigned, 8 bits.
        U8 = 9, "u8";
        /// Unsigned, 16 bits.
        U16 = 10, "u16";
        /// Unsigned, 32 bits.
        U32 = 11, "u32";
        /// Unsigned, 64 bits.
        U64 = 12, "u64";
        /// Boolean.
        Bool = 13, "bool";
    }
}
