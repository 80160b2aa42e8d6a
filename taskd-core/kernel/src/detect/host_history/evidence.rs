//! A detector that adds to its faults the history of the suspect's host.

use super::HostHistory;
use crate::detect::{FaultDetector, Finding, Findings};
use crate::job::JobTime;
use crate::state::View;
use crate::trace::Observation;

/// Detector that wraps another one and adds evidence about the host to its faults (see
/// [`HostHistory::with_evidence`]).
#[derive(Debug)]
pub struct HostEvidence<D> {
    inner: D,
    history: HostHistory,
    start_unix_seconds: u64,
}

impl<D> HostEvidence<D> {
    pub(super) const fn new(inner: D, history: HostHistory, start_unix_seconds: u64) -> HostEvidence<D> {
        HostEvidence { inner, history, start_unix_seconds }
    }

    fn pass(&self, mut found: Findings, view: &View, out: &mut Findings) {
        let now = self.start_unix_seconds.saturating_add(view.now.since(JobTime::START).as_secs());
        for finding in found.drain() {
            out.push(match finding {
                Finding::Blame(fault) => {
                    let host = view.node_of(&fault.primary_suspect().domain);
                    let evidence = host.and_then(|host| self.history.evidence(host, now));
                    Finding::Blame(match evidence {
                        Some(evidence) => fault.with_evidence(evidence),
                        None => fault,
                    })
                }
                other => other,
            });
        }
    }
}

impl<D: FaultDetector> FaultDetector for HostEvidence<D> {
    crate::delegate!(FaultDetector to |this| this.inner, except config, observe, expire);

    fn config(&self) -> String {
        let (inner, start) = (self.inner.config(), self.start_unix_seconds);
        format!("{inner} host_history={:016x} start_unix_s={start}", self.history.checksum())
    }
    fn observe(&mut self, observation: &Observation, view: &View, out: &mut Findings) {
        let mut found = Findings::default();
        self.inner.observe(observation, view, &mut found);
        if !found.is_empty() {
            self.pass(found, view, out);
        }
    }
    fn expire(&mut self, view: &View, out: &mut Findings) {
        let mut found = Findings::default();
        self.inner.expire(view, &mut found);
        self.pass(found, view, out);
    }
}
