//! Names of kinds in exported files.
//!
//! These names are part of the files' format and must not change.

use crate::trace::recorder::Kind;
use std::borrow::Cow;

/// Returns the name of a kind, as training teams use it.
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
