//! Meaning of kernel names, and a cache of the recorder's numbers of names.

use super::slots::{SLOTS, hash, slot};

/// Operations and data types, with the recorder's numbers (`taskd.h`).
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

/// What the trace recorder stores for the name of a GPU kernel: the name's number and, for an NCCL kernel, the
/// collective operation and the data type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meaning {
    /// Number under which the trace recorder stores the name; 0 if it has none.
    pub number: u32,
    /// The trace recorder's codes of the operation and of the data type, in this order, if the name is that of an NCCL
    /// kernel; otherwise `None`.
    pub communication: Option<(u32, u32)>,
}

/// Returns the trace recorder's codes of the operation and of the data type that the name of an NCCL kernel states.
/// Examples are `ncclDevKernel_AllReduce_Sum_f32_RING_LL` and `ncclKernel_AllGather_RING_LL_Sum_int8_t`, also
/// mangled. Returns `None` for the name of any other GPU kernel.
///
/// `SendRecv` and `Generic` map to the code for other operations: NCCL uses one kernel to send, receive and
/// exchange.
pub fn communication(name: &[u8]) -> Option<(u32, u32)> {
    let rest = [&b"ncclDevKernel_"[..], b"ncclKernel_"].into_iter().find_map(|mark| {
        let at = name.windows(mark.len()).position(|window| window == mark)?;
        Some(&name[at + mark.len()..])
    })?;
    let mut words = rest.split(|byte| !byte.is_ascii_alphanumeric()).take(8);
    let known = |word: &[u8], table: &[(&str, u32)]| {
        // In a mangled name, text such as `LLP11ncclDevComm` is attached to the last word, but no known word is the
        // last one.
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

/// Cache that maps the names of GPU kernels to their `Meaning`.
#[derive(Debug)]
pub struct Names {
    slots: Box<[Known]>,
}

impl Default for Names {
    fn default() -> Names {
        Names { slots: vec![Known::default(); SLOTS].into_boxed_slice() }
    }
}

impl Names {
    /// Returns the meaning of `text`, the name of a GPU kernel. If the cache lacks the name, the function calls
    /// `number` to get the trace recorder's number for it.
    #[inline]
    pub fn get(&mut self, text: &[u8], number: impl FnOnce(&[u8]) -> u32) -> Meaning {
        if text.is_empty() {
            return Meaning::default();
        }
        let hash = hash(text);
        let known = &mut self.slots[slot(hash)];
        if known.hash != hash || *known.text != *text {
            let meaning = Meaning { number: number(text), communication: communication(text) };
            *known = Known { hash, text: text.into(), meaning };
        }
        known.meaning
    }
}
