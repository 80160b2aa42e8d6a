//! Incidents of hosts: the history that the kernel was given, and what this job adds to it.
//!
//! An incident counts once against each host at fault, at its first decision, so a replay records the same ones. The
//! kernel stores no file: the shell reads what was recorded here.

use super::calendar::Calendar;
use super::incidents::Open;
use crate::detect::{Fault, Health};
use crate::job::{IncidentId, Name, NodeId};
use crate::recover::Incident;
use crate::state::{HostHistory, HostIncident, View};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Maximum number of incidents of hosts that a job keeps for the shell. The oldest are dropped first: the shell has
/// stored them long before.
pub(super) const RECORDED_MAX: usize = 1024;

/// What this job has recorded.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Recorded {
    /// The newest recorded incidents, with their hosts, oldest first.
    newest: VecDeque<(NodeId, HostIncident)>,
    /// Number of recorded incidents, including those no longer kept.
    count: u64,
}

impl Recorded {
    /// Returns true if the job has recorded nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the kept incidents after the first `known` ones of the job.
    pub(super) fn after(&self, known: u64) -> impl Iterator<Item = &(NodeId, HostIncident)> {
        let dropped = self.count - self.newest.len() as u64;
        self.newest.iter().skip(usize::try_from(known.saturating_sub(dropped)).unwrap_or(usize::MAX))
    }

    pub(super) const fn count(&self) -> u64 {
        self.count
    }

    fn push(&mut self, host: NodeId, incident: HostIncident) {
        if self.newest.len() >= RECORDED_MAX {
            self.newest.pop_front();
        }
        self.newest.push_back((host, incident));
        self.count += 1;
    }
}

/// Keeps the history of hosts.
pub(super) struct HostIncidents<'a> {
    pub(super) calendar: &'a Calendar,
    pub(super) recorded: &'a mut Recorded,
    pub(super) incidents: &'a mut BTreeMap<IncidentId, Open>,
    pub(super) view: &'a mut View,
}

impl HostIncidents<'_> {
    /// Takes the history of other jobs and earlier starts. What this job has recorded is added.
    pub(super) fn take(&mut self, history: &HostHistory) {
        let mut history = history.clone();
        for (host, incident) in &self.recorded.newest {
            if !history.covers(host, incident) {
                history.record(host, incident.clone());
            }
        }
        self.view.host_history = Some(Arc::new(history));
        self.pass_time();
    }

    /// Notes the wall-clock time of the view, for texts and scores.
    pub(super) fn pass_time(&mut self) {
        if self.view.host_history.is_some() {
            self.view.wall = self.calendar.wall(self.view.now);
        }
    }

    /// Records a decided incident against the hosts at fault, once for each. Without a history nothing is recorded, and
    /// neither before the wall-clock time is known.
    pub(super) fn decided(&mut self, id: IncidentId) {
        let (Some(at), Some(open)) = (self.calendar.wall(self.view.now), self.incidents.get_mut(&id)) else { return };
        if self.view.host_history.is_none() {
            return;
        }
        for (host, class) in hosts_at_fault(&open.incident, self.view) {
            if !open.recorded_hosts.insert(host.clone()) {
                continue;
            }
            let record = HostIncident { at, class, job: self.view.spec.name.clone(), incident: id };
            if let Some(history) = &mut self.view.host_history {
                Arc::make_mut(history).record(&host, record.clone());
            }
            self.recorded.push(host, record);
        }
    }
}

/// Returns the hosts at fault, each with the class of its fault: the hosts of the causes, and those that ranks leave.
fn hosts_at_fault(incident: &Incident, view: &View) -> BTreeMap<NodeId, Name> {
    let is_broken = |fault: &&Fault| fault.primary_suspect().damage.device == Health::Faulty;
    let faults = incident.causes().into_iter().chain(incident.faults.iter().filter(is_broken));
    let mut hosts = BTreeMap::new();
    for fault in faults {
        if let Some(host) = fault.host_at_fault(view) {
            hosts.entry(host.clone()).or_insert_with(|| fault.primary_suspect().class.to_string().into());
        }
    }
    hosts
}
