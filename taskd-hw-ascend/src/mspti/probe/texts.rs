//! Meaning of marker names, depending on the marker's domain.
//!
//! Any program can write marker names: parsing always terminates, and a text that is not understood is a plain marker
//! of that name.

use std::borrow::Cow;

/// The trace recorder's number of the kind "training step". mspti's records contain this kind and the following
/// ones only as the text of a marker; the numbers are those of `include/taskd.h` of `taskd-core`.
pub const STEP: u32 = 1;
pub const DATA_LOADER: u32 = 2;
pub const SAVE_CHECKPOINT: u32 = 3;
pub const FORWARD: u32 = 4;

/// Name of the default domain of mspti's markers. A marker whose domain is empty or `NULL` is in it as well. The
/// names of markers in this domain and in `COMMUNICATION_DOMAIN` may have a special meaning; markers of other
/// domains keep their plain names.
pub const DEFAULT_DOMAIN: &str = "default";
pub const COMMUNICATION_DOMAIN: &str = "communication";

/// Meaning of a marker's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said<'a> {
    Step(u64),
    /// A phase of the training: data loading, saving a checkpoint, or the forward pass. The field is the trace
    /// recorder's number of the phase's kind.
    Kind(u32),
    Communication(Communication<'a>),
    /// Any other marker. The field is the marker's name.
    Marker(Cow<'a, str>),
}

/// Description of a collective or point-to-point operation, parsed from the name of a marker.
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

/// Parses the name of a marker, whose meaning depends on the marker's domain.
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

/// Returns the number of the step in a text such as `step 12`; `None` for any other text.
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

/// Parses both published formats of a communication's name: a JSON object of strings, and
/// `comm:HcclXxx,group,dtype,count`.
fn communication(text: &str) -> Option<Communication<'static>> {
    let mut told = Communication::default();
    let (mut count, mut name) = (0, String::new());
    let (mut source, mut destination) = (None, None);
    if let Some(fields) = text.strip_prefix("comm:") {
        // The name of a group may contain commas.
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

/// Passes every field of a JSON object, whose values are strings or plain words, to `each`. Returns `None` if the text
/// is no such object.
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

/// Parses a string in quotes, and returns it with the remaining text.
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

/// Decodes the four digits of a `\u` escape; a code that is not a character becomes U+FFFD.
fn escaped(chars: &mut std::str::CharIndices<'_>) -> Option<char> {
    let mut code = 0;
    for _ in 0..4 {
        code = code * 16 + chars.next()?.1.to_digit(16)?;
    }
    Some(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER))
}

/// Parses a number or another word without quotes, and returns it with the remaining text.
fn word(text: &str) -> Option<(Cow<'_, str>, &str)> {
    let end = text.find(|char: char| !(char.is_ascii_alphanumeric() || matches!(char, '-' | '+' | '.')))?;
    (end > 0).then(|| (Cow::Borrowed(&text[..end]), &text[end..]))
}

const SEND: u32 = 10;
const RECV: u32 = 11;

/// Operations by parts of their names, as in the vendor's own readers; longer parts precede their substrings.
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

/// Returns the trace recorder's number of the operation in a name such as `HcclAllReduce` or
/// `hcom_allReduce__123_0`; 0 for an unknown operation.
#[must_use]
pub fn op_of(name: &str) -> u32 {
    let name: String = name.chars().filter(|char| *char != '_').map(|char| char.to_ascii_lowercase()).collect();
    OPS.iter().find(|(part, _)| name.contains(part)).map_or(0, |(_, op)| *op)
}

/// Data types: name in markers, the vendor's number, the recorder's number, and size in bytes.
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

/// Returns the trace recorder's number of the data type that has this number in mspti; 0 for an unknown data type.
#[must_use]
pub fn data_type_of_number(number: i32) -> u32 {
    DATA_TYPES.iter().find(|(_, known, ..)| *known == number).map_or(0, |(_, _, own, _)| *own)
}

/// Returns the size in bytes of one element of the data type that has this number in the trace recorder; 0 if the
/// data type is unknown.
#[must_use]
pub fn size_of(data_type: u32) -> u64 {
    DATA_TYPES.iter().find(|(_, _, own, _)| *own == data_type).map_or(0, |(.., size)| *size)
}
