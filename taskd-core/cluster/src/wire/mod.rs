//! The messages between agents and manager (`proto/taskd/cluster/v1/cluster.proto`), and the form of their bodies.

mod body;
mod codec;
mod facts;
mod methods;
mod records;

pub(crate) use body::{BODY_BYTES_MAX, BodyError, decode, encode, pack, unpack};
pub(crate) use codec::SmallCodec;
pub(crate) use facts::{CollectArguments, FactsEntry, FactsItem, FactsMessage, NextArguments, SourceFailure};
pub(crate) use methods::{
    DirectiveArguments, LinksAnswer, LinksArguments, PrepareArguments, StartArguments, StopArguments, method,
};
pub(crate) use records::{FILES_MAX, ListRecords, PART_BYTES_MAX, ReadRecords, RecordFile, RecordsList, RecordsPart};

/// Name of the metadata in which a process that is not the manager returns the manager's address.
pub(crate) const MANAGER_METADATA: &str = "taskd-manager";
/// Room for what surrounds a body in a message, in bytes.
pub(crate) const MESSAGE_BYTES_MORE: usize = 1 << 16;

/// Version of the protocol between agents and managers that this program speaks.
pub const VERSION: u32 = 2;
/// Oldest version of the protocol that this program speaks.
pub(crate) const VERSION_MIN: u32 = 1;
/// First version of the protocol with relays.
pub(crate) const VERSION_RELAYS: u32 = 2;

/// Generated from the protocol's file.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
pub(crate) mod proto {
    tonic::include_proto!("taskd.cluster.v1");
}

/// Returns the newest version that both sides speak.
pub(crate) fn common_version(min: u32, max: u32) -> Option<u32> {
    let newest = VERSION.min(max);
    (newest >= VERSION_MIN.max(min)).then_some(newest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_use_the_newest_common_version() {
        assert_eq!(common_version(VERSION, VERSION), Some(VERSION));
        assert_eq!(common_version(0, VERSION + 5), Some(VERSION));
        assert_eq!(common_version(VERSION_MIN, VERSION - 1), Some(VERSION - 1), "an agent one version older works");
        assert_eq!(common_version(VERSION + 1, VERSION + 5), None, "the agent is too new");
        assert_eq!(common_version(0, VERSION_MIN - 1), None, "the agent is too old");
    }
}
