//! Facts about a node's probes, extracted from the records that pass through a sink.

use super::probe::figures;
use taskd_core::job::Name;
use taskd_core::trace::probe_reader::{self, ProbeFormat, ProbeSink, ProbeSource};

/// Family of the errors that the CUPTI probe reports
/// ([`ErrorReport::family`](taskd_core::job::ErrorReport::family)).
pub const FAMILY: Name = Name::new("cuda.cupti");
/// Code of the error that CUPTI is unavailable in a process; the error's text contains the reason.
pub const UNAVAILABLE: Name = Name::new("unavailable");

/// Returns a sink for the trace records of a node's ranks, and a source. The source reports the facts about the
/// ranks' CUPTI probes that these records contain.
///
/// ```no_run
/// # async fn run(launcher: taskd_core::launch::LocalLauncher) {
/// use taskd_hw_cuda::cupti;
///
/// let (sink, source) = cupti::reader();
/// let recordings = launcher.recordings().sink(sink);
/// // Both go into the runtime: `.source(recordings).source(source)`.
/// # drop((recordings, source)); }
/// ```
#[must_use]
pub fn reader() -> (CuptiSink, CuptiSource) {
    probe_reader::reader(ProbeFormat {
        source: Name::new("cupti"),
        metric: |name| figures::NAMES.iter().position(|known| *known == name).map(|at| METRICS[at].clone()),
        losses: &["cupti.dropped", "cupti.given_up", "cupti.untimed", "cupti.unjoined"],
        unavailable: figures::UNAVAILABLE,
        error: (FAMILY, UNAVAILABLE),
    })
}

/// Metric names of the probe's counters, in the order of `figures::NAMES`.
const METRICS: [Name; figures::NAMES.len()] = [
    Name::new("cupti.records_total"),
    Name::new("cupti.brought_total"),
    Name::new("cupti.off_total"),
    Name::new("cupti.unknown_total"),
    Name::new("cupti.untimed_total"),
    Name::new("cupti.unjoined_total"),
    Name::new("cupti.dropped_total"),
    Name::new("cupti.given_up_total"),
    Name::new("cupti.refused_requests_total"),
    Name::new("cupti.stand_in_on"),
];

/// Sink for the trace records of a node's ranks, which extracts facts about the CUPTI probes from them. Created by
/// [`reader`].
pub type CuptiSink = ProbeSink;

/// Source of facts about the CUPTI probes in a node's ranks. Created by [`reader`].
///
/// For each rank that uses CUDA, the source reports: the probe's counters as metrics (`cupti.records_total`, ...,
/// `cupti.stand_in_on`) when they change, missing records as [`Signal::Lost`](taskd_core::trace::Signal::Lost), and
/// an unavailable CUPTI, with the reason, as an error of the family [`FAMILY`]. The source ends when its sink is
/// dropped. `with_stand_in` declares that the ranks use a stand-in for CUPTI
/// ([`CuptiProfile::is_stand_in`](super::CuptiProfile::is_stand_in)).
pub type CuptiSource = ProbeSource;
