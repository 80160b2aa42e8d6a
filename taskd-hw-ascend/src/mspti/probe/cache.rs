//! Cache of recent texts and their meanings: most markers of a training use the same few texts.

use super::forms::{COMMUNICATION, MARKER, NONE, OF_A_COMMUNICATION, OF_A_STEP, PLAIN};
use super::slots::{SLOTS, hash, slot};
use super::texts::{self, Said};

/// Meaning of the text of an mspti marker. Names and kinds are given as the numbers that the trace recorder uses
/// for them.
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
    /// Number of the training step, if the marker's text names a step; `u64::MAX` for a communication, since mspti does
    /// not number communications.
    pub number: u64,
}

#[derive(Clone, Debug, Default)]
struct Known {
    hash: u64,
    domain_bytes: usize,
    text: Box<[u8]>,
    meaning: Meaning,
}

/// Cache of the texts of mspti's records, with their meanings.
#[derive(Debug)]
pub struct Cache {
    markers: Box<[Known]>,
    /// Names of kernels and similar texts, of which only the recorder's number is needed.
    names: Box<[Known]>,
}

impl Default for Cache {
    fn default() -> Cache {
        let slots = || vec![Known::default(); SLOTS].into_boxed_slice();
        Cache { markers: slots(), names: slots() }
    }
}

impl Cache {
    /// Returns the meaning of a marker from its name `text` and its domain. The callback `number` returns the trace
    /// recorder's number of a name.
    #[inline]
    pub fn marker(&mut self, text: &[u8], domain: &[u8], number: impl FnMut(&[u8]) -> u32) -> Meaning {
        if let Some(step) = texts::step(text).filter(|_| is_default(domain)) {
            return Meaning { kind: texts::STEP, form: OF_A_STEP, peer: NONE, number: step, ..Meaning::default() };
        }
        let hash = hash(text) ^ hash(domain).rotate_left(17);
        let known = &mut self.markers[slot(hash)];
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

    /// Returns the trace recorder's number of the name `text`, from the cache if possible, otherwise from the callback
    /// `number`.
    #[inline]
    pub fn name(&mut self, text: &[u8], mut number: impl FnMut(&[u8]) -> u32) -> u32 {
        if text.is_empty() {
            return 0;
        }
        let hash = hash(text);
        let known = &mut self.names[slot(hash)];
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
            number: u64::MAX, // mspti does not number the communications of a group
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
