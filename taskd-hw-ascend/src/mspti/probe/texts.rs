//! What the name of a marker says, by the domain that it is of.
//!
//! It reads texts that anybody can have written: whatever they are, it ends, and what is not understood is a marker of that
//! name.

use std::borrow::Cow;

/// Kinds and forms, as `include/taskd.h` of `taskd-core` numbers them.
pub const STEP: u32 = 1;
pub const DATA_LOADER: u32 = 2;
pub const SAVE_CHECKPOINT: u32 = 3;
pub const FORWARD: u32 = 4;
pub const COMMUNICATION: u32 = 5;
pub const KERNEL: u32 = 6;
pub const COPY: u32 = 7;
pub const API: u32 = 8;
pub const MARKER: u32 = 9;

/// The domains whose markers mean something here.
pub const DEFAULT_DOMAIN: &str = "default";
pub const COMMUNICATION_DOMAIN: &str = "communication";

/// What a text says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said<'a> {
    Step(u64),
    /// One of the kinds that have no more than a name.
    Kind(u32),
    Communication(Communication<'a>),
    /// Anything else.
    Marker(Cow<'a, str>),
}

/// What a text says of a communication.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Communication<'a> {
    pub name: Cow<'a, str>,
    pub op: u32,
    pub data_type: u32,
    pub group: Cow<'a, str>,
    pub elements: u64,
    pub bytes: u64,
    pub peer: Option<u32>,
}

/// What the name of a marker says.
#[must_use]
pub fn said<'a>(text: &'a [u8], domain: &[u8]) -> Said<'a> {
    let text = String::from_utf8_lossy(text);
    let is_default = matches!(domain, b"" | b"NULL") || domain == DEFAULT_DOMAIN.as_bytes();
    if domain == COMMUNICATION_DOMAIN.as_bytes()
        && let Some(communication) = communication(&text)
    {
        return Said::Communication(communication);
    }
    match &*text {
        "dataloader" if is_default => Said::Kind(DATA_LOADER),
        "save_checkpoint" if is_default => Said::Kind(SAVE_CHECKPOINT),
        "forward" if is_default => Said::Kind(FORWARD),
        other => match step(other.as_bytes()).filter(|_| is_default) {
            Some(step) => Said::Step(step),
            None => Said::Marker(text),
        },
    }
}

/// The number in `step 12`.
#[must_use]
pub fn step(text: &[u8]) -> Option<u64> {
    let digits = text.strip_prefix(b"step ")?;
    if digits.is_empty() || digits.len() > 19 {
        return None;
    }
    digits.iter().try_fold(0_u64, |number, digit| match digit {
        b'0'..=b'9' => Some(number * 10 + u64::from(digit - b'0')),
        _ => None,
    })
}

/// Both forms that are published: a JSON object of texts, and `comm:HcclXxx,group,dtype,count`.
fn communication(text: &str) -> Option<Communication<'static>> {
    let mut told = Communication::default();
    let (mut count, mut name) = (0, String::new());
    let (mut source, mut destination) = (None, None);
    if let Some(fields) = text.strip_prefix("comm:") {
        // The name of a group may have commas in it.
        let (op, rest) = fields.split_once(',')?;
        let (rest, number) = rest.rsplit_once(',')?;
        let (group, data_type) = rest.rsplit_once(',')?;
        name = op.to_owned();
        told.group = Cow::Owned(group.to_owned());
        told.data_type = data_type_of(data_type);
        count = number.trim().parse().unwrap_or(0);
    } else {
        fields_of(text, |key, value| match key {
            "opName" => name = value.into_owned(),
            "groupName" => told.group = Cow::Owned(value.into_owned()),
            "dataType" => told.data_type = data_type_of(&value),
            "count" => count = value.trim().parse().unwrap_or(0),
            "srcRank" => source = value.trim().parse().ok(),
            "destRank" => destination = value.trim().parse().ok(),
            _ => (),
        })?;
    }
    told.op = op_of(&name);
    told.elements = count;
    told.bytes = count.saturating_mul(size_of(told.data_type));
    told.peer = match told.op {
        SEND => destination,
        RECV => source,
        _ => source.or(destination),
    };
    told.name = Cow::Owned(name);
    Some(told)
}

