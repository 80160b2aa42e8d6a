//! Refusals of strategies: the kind, for programs, and the reason, for people.

use std::fmt;

/// The kind of reason for which a strategy refuses to propose a recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RefusalKind {
    /// A precondition does not hold for this incident, for example because the state of a rank is lost. Another
    /// incident, or the same one later, may be recovered.
    #[default]
    Precondition,
    /// The strategy can never work for this job
    /// ([`unsupported_reason`](super::RecoveryStrategy::unsupported_reason)).
    Unsupported,
    /// The strategy has failed in this incident as often as its wrapper [`Limit`](super::Limit) allows.
    TriedEnough,
}

/// A strategy's refusal to propose a recovery.
///
/// A decision records the `reason` as text. The `kind` is for wrappers of strategies and for programs that embed
/// the runtime, so that they need not read the text. A text converts to a refusal of the kind
/// [`RefusalKind::Precondition`]:
///
/// ```
/// # extern crate taskd_kernel as taskd_core;
/// use taskd_core::recover::{RefusalError, RefusalKind};
///
/// fn check(spares: u32) -> Result<(), RefusalError> {
///     if spares == 0 {
///         return Err("there is no spare host".into());
///     }
///     Ok(())
/// }
///
/// let refusal = check(0).unwrap_err();
/// assert_eq!((refusal.kind, refusal.to_string()), (RefusalKind::Precondition, "there is no spare host".to_owned()));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RefusalError {
    /// The kind of reason for which the strategy refuses.
    pub kind: RefusalKind,
    /// The reason why the strategy proposes no recovery, in a few words.
    pub reason: String,
}

impl RefusalError {
    /// Creates a refusal with this kind and this reason.
    pub fn new(kind: RefusalKind, reason: impl Into<String>) -> RefusalError {
        RefusalError { kind, reason: reason.into() }
    }
}

impl fmt::Display for RefusalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.reason)
    }
}

impl std::error::Error for RefusalError {}

impl From<String> for RefusalError {
    fn from(reason: String) -> RefusalError {
        RefusalError::new(RefusalKind::default(), reason)
    }
}

impl From<&str> for RefusalError {
    fn from(reason: &str) -> RefusalError {
        RefusalError::from(reason.to_owned())
    }
}

impl From<RefusalError> for String {
    fn from(refusal: RefusalError) -> String {
        refusal.reason
    }
}
