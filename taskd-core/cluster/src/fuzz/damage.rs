//! Damage of encoded messages: of any bytes, and of what stands before a value in MessagePack and in protobuf, such as a
//! length.

use super::random::Random;

/// Longest result: damage that repeats a part does not grow the input beyond it.
const BYTES_MAX: usize = 64 << 10;
/// Largest number of openings of arrays or maps that are inserted at once.
const NESTING_MAX: usize = 4000;

/// Openings of values in MessagePack: each is followed by a length, or by a number.
const OPENINGS: [u8; 16] =
    [0xc4, 0xc5, 0xc6, 0xc7, 0xc9, 0xca, 0xcb, 0xcf, 0xd3, 0xd9, 0xda, 0xdb, 0xdc, 0xdd, 0xde, 0xdf];
/// Whole values, and openings of short arrays and maps: nesting repeats one of the last four.
const VALUES: [u8; 10] = [0xc0, 0xc1, 0xc2, 0xc3, 0x00, 0xff, 0x91, 0x81, 0x92, 0x82];

/// Returns one of the inputs with one to four damages.
pub(super) fn damaged(random: &mut Random, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = random.pick(seeds).cloned().unwrap_or_default();
    for _ in 0..=random.below(4) {
        damage(random, &mut bytes, seeds);
        bytes.truncate(BYTES_MAX);
    }
    bytes
}

fn damage(random: &mut Random, bytes: &mut Vec<u8>, seeds: &[Vec<u8>]) {
    let at = random.below(bytes.len() + 1);
    let longest = 1 << random.below(8);
    let end = (at + 1 + random.below(longest)).min(bytes.len()).max(at);
    match random.below(14) {
        0 => bytes.truncate(at),
        1 | 2 => change(bytes, at, |byte| byte ^ (1 << (random.next() % 8))),
        3 => change(bytes, at, |_| random.byte()),
        4 => drop(bytes.drain(at..end)),
        5 => {
            let part = bytes.get(at..end).map(<[u8]>::to_vec).unwrap_or_default();
            let to = random.below(bytes.len() + 1);
            insert(bytes, to, &part);
        }
        6 => {
            let part = bytes.get(at..end).map(<[u8]>::to_vec).unwrap_or_default();
            (0..random.below(64)).for_each(|_| insert(bytes, at, &part));
        }
        7 => {
            let value = random.pick(&VALUES).copied().unwrap_or(0);
            change(bytes, at, |_| value);
        }
        8 => {
            let nested = random.pick(&VALUES[6..]).copied().unwrap_or(0x91);
            insert(bytes, at, &vec![nested; random.below(NESTING_MAX)]);
        }
        9 | 10 => opening(random, bytes, at),
        11 => varint(random, bytes, at),
        12 => splice(random, bytes, at, seeds),
        _ => bytes.get_mut(at..end).into_iter().for_each(|part| part.fill(0)),
    }
}

fn change(bytes: &mut [u8], at: usize, to: impl FnOnce(u8) -> u8) {
    if let Some(byte) = bytes.get_mut(at) {
        *byte = to(*byte);
    }
}

fn insert(bytes: &mut Vec<u8>, at: usize, part: &[u8]) {
    if bytes.len() + part.len() <= BYTES_MAX {
        drop(bytes.splice(at..at, part.iter().copied()));
    }
}

/// Replaces a byte by the opening of a value with an extreme length or number.
fn opening(random: &mut Random, bytes: &mut Vec<u8>, at: usize) {
    let mut part = vec![random.pick(&OPENINGS).copied().unwrap_or(0xdd)];
    part.extend(random.extreme().to_be_bytes().into_iter().skip(random.below(8)));
    let end = (at + 1).min(bytes.len());
    drop(bytes.splice(at..end, part));
}

/// Replaces a byte by a number in the form of protobuf.
fn varint(random: &mut Random, bytes: &mut Vec<u8>, at: usize) {
    let mut part = Vec::new();
    let mut value = random.extreme();
    while value >= 0x80 {
        part.push((value.to_le_bytes()[0] & 0x7f) | 0x80);
        value >>= 7;
    }
    part.push(value.to_le_bytes()[0]);
    let end = (at + 1).min(bytes.len());
    drop(bytes.splice(at..end, part));
}

/// Continues with the rest of another input.
fn splice(random: &mut Random, bytes: &mut Vec<u8>, at: usize, seeds: &[Vec<u8>]) {
    let Some(other) = random.pick(seeds) else { return };
    bytes.truncate(at);
    bytes.extend_from_slice(other.get(random.below(other.len() + 1)..).unwrap_or_default());
}