/// Every field of a JSON object whose values are texts or plain words. `None`: it is none.
fn fields_of(text: &str, mut each: impl FnMut(&str, Cow<'_, str>)) -> Option<()> {
    let mut rest = text.trim().strip_prefix('{')?.trim_start();
    if let Some(after) = rest.strip_prefix('}') {
        return after.is_empty().then_some(());
    }
    loop {
        let (key, after) = quoted(rest)?;
        let after = after.trim_start().strip_prefix(':')?.trim_start();
        let (value, after) = match quoted(after) {
            Some(found) => found,
            None => word(after)?,
        };
        each(&key, value);
        let after = after.trim_start();
        match after.strip_prefix(',') {
            Some(next) => rest = next.trim_start(),
            None => return (after == "}").then_some(()),
        }
    }
}

/// A text in quotes, and what is behind it.
fn quoted(text: &str) -> Option<(Cow<'_, str>, &str)> {
    let text = text.strip_prefix('"')?;
    let end = text.find(['"', '\\'])?;
    if text.as_bytes().get(end) == Some(&b'"') {
        return Some((Cow::Borrowed(&text[..end]), &text[end + 1..]));
    }
    let (mut value, mut chars) = (String::new(), text.char_indices());
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return Some((Cow::Owned(value), &text[at + 1..])),
            '\\' => value.push(match chars.next()?.1 {
                'n' => '\n',
                't' => '\t',
                'r' => '\r',
                'b' => '\u{8}',
                'f' => '\u{c}',
                'u' => escaped(&mut chars)?,
                other @ ('"' | '\\' | '/') => other,
                _ => return None,
            }),
            other => value.push(other),
        }
    }
    None
}

/// The character of four digits; what is none by itself is a replacement.
fn escaped(chars: &mut std::str::CharIndices<'_>) -> Option<char> {
    let mut code = 0;
    for _ in 0..4 {
        code = code * 16 + chars.next()?.1.to_digit(16)?;
    }
    Some(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER))
}

/// A number or another word without quotes, and what is behind it.
fn word(text: &str) -> Option<(Cow<'_, str>, &str)> {
    let end = text.find(|char: char| !(char.is_ascii_alphanumeric() || matches!(char, '-' | '+' | '.')))?;
    (end > 0).then(|| (Cow::Borrowed(&text[..end]), &text[end..]))
}

const SEND: u32 = 10;
const RECV: u32 = 11;

/// Operations by what their names hold, as the vendor's own readers look for them; longer ones stand first.
const OPS: [(&str, u32); 14] = [
    ("allreduce", 1),
    ("allgather", 2),
    ("reducescatter", 3),
    ("broadcast", 4),
    ("alltoall", 8),
    ("barrier", 9),
    ("batchsendrecv", 0),
    ("sendrecv", 0),
    ("scatter", 7),
    ("gather", 6),
    ("receive", RECV),
    ("recv", RECV),
    ("send", SEND),
    ("reduce", 5),
];

/// The operation of a name such as `HcclAllReduce` or `hcom_allReduce__123_0`; 0 for another.
#[must_use]
pub fn op_of(name: &str) -> u32 {
    let name: String = name.chars().filter(|char| *char != '_').map(|char| char.to_ascii_lowercase()).collect();
    OPS.iter().find(|(part, _)| name.contains(part)).map_or(0, |(_, op)| *op)
}

/// Types of elements: the name that markers use, the vendor's number, the recorder's, and the size in bytes.
const DATA_TYPES: [(&str, i32, u32, u64); 12] = [
    ("fp32", 4, 1, 4),
    ("fp16", 3, 2, 2),
    ("bfp16", 11, 3, 2),
    ("fp64", 10, 4, 8),
    ("int8", 0, 5, 1),
    ("int16", 1, 6, 2),
    ("int32", 2, 7, 4),
    ("int64", 5, 8, 8),
    ("uint8", 7, 9, 1),
    ("uint16", 8, 10, 2),
    ("uint32", 9, 11, 4),
    ("uint64", 6, 12, 8),
];

fn data_type_of(name: &str) -> u32 {
    DATA_TYPES.iter().find(|(known, ..)| known.eq_ignore_ascii_case(name)).map_or(0, |(_, _, own, _)| *own)
}

/// The recorder's number of a vendor's type; 0 for one that it does not have.
#[must_use]
pub fn data_type_of_number(number: i32) -> u32 {
    DATA_TYPES.iter().find(|(_, known, ..)| *known == number).map_or(0, |(_, _, own, _)| *own)
}

/// Bytes of an element; 0 where nobody knows.
#[must_use]
pub fn size_of(data_type: u32) -> u64 {
    DATA_TYPES.iter().find(|(_, _, own, _)| *own == data_type).map_or(0, |(.., size)| *size)
}
