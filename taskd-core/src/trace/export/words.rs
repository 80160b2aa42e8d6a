//! How kinds, operations and types of elements are called in exported files.
//!
//! These words are part of the files' format: they stay.

use crate::trace::recorder::{DataType, Kind, Op};
use std::borrow::Cow;

/// A kind, as training teams call it.
pub(super) fn kind(kind: Kind) -> Cow<'static, str> {
    Cow::Borrowed(match kind {
        Kind::Step => "Step",
        Kind::DataLoader => "DataLoader",
        Kind::SaveCheckpoint => "SaveCheckpoint",
        Kind::Forward => "FP",
        Kind::Communication => "Communication",
        Kind::User(which) => return Cow::Owned(format!("User {which}")),
    })
}

/// An operation of a process group.
pub(super) const fn op(op: Op) -> &'static str {
    match op {
        Op::Other => "other",
        Op::AllReduce => "all_reduce",
        Op::AllGather => "all_gather",
        Op::ReduceScatter => "reduce_scatter",
        Op::Broadcast => "broadcast",
        Op::Reduce => "reduce",
        Op::Gather => "gather",
        Op::Scatter => "scatter",
        Op::AllToAll => "all_to_all",
        Op::Barrier => "barrier",
        Op::Send => "send",
        Op::Recv => "recv",
    }
}

/// The type of an element.
pub(super) const fn data_type(data_type: DataType) -> &'static str {
    match data_type {
        DataType::Other => "other",
        DataType::F32 => "f32",
        DataType::F16 => "f16",
        DataType::Bf16 => "bf16",
        DataType::F64 => "f64",
        DataType::I8 => "i8",
        DataType::I16 => "i16",
        DataType::I32 => "i32",
        DataType::I64 => "i64",
        DataType::U8 => "u8",
        DataType::U16 => "u16",
        DataType::U32 => "u32",
        DataType::U64 => "u64",
        DataType::Bool => "bool",
    }
}
