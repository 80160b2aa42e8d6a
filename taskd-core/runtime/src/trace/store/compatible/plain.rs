//! Meaning of the format's own fields, and the additional data that a record needs.
//!
//! Writer and reader both use this module for the meaning of the plain fields, so that the data which the writer adds
//! is exactly the data that the reader restores.

use super::line::{BEGIN, BEGIN_ON_DEVICE, CommunicationText, END, Extra, INSTANT, Line};
use crate::trace::recorder::{
    Communication, DataType, Detail, DeviceCommunication, DeviceWork, Event, Kind, NameId, Op, Range,
};
use crate::trace::{NameTable, TimedRecord};

/// A record with its names as texts: the name numbers in `event` and `detail` are 0.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Plain {
    /// `None` for an end whose range number does not contain the kind.
    pub(super) kind: Option<Kind>,
    pub(super) event: Event,
    pub(super) name: String,
    pub(super) detail: Detail,
    pub(super) group: String,
}

/// Names of operations in the format: those that existing parsers know, and the others spelled in the same way.
const OPS: [(Op, &str); 11] = [
    (Op::AllReduce, "HcclAllReduce"),
    (Op::AllGather, "HcclAllGather"),
    (Op::ReduceScatter, "HcclReduceScatter"),
    (Op::Broadcast, "HcclBroadcast"),
    (Op::Reduce, "HcclReduce"),
    (Op::Gather, "HcclGather"),
    (Op::Scatter, "HcclScatter"),
    (Op::AllToAll, "HcclAlltoAll"),
    (Op::Barrier, "HcclBarrier"),
    (Op::Send, "HcclSend"),
    (Op::Recv, "HcclReceive"),
];

/// Names of element types in the format, and their size in bytes.
const DATA_TYPES: [(DataType, &str, u64); 13] = [
    (DataType::F32, "fp32", 4),
    (DataType::F16, "fp16", 2),
    (DataType::Bf16, "bfp16", 2),
    (DataType::F64, "fp64", 8),
    (DataType::I8, "int8", 1),
    (DataType::I16, "int16", 2),
    (DataType::I32, "int32", 4),
    (DataType::I64, "int64", 8),
    (DataType::U8, "uint8", 1),
    (DataType::U16, "uint16", 2),
    (DataType::U32, "uint32", 4),
    (DataType::U64, "uint64", 8),
    (DataType::Bool, "bool", 1),
];

/// Value that the format uses for unknown data.
const UNKNOWN: &str = "na";
/// Value that the format uses for a missing text.
const NULL: &str = "NULL";

const DEFAULT: &str = "default";
const COMMUNICATION: &str = "communication";
const NAMED: [(Kind, &str); 3] =
    [(Kind::DataLoader, "dataloader"), (Kind::SaveCheckpoint, "save_checkpoint"), (Kind::Forward, "forward")];

/// Returns `Name` and `Domain` of a record.
pub(super) fn texts(record: &Plain) -> (String, &'static str) {
    let named = NAMED.iter().find(|(kind, _)| record.kind == Some(*kind));
    match (record.event, record.kind, record.detail) {
        (Event::End { .. }, ..) => (String::new(), ""),
        (_, Some(Kind::Communication), Detail::Communication(c)) => {
            communication_text(record, c.op, c.data_type, c.elements.to_string(), UNKNOWN.to_owned())
        }
        (_, Some(Kind::Communication), Detail::DeviceCommunication(c)) => {
            let size = DATA_TYPES.iter().find(|(known, ..)| *known == c.data_type).map(|(.., size)| *size);
            let count = size.map_or(UNKNOWN.to_owned(), |size| (c.work.bytes / size).to_string());
            communication_text(record, c.op, c.data_type, count, c.work.stream.to_string())
        }
        (_, Some(Kind::Communication), _) => (record.name.clone(), COMMUNICATION),
        (_, Some(Kind::Step), Detail::Step { number, .. }) => (format!("step {number}"), DEFAULT),
        // For the device's part of a step, the correlation is the step's number.
        (_, Some(Kind::Step), Detail::Device(work)) => (format!("step {}", work.correlation), DEFAULT),
        _ => (named.map_or(record.name.clone(), |(_, text)| (*text).to_owned()), DEFAULT),
    }
}

fn communication_text(
    record: &Plain,
    op: Op,
    data_type: DataType,
    count: String,
    stream_id: String,
) -> (String, &'static str) {
    let op = OPS.iter().find(|(known, _)| *known == op).map_or(record.name.as_str(), |(_, text)| text);
    let data_type = DATA_TYPES.iter().find(|(known, ..)| *known == data_type);
    let text = CommunicationText {
        stream_id,
        count,
        data_type: data_type.map_or(UNKNOWN, |(_, text, _)| text).to_owned(),
        op_name: op.to_owned(),
        group_name: bare(&record.group).to_owned(),
    };
    (serde_json::to_string(&text).unwrap_or_default(), COMMUNICATION) // five strings can always be serialized
}

