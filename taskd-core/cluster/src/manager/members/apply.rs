//! What a decision changes: which hosts are cordoned, which losses are reported, and which agents are refused.

use super::{Members, Seen, lock};
use crate::manager::Inner;
use crate::membership::{Decision, Health, HostError, Next};
use crate::topology::Cause;
use crate::wire::{encode, method};
use std::collections::{BTreeMap, BTreeSet};
use taskd_runtime::job::{Name, NodeId};

/// Largest number of hosts that a reason names; it counts the others.
const NAMED_MAX: usize = 4;

/// Which hosts outside of the world in force can get processes.
enum Admitted<'a> {
    /// As before.
    Unchanged,
    All,
    /// These; the others not, for this reason.
    Only(BTreeSet<&'a NodeId>, &'a str),
}

impl Members {
    pub(super) fn apply(&self, manager: &Inner, seen: &Seen, decision: &Decision) {
        let members: BTreeSet<&NodeId> = seen.state.world.iter().flat_map(BTreeMap::values).collect();
        let admitted = match &decision.next {
            Next::World { ranks, .. } => Admitted::Only(ranks.values().collect(), "it is a spare"),
            Next::Keep { .. } if seen.is_complete => Admitted::All,
            Next::Keep { reason, .. } => Admitted::Only(BTreeSet::new(), reason),
            Next::Wait { .. } | Next::Impossible { .. } => Admitted::Unchanged,
        };
        let there = seen.state.hosts.iter().filter(|(_, host)| !matches!(host.health, Health::Left { .. }));
        for (host, _) in there {
            match (decision.refused.get(host), &admitted) {
                (Some(error), _) => self.refuse(manager, host, error, members.contains(host)),
                (None, _) if members.contains(host) => manager.fleet.uncordon(host),
                (None, Admitted::Unchanged) => {}
                (None, Admitted::All) => manager.fleet.uncordon(host),
                (None, Admitted::Only(chosen, _)) if chosen.contains(host) => manager.fleet.uncordon(host),
                (None, Admitted::Only(_, why)) => manager.fleet.cordon(host, why),
            }
        }
        // After the cordons: the runtime recovers from a loss with the hosts that were chosen for it.
        let is_held = matches!(decision.next, Next::Wait { .. });
        let report = |host: &NodeId| !is_held || !members.contains(host);
        let lost: BTreeMap<&NodeId, &String> = seen.unreported.iter().filter(|(host, _)| report(host)).collect();
        self.report(manager, seen, &lost);
        lock(&self.gone).retain(|host, gone| !gone.is_reported || members.contains(host));
    }

    /// Cordons a host that cannot take part, and ends its agent, unless it has ranks.
    fn refuse(&self, manager: &Inner, host: &NodeId, error: &HostError, is_member: bool) {
        let why = error.to_string();
        manager.fleet.cordon(host, &why);
        let session = manager.lock().get(host).map(|host| host.session());
        let Some(session) = session.filter(|_| !is_member) else { return };
        if lock(&self.refused).insert(host.clone(), session.id) == Some(session.id) {
            return; // it knows
        }
        tracing::error!(%host, %why, "a host is refused");
        if let Ok(arguments) = encode(&why) {
            session.calls.post(method::REFUSE, arguments);
        }
    }

    /// Reports hosts that have left: those of one cause together.
    fn report(&self, manager: &Inner, seen: &Seen, lost: &BTreeMap<&NodeId, &String>) {
        if lost.is_empty() {
            return;
        }
        let hosts = &seen.state.hosts;
        let live = hosts.iter().filter(|(_, host)| host.health == Health::Ready).map(|(name, _)| name.clone());
        let names = lost.keys().copied().cloned().collect();
        for cause in seen.state.topology.causes(&names, &live.collect()) {
            let domain = cause.domain.as_ref().map(|domain| Name::from(domain.to_string()));
            let together = domain.as_ref().map(|domain| together(&cause, domain));
            let why = |host: &NodeId| together.clone().or_else(|| lost.get(host).map(|why| (*why).clone()));
            let gone = cause.lost.iter().map(|host| (host.clone(), why(host).unwrap_or_default())).collect();
            if let Some(why) = &together {
                tracing::error!(%why, "hosts are lost");
            }
            manager.fleet.remove_together(gone, domain.as_ref());
        }
        for (host, gone) in lock(&self.gone).iter_mut().filter(|(host, _)| lost.contains_key(host)) {
            gone.is_reported = true;
            lock(&self.refused).remove(host);
        }
    }
}

/// Returns the reason for the loss of all hosts of a cause, in one sentence.
fn together(cause: &Cause, domain: &Name) -> String {
    let names: Vec<&str> = cause.lost.iter().take(NAMED_MAX).map(|host| host.0.as_str()).collect();
    let more = match cause.lost.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let (number, names, live) = (cause.lost.len(), names.join(", "), cause.live);
    format!(
        "{number} hosts of {domain} have given no sign of life, so their leases ended and they have stopped their \
         processes: {names}{more}; {live} other hosts of {domain} are in sight"
    )
}
