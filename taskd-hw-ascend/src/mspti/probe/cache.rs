//! Texts that were met lately, and what they say: most markers of a training have the same few.
//!
//! A text has one place; who comes there takes it from who was there, so memory is bounded and nothing is searched.

use super::forms::{NONE, OF_A_COMMUNICATION, OF_A_STEP, PLAIN};
use super::texts::{self, COMMUNICATION, MARKER, Said};

/// Texts that are known at one time, a power of two.
const PLACES: usize = 1 << 12;

/// What a text says, in the recorder's numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meaning {
    pub kind: u32,
    pub form: u32,
    pub name: u32,
    pub op: u32,
    pub data_type: u32,
    pub group: u32,
    pub peer: u32,
    pub elements: u64,
    pub bytes: u64,
    /// Of a step its number.
    pub number: u64,
}

#[derive(Clone, Debug, Default)]
struct Known {
    hash: u64,
    domain_bytes: usize,
    text: Box<[u8]>,
    meaning: Meaning,
}

/// The texts.
#[derive(Debug)]
pub struct Cache {
    markers: Box<[Known]>,
    /// Names of kernels and the like, of which nothing but the number is wanted.
    names: Box<[Known]>,
}

impl Default for Cache {
    fn default() -> Cache {
        let places = || vec![Known::default(); PLACES].into_boxed_slice();
        Cache { markers: places(), names: places() }
    }
}

impl Cache {
    /// What the name of a marker says; `number` gives the recorder's number of a name.
    #[inline]
    pub fn marker(&mut self, text: &[u8], domain: &[u8], number: impl FnMut(&[u8]) -> u32) -> Meaning {
        if let Some(step) = texts::step(text).filter(|_| is_default(domain)) {
            return Meaning { kind: texts::STEP, form: OF_A_STEP, peer: NONE, number: step, ..Meaning::default() };
        }
        let hash = hash(text) ^ hash(domain).rotate_left(17);
        let known = &mut self.markers[place(hash)];
        let is_it = known.hash == hash
            && known.domain_bytes == domain.len()
            && known.text.strip_prefix(domain).is_some_and(|known| known == text);
        if !is_it {
            let joined = [domain, text].concat().into_boxed_slice();
            let meaning = meaning(text, domain, number);
            *known = Known { hash, domain_bytes: domain.len(), text: joined, meaning };
        }
        known.meaning
    }

    /// The number of a name.
    #[inline]
    pub fn name(&mut self, text: &[u8], mut number: impl FnMut(&[u8]) -> u32) -> u32 {
        if text.is_empty() {
            return 0;
        }
        let hash = hash(text);
        let known = &mut self.names[place(hash)];
        if known.hash != hash || *known.text != *text {
            let meaning = Meaning { name: number(text), ..Meaning::default() };
            *known = Known { hash, domain_bytes: 0, text: text.into(), meaning };
        }
        known.meaning.name
    }
}

fn is_default(domain: &[u8]) -> bool {
    matches!(domain, b"" | b"NULL" | b"default")
}

fn meaning(text: &[u8], domain: &[u8], mut number: impl FnMut(&[u8]) -> u32) -> Meaning {
    let plain = Meaning { form: PLAIN, peer: NONE, ..Meaning::default() };
    match texts::said(text, domain) {
        Said::Step(step) => Meaning { kind: texts::STEP, form: OF_A_STEP, number: step, ..plain },
        Said::Kind(kind) => Meaning { kind, ..plain },
        Said::Communication(told) => Meaning {
            kind: COMMUNICATION,
            form: OF_A_COMMUNICATION,
            name: named(&told.name, &mut number),
            op: told.op,
            data_type: told.data_type,
            group: named(&told.group, &mut number),
            peer: told.peer.unwrap_or(NONE),
            elements: told.elements,
            bytes: told.bytes,
            number: u64::MAX, // nobody tells which of its group it is
        },
        Said::Marker(text) => {
            let is_communication = domain == texts::COMMUNICATION_DOMAIN.as_bytes();
            let kind = if is_communication { COMMUNICATION } else { MARKER };
            Meaning { kind, name: named(&text, &mut number), ..plain }
        }
    }
}

fn named(text: &str, number: &mut impl FnMut(&[u8]) -> u32) -> u32 {
    if text.is_empty() { 0 } else { number(text.as_bytes()) }
}

#[inline]
fn place(hash: u64) -> usize {
    usize::try_from(hash >> 52).unwrap_or(0) % PLACES
}

/// Eight bytes at a time: texts are compared afterwards.
#[inline]
fn hash(bytes: &[u8]) -> u64 {
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15; // 2^64 divided by the golden ratio
    let (chunks, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let words = chunks.iter().chain(std::iter::once(&last)).map(|chunk| u64::from_le_bytes(*chunk));
    words.fold(bytes.len() as u64, |hash, word| (hash.rotate_left(23) ^ word).wrapping_mul(SPREAD))
}
