//! How kinds are called in exported files.
//!
//! These words are part of the files' format: they stay.

use crate::trace::recorder::Kind;
use std::borrow::Cow;

/// A kind, as training teams call it.
pub(super) fn kind(kind: Kind) -> Cow<'static, str> {
    Cow::Borrowed(match kind {
        Kind::Step => "Step",
        Kind::DataLoader => "DataLoader",
        Kind::SaveCheckpoint => "SaveCheckpoint",
        Kind::Forward => "FP",
        Kind::Communication => "Communication",
        Kind::Kernel => "Kernel",
        Kind::Copy => "Copy",
        Kind::Api => "API",
        Kind::Marker => "Marker",
        Kind::User(which) => return Cow::Owned(format!("User {which}")),
    })
}
