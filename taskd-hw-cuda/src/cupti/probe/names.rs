//! What the names of kernels say, and the recorder's numbers of names that were met lately.
//!
//! A name has one place; who comes there takes it from who was there, so memory is bounded and nothing is searched.

/// Names that are known at one time, a power of two.
const PLACES: usize = 1 << 12;

/// Operations and types, as the recorder numbers them (`taskd.h`).
const OTHER: u32 = 0;
const OPERATIONS: [(&str, u32); 8] = [
    ("AllReduce", 1),
    ("AllGather", 2),
    ("ReduceScatter", 3),
    ("Broadcast", 4),
    ("Reduce", 5),
    ("Gather", 6),
    ("Scatter", 7),
    ("AlltoAll", 8),
];
const TYPES: [(&str, u32); 24] = [
    ("f32", 1),
    ("float", 1),
    ("f16", 2),
    ("half", 2),
    ("bf16", 3),
    ("bfloat16", 3),
    ("f64", 4),
    ("double", 4),
    ("i8", 5),
    ("int8", 5),
    ("i32", 7),
    ("int32", 7),
    ("i64", 8),
    ("int64", 8),
    ("u8", 9),
    ("uint8", 9),
    ("u32", 11),
    ("uint32", 11),
    ("u64", 12),
    ("uint64", 12),
    ("i16", 6),
    ("int16", 6),
    ("u16", 10),
    ("uint16", 10),
];

/// What the name of a kernel says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meaning {
    /// The recorder's number of the name; 0 for none.
    pub number: u32,
    /// The operation and the type of elements, of a kernel of NCCL's.
    pub communication: Option<(u32, u32)>,
}

/// Operation and type of a kernel of NCCL's, such as `ncclDevKernel_AllReduce_Sum_f32_RING_LL` or
/// `ncclKernel_AllGather_RING_LL_Sum_int8_t`, also mangled; `None` for every other kernel.
///
/// `SendRecv` and `Generic` are any operation: NCCL sends, receives and exchanges with one kernel.
pub fn communication(name: &[u8]) -> Option<(u32, u32)> {
    let rest = [&b"ncclDevKernel_"[..], b"ncclKernel_"].into_iter().find_map(|mark| {
        let at = name.windows(mark.len()).position(|window| window == mark)?;
        Some(&name[at + mark.len()..])
    })?;
    let mut words = rest.split(|byte| !byte.is_ascii_alphanumeric()).take(8);
    let known = |word: &[u8], table: &[(&str, u32)]| {
        // What is mangled goes on behind the last word, as `LLP11ncclDevComm` does: no word of ours is the last.
        table.iter().find(|(known, _)| known.as_bytes() == word).map(|(_, code)| *code)
    };
    let operation = words.next().and_then(|word| known(word, &OPERATIONS)).unwrap_or(OTHER);
    let data_type = words.find_map(|word| known(word, &TYPES)).unwrap_or(OTHER);
    Some((operation, data_type))
}

#[derive(Clone, Debug, Default)]
struct Known {
    hash: u64,
    text: Box<[u8]>,
    meaning: Meaning,
}

/// Names, and what they say.
#[derive(Debug)]
pub struct Names {
    places: Box<[Known]>,
}

impl Default for Names {
    fn default() -> Names {
        Names { places: vec![Known::default(); PLACES].into_boxed_slice() }
    }
}

impl Names {
    /// What a name says; `number` gives the recorder's number of a name that is new here.
    #[inline]
    pub fn get(&mut self, text: &[u8], number: impl FnOnce(&[u8]) -> u32) -> Meaning {
        if text.is_empty() {
            return Meaning::default();
        }
        let hash = hash(text);
        let known = &mut self.places[place(hash)];
        if known.hash != hash || *known.text != *text {
            let meaning = Meaning { number: number(text), communication: communication(text) };
            *known = Known { hash, text: text.into(), meaning };
        }
        known.meaning
    }
}

/// Where a name of this hash has its place.
#[inline]
fn place(hash: u64) -> usize {
    usize::try_from(hash % PLACES as u64).unwrap_or_default() // there are so few that it always is one
}

/// FNV-1a over words of eight bytes: names of kernels are long.
#[inline]
fn hash(text: &[u8]) -> u64 {
    let step = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x100_0000_01b3).rotate_left(23);
    let mut words = text.chunks_exact(8);
    let mut hash = words.by_ref().fold(0xcbf2_9ce4_8422_2325 ^ text.len() as u64, |hash, word| {
        step(hash, u64::from_ne_bytes(word.try_into().unwrap_or_default()))
    });
    hash = words.remainder().iter().fold(hash, |hash, byte| step(hash, u64::from(*byte)));
    hash ^ hash >> 32
}
