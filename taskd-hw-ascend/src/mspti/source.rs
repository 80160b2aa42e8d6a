//! Facts about the probes: their counters, and missing records.

use taskd_core::job::Name;
use taskd_core::trace::probe_reader::{self, ProbeFormat, ProbeSink, ProbeSource};

/// Family of the errors that the probe reports ([`ErrorReport::family`](taskd_core::job::ErrorReport::family)).
pub const FAMILY: Name = Name::new("ascend.mspti");
/// Code of the error that mspti is unavailable in a process. The text of the error contains the reason.
pub const UNAVAILABLE: Name = Name::new("unavailable");

/// Returns a connected pair: a sink that receives the ranks' trace records (for `RecorderSource::sink`), and a
/// source that reports the facts about the ranks' probes.
///
/// If the ranks use a stand-in for mspti ([`MsptiProfile::is_stand_in`](super::MsptiProfile::is_stand_in)), declare
/// this to the source by [`with_stand_in`](MsptiSource::with_stand_in). The probes also report a stand-in, as the
/// metric `mspti.stand_in`.
#[must_use]
pub fn reader() -> (MsptiSink, MsptiSource) {
    probe_reader::reader(ProbeFormat {
        source: Name::new("mspti"),
        metric: |name| name.starts_with("mspti.").then(|| Name::from(name.to_owned())),
        losses: &["mspti.unjoined", "mspti.cut_buffers", "mspti.refused_requests"], // each unit is at least one record
        unavailable: "mspti is unavailable: ",
        error: (FAMILY, UNAVAILABLE),
    })
}

/// Sink for the trace records of a node's ranks, which extracts the counters of the mspti probes from them. Created by
/// [`reader`].
pub type MsptiSink = ProbeSink;

/// Source of the facts about the mspti probes of a node. Created by [`reader`].
///
/// For each rank, the source reports: every counter of the rank's probe as a metric when the counter changes, missing
/// records as [`Signal::Lost`](taskd_core::trace::Signal::Lost), and an unavailable mspti, with the reason, as an
/// error of the family [`FAMILY`]. The source ends when its sink is dropped.
pub type MsptiSource = ProbeSource;
