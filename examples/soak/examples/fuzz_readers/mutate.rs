//! Damage of valid inputs: of bytes, and of JSON as a tree.

use super::random::Random;
use serde_json::Value;

/// Longest result: damage that repeats a part does not grow the input beyond it.
const BYTES_MAX: usize = 64 * 1024;
/// Largest number of brackets that are inserted at once.
const NESTING_MAX: usize = 5_000;

/// Parts that readers handle on their own.
const TOKENS: [&[u8]; 26] = [
    b"null",
    b"true",
    b"-1",
    b"-0",
    b"1e309",
    b"-1e400",
    b"NaN",
    b"18446744073709551616",
    b"9223372036854775807",
    b"-9223372036854775808",
    b"99999999999999999999999999999999999999999",
    b"0.00000000000000000000000000001",
    b"\"",
    b"\\",
    b"\\ud800",
    b"\\u0000",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\0",
    b"\r\n",
    b"\xff\xfe",
    b"\xc3\x28",
];

/// Returns the input with one to four damages. `others` are valid inputs from which parts are taken.
pub(crate) fn bytes(random: &mut Random, input: &[u8], others: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..=random.below(4) {
        damage(random, &mut bytes, others);
        bytes.truncate(BYTES_MAX);
    }
    bytes
}

fn damage(random: &mut Random, bytes: &mut Vec<u8>, others: &[Vec<u8>]) {
    let at = random.below(bytes.len() + 1);
    let longest = 1 << random.below(9);
    let end = (at + 1 + random.below(longest)).min(bytes.len()).max(at);
    match random.below(16) {
        0 => bytes.truncate(at),
        1 | 2 => flip(random, bytes, at),
        3 => set(bytes, at, random.next().to_le_bytes()[0]),
        4 => drop(bytes.drain(at..end)),
        5 => {
            let part = bytes[at..end].to_vec();
            insert(bytes, at, &part);
        }
        6 => {
            let part = bytes[at..end].to_vec();
            let to = random.below(bytes.len() + 1);
            insert(bytes, to, &part);
        }
        7 | 8 => insert(bytes, at, random.pick::<&[u8]>(&TOKENS)),
        9 | 10 => number(random, bytes, at),
        11 => bytes[at..end].fill(0),
        12 => splice(random, bytes, at, others),
        13 => {
            let bracket = *random.pick(b"[{(]");
            insert(bytes, at, &vec![bracket; random.below(NESTING_MAX)]);
        }
        14 => encode(random, bytes),
        _ => {
            let part = bytes[at..end].to_vec();
            for _ in 0..random.below(64) {
                insert(bytes, at, &part);
            }
        }
    }
}

fn insert(bytes: &mut Vec<u8>, at: usize, part: &[u8]) {
    if bytes.len() + part.len() <= BYTES_MAX {
        drop(bytes.splice(at..at, part.iter().copied()));
    }
}

fn flip(random: &mut Random, bytes: &mut [u8], at: usize) {
    if let Some(byte) = bytes.get_mut(at) {
        *byte ^= 1 << random.below(8);
    }
}

fn set(bytes: &mut [u8], at: usize, value: u8) {
    if let Some(byte) = bytes.get_mut(at) {
        *byte = value;
    }
}

/// Replaces the next digits by another number.
fn number(random: &mut Random, bytes: &mut Vec<u8>, at: usize) {
    let Some(start) = bytes[at..].iter().position(u8::is_ascii_digit).map(|found| at + found) else { return };
    let length = bytes[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let sign = if random.is_one_in(4) { "-" } else { "" };
    let text = format!("{sign}{}", random.extreme());
    drop(bytes.splice(start..start + length, text.bytes()));
}

/// Continues with the rest of another input.
fn splice(random: &mut Random, bytes: &mut Vec<u8>, at: usize, others: &[Vec<u8>]) {
    if others.is_empty() {
        return;
    }
    let other = random.pick(others);
    bytes.truncate(at);
    bytes.extend_from_slice(&other[random.below(other.len() + 1)..]);
}

/// Writes the input in another encoding.
fn encode(random: &mut Random, bytes: &mut Vec<u8>) {
    *bytes = match random.below(3) {
        0 => [b"\xef\xbb\xbf".as_slice(), bytes].concat(),
        1 => [0xff, 0xfe].into_iter().chain(bytes.iter().flat_map(|byte| [*byte, 0])).collect(),
        _ => bytes.iter().map(|byte| if byte.is_ascii_alphabetic() { byte | 0x80 } else { *byte }).collect(),
    };
}

/// Damages one place of a JSON value.
pub(crate) fn tree(random: &mut Random, value: &mut Value) {
    let mut place = random.below(count(value));
    visit(value, &mut place, &mut |node| change(random, node));
}

fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(count).sum(),
        Value::Object(members) => members.values().map(count).sum(),
        _ => 0,
    }
}

/// Calls `change` with the node at this place in the order of depth.
fn visit(value: &mut Value, place: &mut usize, change: &mut dyn FnMut(&mut Value)) -> bool {
    if *place == 0 {
        change(value);
        return true;
    }
    *place -= 1;
    match value {
        Value::Array(items) => items.iter_mut().any(|item| visit(item, place, change)),
        Value::Object(members) => members.values_mut().any(|member| visit(member, place, change)),
        _ => false,
    }
}

fn change(random: &mut Random, node: &mut Value) {
    match (random.below(8), &mut *node) {
        (0, Value::Array(items)) if !items.is_empty() => drop(items.remove(random.below(items.len()))),
        (1, Value::Array(items)) if !items.is_empty() => {
            let copy = random.pick(items.as_slice()).clone();
            items.push(copy);
        }
        (2, Value::Array(items)) => items.reverse(),
        (0 | 1, Value::Object(members)) if !members.is_empty() => {
            let at = random.below(members.len());
            if let Some(key) = members.keys().nth(at).cloned() {
                members.remove(&key);
            }
        }
        (2, Value::Object(members)) if members.len() > 1 => {
            let keys: Vec<String> = members.keys().cloned().collect();
            let (one, other) = (random.pick(&keys).clone(), random.pick(&keys).clone());
            let moved = members.get(&one).cloned().unwrap_or_default();
            members.insert(other, moved);
        }
        (3, _) => {
            for _ in 0..1 + random.below(40) {
                *node = Value::Array(vec![node.take()]);
            }
        }
        _ => *node = scalar(random),
    }
}

fn scalar(random: &mut Random) -> Value {
    let number = random.extreme();
    match random.below(8) {
        0 => Value::Null,
        1 => Value::Bool(true),
        2 => number.into(),
        3 => number.cast_signed().into(),
        4 => number.to_string().into(),
        5 => (f64::from_bits(random.next())).into(),
        6 => String::new().into(),
        _ => Value::Array(Vec::new()),
    }
}
