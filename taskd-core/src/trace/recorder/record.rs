//! What is recorded: one fixed-size record for the beginning, the end or the moment of something that a thread does.
//!
//! It lays a record out in seven words and reads it back; whoever wrote the words, reading them cannot fail.
//!
//! # Layout, version 1
//! | word | bits | what |
//! |---|---|---|
//! | 0 | | ticks of the recorder's clock |
//! | 1 | 0..8 | kind: 1 step, 2 data loader, 3 save checkpoint, 4 forward, 5 communication, 16 and above: the user's |
//! | 1 | 8..12 | event: 1 begin, 2 end, 3 instant, 4 counter |
//! | 1 | 12..16 | what words 3 to 6 are: 0 nothing, 1 of a step, 2 of a communication |
//! | 1 | 16..24 | collective operation, see [`Op`]; 0 for none |
//! | 1 | 24..32 | type of an element, see [`DataType`]; 0 for none |
//! | 1 | 32..64 | name, a number of the file's table of names; 0 for none, and at the end of a range |
//! | 2 | | range: the number that begin and end share; of a counter the bits of its `f64` |
//! | 2 | 58..64 | of a range: its kind |
//! | 2 | 36..58 | of a range: the claim of a ring under which it began |
//! | 2 | 0..36 | of a range: a count of that claim's ranges |
//! | 3 | | communication: elements; step: its number |
//! | 4 | | communication: bytes; end of a step: nanoseconds on the CPU since its beginning |
//! | 5 | 0..32 | communication: group, a number of the table of names; 0 for none |
//! | 5 | 32..64 | communication: peer or root, a global rank; all ones for none |
//! | 6 | | communication: number in its group, from 0; all ones for none |

use super::ring::Words;

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
}

/// One record.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Record {
    /// When, in ticks of the recorder's clock.
    pub ticks: u64,
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

const BEGIN: u8 = 1;
const END: u8 = 2;
const INSTANT: u8 = 3;
const COUNTER: u8 = 4;
const NOTHING: u8 = 0;
const OF_A_STEP: u8 = 1;
const OF_A_COMMUNICATION: u8 = 2;

impl Record {
    /// As it lies in a slot.
    #[inline(always)] // for the sake of `ThreadRecorder::record`
    #[must_use]
    pub(super) fn to_words(self) -> Words {
        let (event, value) = match self.event {
            Event::Begin { range } => (BEGIN, range),
            Event::End { range } => (END, range),
            Event::Instant => (INSTANT, 0),
            Event::Counter { value } => (COUNTER, value.to_bits()),
        };
        let (detail, codes, rest) = match self.detail {
            Detail::None => (NOTHING, (0, 0), [0; 4]),
            Detail::Step { number, cpu_nanos } => (OF_A_STEP, (0, 0), [number, cpu_nanos, 0, 0]),
            Detail::Communication(c) => {
                let whom = u64::from(c.group.0) | u64::from(c.peer.unwrap_or(u32::MAX)) << 32;
                let rest = [c.elements, c.bytes, whom, c.sequence.unwrap_or(u64::MAX)];
                (OF_A_COMMUNICATION, (c.op.code(), c.data_type.code()), rest)
            }
        };
        let [a, b, c, d] = [self.kind.number(), event | detail << 4, codes.0, codes.1].map(u64::from);
        let what = a | b << 8 | c << 16 | d << 24 | u64::from(self.name.0) << 32;
        [self.ticks, what, value, rest[0], rest[1], rest[2], rest[3]]
    }

    /// What lies in a slot; `None` for a kind or event that this version does not know.
    #[must_use]
    pub(super) fn of_words(words: &Words) -> Option<Record> {
        let [ticks, what, value, a, b, whom, sequence] = *words;
        let [kind, event, op, data_type, ..] = what.to_le_bytes();
        let kind = Kind::of_number(kind)?;
        let (event, detail) = (event & 0xf, event >> 4);
        let event = match event {
            BEGIN => Event::Begin { range: value },
            END => Event::End { range: value },
            INSTANT => Event::Instant,
            COUNTER => Event::Counter { value: f64::from_bits(value) },
            _ => return None,
        };
        let detail = match detail {
            NOTHING => Detail::None,
            OF_A_STEP => Detail::Step { number: a, cpu_nanos: b },
            OF_A_COMMUNICATION => Detail::Communication(Communication {
                op: Op::of_code(op),
                data_type: DataType::of_code(data_type),
                group: NameId(low(whom)),
                elements: a,
                bytes: b,
                peer: Some(high(whom)).filter(|peer| *peer != u32::MAX),
                sequence: Some(sequence).filter(|sequence| *sequence != u64::MAX),
            }),
            _ => return None,
        };
        Some(Record { ticks, kind, event, name: NameId(high(what)), detail })
    }
}

/// The lower half of a word.
const fn low(word: u64) -> u32 {
    (word & 0xffff_ffff) as u32
}

/// The upper half of a word.
const fn high(word: u64) -> u32 {
    (word >> 32) as u32
}
