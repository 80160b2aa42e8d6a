//! Evidence about the host of a suspect: how many of all hosts' incidents of the last weeks it had.
//!
//! The kernel adds it to each fault of which a host with incidents is the place, if the job has a history
//! ([`Input::HostHistory`](crate::kernel::Input::HostHistory)).

use super::{Evidence, Fault, OPERATOR};
use crate::detect::{FaultClass, Health};
use crate::job::{Domain, Name, NodeId, WallTime};
use crate::state::{HOST_PERIOD_DAYS, HostHistory, View, host_incident_classes};

/// Name of the evidence about the history of a host.
pub const HOST_INCIDENTS: Name = Name::new("host_incidents");

/// Name of the evidence that a host was not used because of its history.
pub const HOST_PASSED_OVER: Name = Name::new("host_passed_over");

impl HostHistory {
    /// Returns evidence about a host: how many of all hosts' incidents of the last 14 days it had, and of which
    /// classes. `None` if it had none.
    #[must_use]
    pub fn evidence(&self, host: &NodeId, now: WallTime) -> Option<Evidence> {
        let recent = self.recent(host, now);
        if recent.is_empty() {
            return None;
        }
        let (count, all, days) = (recent.len(), self.recent_count(now), HOST_PERIOD_DAYS);
        let classes = host_incident_classes(recent);
        let text = format!("{host} had {count} of the last {all} incidents of all hosts in {days} days ({classes})");
        #[allow(clippy::cast_precision_loss, reason = "a small number of incidents")]
        let evidence = Evidence::figure(HOST_INCIDENTS, count as f64, None, text);
        Some(evidence)
    }
}

impl Fault {
    /// Returns the host that this fault counts against: the host of its primary suspect.
    ///
    /// `None` if the suspect is a victim, if it lies on no host or its process has been replaced since, and if the
    /// cause is no property of the host: an operator's order, the training program, a plugin of the runtime, a race
    /// lost at start-up, or a restart storm.
    #[must_use]
    pub fn host_at_fault<'a>(&'a self, view: &'a View) -> Option<&'a NodeId> {
        let suspect = self.primary_suspect();
        let is_elsewhere = suspect.damage.program == Health::Faulty
            || matches!(
                suspect.class,
                FaultClass::Program | FaultClass::RestartStorm | FaultClass::Leave | FaultClass::Plugin
            );
        // An exception of the training program is recorded as Python's; errors of devices have their vendor's family.
        let is_of_program =
            self.error.as_ref().is_some_and(|error| error.follow_up || error.retry_free || error.family == "python");
        if !suspect.is_cause() || self.by == OPERATOR || is_elsewhere || is_of_program {
            return None;
        }
        if let Domain::Process(role) = &suspect.domain {
            let proc = view.proc(role)?;
            return proc.node.as_ref().filter(|_| self.incarnation().is_none_or(|of| of == proc.incarnation));
        }
        view.node_of(&suspect.domain)
    }
}

#[cfg(test)]
mod tests;