/// Returns a group's name without its members, which other readers do not expect in it.
fn bare(group: &str) -> &str {
    group.rsplit_once('|').map_or(group, |(name, _)| name)
}

/// Parses the plain fields of a line; `None` for a flag that our markers do not have.
pub(super) fn of_line(line: &Line) -> Option<Plain> {
    let event = match line.flag {
        INSTANT => Event::Instant,
        BEGIN | BEGIN_ON_DEVICE => Event::Begin { range: line.id },
        END => Event::End { range: line.id },
        _ => return None,
    };
    let name = line.name.as_deref().filter(|name| *name != NULL).unwrap_or_default();
    let plain =
        |kind, name: &str| Plain { kind, event, name: name.to_owned(), detail: Detail::None, group: String::new() };
    if line.flag == END {
        return Some(plain(Range::of_number(line.id).map(Range::kind), ""));
    }
    if line.domain.as_deref() == Some(COMMUNICATION) {
        let plain = plain(Some(Kind::Communication), name);
        return Some(serde_json::from_str(name).map_or(plain.clone(), |text| communication(plain, text)));
    }
    if let Some((kind, _)) = NAMED.iter().find(|(_, text)| *text == name) {
        return Some(plain(Some(*kind), ""));
    }
    match step_of(name) {
        Some(number) => {
            let detail = Detail::Step { number, cpu_nanos: 0 };
            Some(Plain { detail, ..plain(Some(Kind::Step), "") })
        }
        None => Some(plain(Some(Kind::User(0)), name)),
    }
}

/// Parses the number in `step 12`.
fn step_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("step ")?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

fn communication(plain: Plain, text: CommunicationText) -> Plain {
    let name = text.op_name.to_ascii_lowercase();
    let op = OPS.iter().find(|(_, known)| known.eq_ignore_ascii_case(&name)).map_or(Op::Other, |(op, _)| *op);
    let (data_type, size) = DATA_TYPES
        .iter()
        .find(|(_, known, _)| *known == text.data_type)
        .map_or((DataType::Other, 0), |(data_type, _, size)| (*data_type, *size));
    let elements: u64 = text.count.parse().unwrap_or(0);
    let bytes = elements.saturating_mul(size);
    let group = NameId(0);
    let detail = Communication { op, data_type, group, elements, bytes, peer: None, sequence: None };
    let name = if text.op_name == NULL { String::new() } else { text.op_name };
    Plain { name, detail: Detail::Communication(detail), group: text.group_name, ..plain }
}

/// Converts a record, and resolves its names.
pub(super) fn of_record(record: &TimedRecord, names: &NameTable) -> Plain {
    let (detail, group) = match record.detail {
        Detail::Communication(c) => {
            (Detail::Communication(Communication { group: NameId(0), ..c }), names.get(c.group).to_owned())
        }
        Detail::DeviceCommunication(c) => {
            (Detail::DeviceCommunication(DeviceCommunication { group: NameId(0), ..c }), names.get(c.group).to_owned())
        }
        other => (other, String::new()),
    };
    let (kind, event, name) = (Some(record.kind), record.event, names.get(record.name).to_owned());
    Plain { kind, event, name, detail, group }
}

/// Returns the additional data needed to reconstruct `actual` from `plain`.
pub(super) fn difference(plain: &Plain, actual: &Plain) -> Extra {
    let (figure, span) = match actual.event {
        Event::Counter { value } => (Some(value.to_bits()), None),
        Event::Span { nanos } => (None, Some(nanos)),
        _ => (None, None),
    };
    let mut extra = Extra {
        kind: actual.kind.filter(|kind| plain.kind != Some(*kind)).map(Kind::number),
        name: unlike(&actual.name, &plain.name).cloned(),
        figure,
        span,
        group: unlike(&actual.group, &plain.group).cloned(),
        ..Extra::default()
    };
    let code = code(&actual.detail);
    extra.detail = unlike(&code, &self::code(&plain.detail)).copied();
    match (actual.detail, default_of(code, &plain.detail)) {
        (Detail::Step { number, cpu_nanos }, Detail::Step { number: plain_number, cpu_nanos: plain_cpu }) => {
            extra.step = unlike(&number, &plain_number).copied();
            extra.cpu_nanos = unlike(&cpu_nanos, &plain_cpu).copied();
        }
        (Detail::Communication(c), Detail::Communication(plain)) => {
            extra.op = unlike(&c.op.code(), &plain.op.code()).copied();
            extra.data_type = unlike(&c.data_type.code(), &plain.data_type.code()).copied();
            extra.elements = unlike(&c.elements, &plain.elements).copied();
            extra.bytes = unlike(&c.bytes, &plain.bytes).copied();
            extra.peer = c.peer;
            extra.sequence = c.sequence;
        }
        (Detail::Device(work), _) => extra.add(work),
        (Detail::DeviceCommunication(c), _) => {
            extra.op = Some(c.op.code());
            extra.data_type = Some(c.data_type.code());
            extra.peer = c.peer;
            extra.add(c.work);
        }
        _ => {}
    }
    extra
}

