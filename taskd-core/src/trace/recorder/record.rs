//! What is recorded: one fixed-size record for the beginning, the end or the moment of something that a thread does, or for
//! the whole of something that is over.
//!
//! It is plain data: how a record lies in memory is the part of `words`.

/// What a thread was doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A training step.
    Step,
    /// Waiting for the next batch.
    DataLoader,
    /// Saving a checkpoint.
    SaveCheckpoint,
    /// The forward pass (FP).
    Forward,
    /// A collective or point-to-point operation.
    Communication,
    /// Work of a device.
    Kernel,
    /// A copy or a fill of a device's memory.
    Copy,
    /// A call into the vendor's runtime.
    Api,
    /// A range or a moment that a program or a library has named for profilers.
    Marker,
    /// A kind of the user's, by number from 0.
    User(u8),
}

/// Numbers of kinds are below this.
pub(super) const KINDS_MAX: usize = 64;
/// How many kinds users can have.
pub const USER_KINDS_MAX: u8 = 48;
/// The first number of a user's kind.
const USER: u8 = 16;

impl Kind {
    /// Its number, below 64: also its bit in the switches.
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

    /// The kind of a number.
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

/// A range that has begun. Whoever knows its [number](Range::number) can end it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a range that is never ended has no length"]
pub struct Range {
    kind: Kind,
    number: u64,
}

/// Where a range's number has the claim; below it is a count, which begins again after 69 billion.
const CLAIM_AT: u32 = 36;
/// Where it has the kind.
const KIND_AT: u32 = 58;

impl Range {
    /// A range of a thread: the count of its ranges under a claim. Each is cut to the bits that it has.
    #[inline]
    pub(super) const fn new(kind: Kind, claim: u64, count: u64) -> Range {
        let claim = (claim << CLAIM_AT) & ((1 << KIND_AT) - 1);
        let number = (kind.number() as u64) << KIND_AT | claim | (count & ((1 << CLAIM_AT) - 1));
        Range { kind, number }
    }

    /// Its number, never 0. No two ranges of a file have the same that are open at one time.
    #[inline]
    #[must_use]
    pub const fn number(self) -> u64 {
        self.number
    }

    /// The range of a number; `None` for a number that no range has.
    #[inline]
    #[must_use]
    pub const fn of_number(number: u64) -> Option<Range> {
        match Kind::of_number((number >> KIND_AT) as u8) {
            Some(kind) => Some(Range { kind, number }),
            None => None,
        }
    }

    /// What has begun.
    #[inline]
    #[must_use]
    pub const fn kind(self) -> Kind {
        self.kind
    }
}

/// What of it is recorded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// A range begins.
    Begin {
        /// What its end will say, too; unique in the file.
        range: u64,
    },
    /// A range ends.
    End {
        /// What its beginning said.
        range: u64,
    },
    /// Something happened.
    Instant,
    /// A figure.
    Counter {
        /// Its value; may be NaN.
        value: f64,
    },
    /// All of something that is over: the record's time is that of its beginning.
    Span {
        /// How long it took, in nanoseconds; beyond 36 minutes whole microseconds, and 25 days at most.
        nanos: u64,
    },
}

/// A number in a file's table of names; 0 is no name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameId(pub u32);

/// What is communicated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Communication {
    /// Which operation.
    pub op: Op,
    /// Of what.
    pub data_type: DataType,
    /// In which group.
    pub group: NameId,
    /// Elements of the input on this rank.
    pub elements: u64,
    /// Bytes of the input on this rank.
    pub bytes: u64,
    /// The other rank of a point-to-point operation, or the root of a collective, as a global rank.
    pub peer: Option<u32>,
    /// Which collective of its group it is, from 0, in the order of their calls; of what two ranks exchange the how-manieth
    /// in this direction.
    pub sequence: Option<u64>,
}

/// What belongs to a record of its kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Detail {
    /// Nothing.
    #[default]
    None,
    /// Of a step.
    Step {
        /// Its number, as the program counts.
        number: u64,
        /// At its end: nanoseconds that its thread was on the CPU since its beginning. 0 where that is unknown.
        cpu_nanos: u64,
    },
    /// Of a communication.
    Communication(Communication),
    /// Of a device's work, or of the call that has asked for it.
    Device(DeviceWork),
    /// Of a communication that a device carries out.
    DeviceCommunication(DeviceCommunication),
}

/// Where a device has done something, and who has asked for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DeviceWork {
    /// The device, as the process counts them; all ones for none.
    pub device: u32,
    /// One of its streams, as the vendor numbers them; all ones for none.
    pub stream: u32,
    /// What the call that has asked for it has too; 0 for none.
    pub correlation: u64,
    /// Bytes that were copied or filled.
    pub bytes: u64,
}

/// A communication that a device carries out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceCommunication {
    /// Which operation.
    pub op: Op,
    /// Of what.
    pub data_type: DataType,
    /// In which group.
    pub group: NameId,
    /// The other rank of a point-to-point operation, or the root of a collective, as a global rank.
    pub peer: Option<u32>,
    /// Where, and of how many bytes of the input on this rank.
    pub work: DeviceWork,
}

/// Who has made a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum By {
    /// The thread itself, when it was.
    #[default]
    Itself,
    /// Somebody else, afterwards: the record's time is nanoseconds since 1970, on the recorder's calendar.
    Import {
        /// The thread that did it; 0 for none: what a device does is no thread's, and nobody asks which one a figure is of.
        thread: u32,
    },
}

/// One record.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Record {
    /// When, in ticks of the recorder's clock; for imported ones see [`By::Import`].
    pub ticks: u64,
    /// Who has made it.
    pub by: By,
    /// What.
    pub kind: Kind,
    /// Beginning, end, moment or figure.
    pub event: Event,
    /// How it is called.
    pub name: NameId,
    /// What its kind says besides.
    pub detail: Detail,
}

macro_rules! codes {
    ($(#[$doc:meta])* $name:ident { $($(#[$what:meta])* $variant:ident = $code:literal, $word:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum $name {
            /// Another, or none.
            #[default]
            Other,
            $($(#[$what])* $variant,)*
        }

        impl $name {
            /// Its number in a record.
            #[inline]
            #[must_use]
            pub const fn code(self) -> u8 {
                match self { $name::Other => 0, $($name::$variant => $code,)* }
            }

            /// That of a number; `Other` for one that this version does not know.
            #[must_use]
            pub const fn of_code(code: u8) -> $name {
                match code { $($code => $name::$variant,)* _ => $name::Other }
            }

            /// What it is called in exported files, whose format this word is part of: it stays.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $name::Other => "other", $($name::$variant => $word,)* }
            }
        }
    };
}

codes! {
    /// An operation of a process group.
    Op {
        /// Everybody has the reduction of all.
        AllReduce = 1, "all_reduce";
        /// Everybody has all inputs.
        AllGather = 2, "all_gather";
        /// Everybody has its part of the reduction of all.
        ReduceScatter = 3, "reduce_scatter";
        /// Everybody has the root's input.
        Broadcast = 4, "broadcast";
        /// The root has the reduction of all.
        Reduce = 5, "reduce";
        /// The root has all inputs.
        Gather = 6, "gather";
        /// Everybody has its part of the root's input.
        Scatter = 7, "scatter";
        /// Everybody has a part of everybody's input.
        AllToAll = 8, "all_to_all";
        /// Everybody has arrived.
        Barrier = 9, "barrier";
        /// To one peer.
        Send = 10, "send";
        /// From one peer.
        Recv = 11, "recv";
    }
}

codes! {
    /// The type of an element.
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
        /// True or false.
        Bool = 13, "bool";
    }
}
