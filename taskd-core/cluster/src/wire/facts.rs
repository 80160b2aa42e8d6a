//! Facts and answers to probes, as they travel from a host to the manager.

use serde::{Deserialize, Serialize};
use taskd_runtime::job::Domain;
use taskd_runtime::trace::{Fact, Probe, SourceError};

/// Arguments of `sources.next`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NextArguments {
    /// Number of the last entry that the manager has taken: the agent may forget it and those before it.
    pub(crate) after: u64,
}

/// What the sources of a host have reported, in one message.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct FactsMessage {
    /// The agent's own clock when it made the message, in nanoseconds. The ages of facts count until then.
    pub(crate) sent_nanos: u64,
    /// In the order of their numbers.
    pub(crate) entries: Vec<FactsEntry>,
}

/// One batch of one source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct FactsEntry {
    /// Its number among the entries of this agent, from 1.
    pub(crate) number: u64,
    /// The source, by its position in the agent's Hello.
    pub(crate) source: u32,
    pub(crate) item: FactsItem,
}

/// What a source has returned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum FactsItem {
    /// Facts, oldest first.
    Facts(Vec<Fact>),
    Failed(SourceFailure),
    /// The source has ended; contains the reason if that is a failure.
    Ended(Option<String>),
}

/// Arguments of `sources.collect`. The answer is a list of pairs: a domain, and a `Result` with its reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct CollectArguments {
    pub(crate) probe: Probe,
    /// The domains of this host.
    pub(crate) about: Vec<Domain>,
}

/// Form of a [`SourceError`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SourceFailure {
    Unsupported,
    Unavailable(String),
    Failed(String),
}

impl From<SourceError> for SourceFailure {
    fn from(error: SourceError) -> SourceFailure {
        match error {
            SourceError::Unsupported => SourceFailure::Unsupported,
            SourceError::Unavailable(why) => SourceFailure::Unavailable(why),
            SourceError::Failed(why) => SourceFailure::Failed(why),
            other => SourceFailure::Failed(other.to_string()),
        }
    }
}

impl From<SourceFailure> for SourceError {
    fn from(failure: SourceFailure) -> SourceError {
        match failure {
            SourceFailure::Unsupported => SourceError::Unsupported,
            SourceFailure::Unavailable(why) => SourceError::Unavailable(why),
            SourceFailure::Failed(why) => SourceError::Failed(why),
        }
    }
}