/// Adds the additional data to `plain`; `None` for codes that this version does not know.
pub(super) fn combine(plain: Plain, extra: &Extra) -> Option<Plain> {
    let kind = match extra.kind {
        Some(number) => Some(Kind::of_number(number)?),
        None => plain.kind,
    };
    let event = match (extra.figure, extra.span) {
        (Some(bits), _) => Event::Counter { value: f64::from_bits(bits) },
        (None, Some(nanos)) => Event::Span { nanos },
        (None, None) => plain.event,
    };
    let code = extra.detail.unwrap_or_else(|| code(&plain.detail));
    let detail = match default_of(code, &plain.detail) {
        Detail::None if code != 0 => return None,
        Detail::None => Detail::None,
        Detail::Step { number, cpu_nanos } => {
            let (number, cpu_nanos) = (extra.step.unwrap_or(number), extra.cpu_nanos.unwrap_or(cpu_nanos));
            Detail::Step { number, cpu_nanos }
        }
        Detail::Communication(c) => Detail::Communication(Communication {
            op: extra.op.map_or(c.op, Op::of_code),
            data_type: extra.data_type.map_or(c.data_type, DataType::of_code),
            group: NameId(0),
            elements: extra.elements.unwrap_or(c.elements),
            bytes: extra.bytes.unwrap_or(c.bytes),
            peer: extra.peer,
            sequence: extra.sequence,
        }),
        Detail::Device(_) => Detail::Device(extra.work()),
        Detail::DeviceCommunication(_) => Detail::DeviceCommunication(DeviceCommunication {
            op: extra.op.map_or(Op::Other, Op::of_code),
            data_type: extra.data_type.map_or(DataType::Other, DataType::of_code),
            group: NameId(0),
            peer: extra.peer,
            work: extra.work(),
        }),
    };
    let name = extra.name.clone().unwrap_or(plain.name);
    Some(Plain { kind, event, name, detail, group: extra.group.clone().unwrap_or(plain.group) })
}

impl Extra {
    /// Stores all data of a device's work, for which the line's own fields have no room.
    const fn add(&mut self, work: DeviceWork) {
        self.device = Some(work.device);
        self.stream = Some(work.stream);
        self.correlation = Some(work.correlation);
        self.bytes = Some(work.bytes);
    }

    fn work(&self) -> DeviceWork {
        DeviceWork {
            device: self.device.unwrap_or(0),
            stream: self.stream.unwrap_or(0),
            correlation: self.correlation.unwrap_or(0),
            bytes: self.bytes.unwrap_or(0),
        }
    }
}

fn unlike<'a, T: PartialEq>(actual: &'a T, plain: &T) -> Option<&'a T> {
    Some(actual).filter(|actual| *actual != plain)
}

const fn code(detail: &Detail) -> u8 {
    match detail {
        Detail::None => 0,
        Detail::Step { .. } => 1,
        Detail::Communication(_) => 2,
        Detail::Device(_) => 3,
        Detail::DeviceCommunication(_) => 4,
    }
}

/// Returns the plain detail if it has this code, else an empty detail with the code.
fn default_of(wanted: u8, plain: &Detail) -> Detail {
    match wanted {
        _ if code(plain) == wanted => *plain,
        1 => Detail::Step { number: 0, cpu_nanos: 0 },
        2 => Detail::Communication(Communication {
            op: Op::Other,
            data_type: DataType::Other,
            group: NameId(0),
            elements: 0,
            bytes: 0,
            peer: None,
            sequence: None,
        }),
        3 => Detail::Device(DeviceWork::default()),
        4 => Detail::DeviceCommunication(DeviceCommunication {
            op: Op::Other,
            data_type: DataType::Other,
            group: NameId(0),
            peer: None,
            work: DeviceWork::default(),
        }),
        _ => Detail::None,
    }
}
