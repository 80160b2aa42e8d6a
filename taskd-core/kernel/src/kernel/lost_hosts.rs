//! Handling of hosts that have left while processes of the job ran on them: the loss of the host is the cause of the ends of
//! these processes.
//!
//! This module starts and stops nothing, and considers no process dead: the launcher reports that.

use crate::detect::{Damage, Evidence, Fault, FaultClass, Findings, Suspect};
use crate::job::{Domain, JobTime, Name, Role};
use crate::state::{NodeStatus, Proc};
use std::collections::BTreeMap;

/// Detector name for lost hosts.
const HOST: Name = Name::new("host");

/// Handles hosts that have left.
pub(super) struct LostHosts<'a> {
    pub(super) now: JobTime,
    /// The processes, to mark those that end with their host.
    pub(super) procs: &'a mut BTreeMap<Role, Proc>,
    pub(super) found: &'a mut Findings,
}

impl LostHosts<'_> {
    /// Blames a host that has left for the end of the processes that ran on it.
    pub(super) fn left(&mut self, host: &NodeStatus) {
        let on_it = self.procs.values_mut().filter(|proc| proc.node.as_ref() == Some(&host.node));
        let mut number = 0;
        for proc in on_it.filter(|proc| proc.wanted && !proc.phase.is_over()) {
            proc.unguarded = true;
            number += 1;
        }
        if number == 0 {
            return; // nothing was lost
        }
        let node = Domain::Node(host.node.clone());
        let why = host.why.clone().unwrap_or_else(|| format!("{} has left the job", host.node));
        let suspect = match &host.lost_with {
            Some(domain) => {
                // The same fault for each host of the domain: the kernel keeps the first.
                let domain =
                    Suspect::certain(Domain::Topology(domain.clone()), FaultClass::NodeLost, Damage::default());
                let fault = Fault::new(HOST, self.now, domain);
                self.found.blame(fault.with_evidence(Evidence::text("lost", why.clone())));
                Suspect::victim(node, FaultClass::NodeLost, Damage::PROCESS_GONE)
            }
            None => {
                // Nothing is known about its devices: it may return and take ranks again.
                Suspect::certain(node, FaultClass::NodeLost, Damage::PROCESS_GONE)
            }
        };
        let fault = Fault::new(HOST, self.now, suspect).with_evidence(Evidence::text("lost", why));
        let what = format!("its {number} processes are lost with it");
        self.found.blame(fault.with_evidence(Evidence::text("ran there", what)));
    }
}
