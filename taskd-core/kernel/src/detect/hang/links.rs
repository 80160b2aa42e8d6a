//! Asks the hosts whether they reach each other when a collective hangs or has failed and no rank is found to cause it,
//! and blames the host that has to go if a link between two of them is broken.

use super::{HangDetector, NAME};
use crate::check::LinkVerdict;
use crate::detect::{Damage, Evidence, Fault, FaultClass, Findings, Health, Suspect};
use crate::job::{Domain, JobTime, NodeId};
use crate::state::{View, placement};
use crate::trace::{LINKS, Probe, ProbeReply, read_links};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Timeout of the probe. A host is given up before: it has to try a link twice, and the reply has to return.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);
/// Time after the timeout at which missing replies are not awaited any more.
const ANSWERS_LATE: Duration = Duration::from_millis(100);
/// Minimum time between two such probes: each costs every host some connections.
const EVERY: Duration = Duration::from_secs(5);

/// Confidence: both ends of the link agree, but which of the two hosts is faulty is not known.
const CONFIDENCE: u16 = 800;

/// Damage of a host that cannot reach another one of the job: its ranks have to leave it. Their programs are sound.
const CUT_OFF: Damage =
    Damage { process: Health::Faulty, state: Health::Unknown, device: Health::Faulty, program: Health::Healthy };

/// The checks of the links between the hosts of the world.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Links {
    open: Option<Open>,
    /// Time of the last probe.
    asked: Option<JobTime>,
    /// Hosts that are blamed.
    blamed: BTreeSet<NodeId>,
}

/// A probe that waits for replies.
#[derive(Debug, Serialize, Deserialize)]
struct Open {
    at: JobTime,
    /// True if a collective has failed, false if one hangs.
    after_failure: bool,
    tag: u64,
    due: JobTime,
    /// Number of ranks on each host.
    ranks: BTreeMap<NodeId, u32>,
    missing: BTreeSet<NodeId>,
    reached: BTreeMap<NodeId, BTreeMap<NodeId, bool>>,
}

impl Links {
    /// Returns the end of the wait for replies.
    pub(super) fn due(&self) -> Option<JobTime> {
        self.open.as_ref().map(|open| open.due)
    }

    /// Returns the state for the next world. Only a probe after a failed collective is kept: the recovery from that failure
    /// begins the next world before the replies arrive.
    pub(super) fn into_next_world(self) -> Links {
        let open = self.open.filter(|open| open.after_failure);
        Links { open, asked: self.asked, blamed: BTreeSet::new() }
    }

    /// Adds a reply. Returns true if it was the last missing one.
    fn answered(&mut self, host: &NodeId, reply: &ProbeReply) -> bool {
        let Some(open) = self.open.as_mut().filter(|open| open.tag == reply.tag && reply.what == LINKS) else {
            return false;
        };
        if !open.missing.remove(host) {
            return false;
        }
        open.reached.insert(host.clone(), read_links(&reply.result));
        open.missing.is_empty()
    }

    /// Withdraws the blames: the collective has ended after all.
    pub(super) fn clear(&mut self, out: &mut Findings) {
        for host in std::mem::take(&mut self.blamed) {
            out.clear(Domain::Node(host), FaultClass::Network);
        }
    }
}

impl HangDetector {
    /// Handles a failed collective: asks for the links if no rank has failed that explains it. Its recovery enters another
    /// world meanwhile, in which the answers still count.
    pub(super) fn collective_failed(&mut self, view: &View, out: &mut Findings) {
        if !view.mending && !is_changing(view) {
            self.ask_links(true, view, out);
        }
    }

    /// Asks all hosts of the world which of the others they reach, unless they were asked a moment ago.
    pub(super) fn ask_links(&mut self, after_failure: bool, view: &View, out: &mut Findings) {
        let (now, tag, links) = (view.now, self.state.tag, &mut self.state.links);
        let is_early = links.asked.is_some_and(|asked| now < asked + EVERY);
        let mut ranks: BTreeMap<NodeId, u32> = BTreeMap::new();
        let hosts = placement::current(view).into_values().filter_map(|seat| seat.node);
        hosts.for_each(|host| *ranks.entry(host).or_default() += 1);
        if links.open.is_some() || is_early || ranks.len() < 2 {
            return;
        }
        let (missing, due): (BTreeSet<NodeId>, _) =
            (ranks.keys().cloned().collect(), now + ANSWERS_WITHIN + ANSWERS_LATE);
        let about = missing.iter().cloned().map(Domain::Node).collect();
        out.probe(Probe { by: NAME, tag, what: LINKS, about, timeout: ANSWERS_WITHIN });
        links.asked = Some(now);
        links.open = Some(Open { at: now, after_failure, tag, due, ranks, missing, reached: BTreeMap::new() });
    }

    /// Handles a host's reply; the last one is followed by the judgement.
    pub(super) fn links_of(&mut self, host: &NodeId, reply: &ProbeReply, view: &View, out: &mut Findings) {
        if self.state.links.answered(host, reply) {
            self.judge_links(view, out);
        }
    }

    /// Judges the replies. Blames a host if the collective still hangs or has failed, and no rank was found to cause that.
    pub(super) fn judge_links(&mut self, view: &View, out: &mut Findings) {
        let Some(open) = self.state.links.open.take() else { return };
        let is_explained = !self.state.blamed.is_empty() || self.state.held.is_some();
        let is_over = self.state.inquiry.is_none() && !open.after_failure;
        if is_over || is_explained || is_changing(view) {
            return;
        }
        let hosts: Vec<&NodeId> = open.ranks.keys().collect();
        let ranks: Vec<u32> = open.ranks.values().copied().collect();
        let number = |host: &NodeId| hosts.binary_search(&host).ok();
        let of_host = |(host, links): (&NodeId, &BTreeMap<NodeId, bool>)| {
            let from = number(host);
            let link = |(to, reached): (&NodeId, &bool)| Some(((from?, number(to)?), *reached));
            links.iter().filter_map(link).collect::<Vec<_>>()
        };
        let reached = open.reached.iter().flat_map(of_host).collect();
        let verdict = LinkVerdict::of(&ranks, &reached);
        let name = |host: usize| hosts.get(host).map(|host| host.0.to_string()).unwrap_or_default();
        let sentences = verdict.sentences(&ranks, name);
        for host in verdict.excluded.iter().filter_map(|host| hosts.get(*host).copied()) {
            let suspect = Suspect::new(Domain::Node(host.clone()), FaultClass::Network, CUT_OFF, CONFIDENCE);
            let fault = Fault::new(NAME, open.at, suspect);
            out.blame(sentences.iter().fold(fault, |fault, text| fault.with_evidence(Evidence::text("link", text))));
            self.state.links.blamed.insert(host.clone());
        }
    }
}

/// Returns true if ranks were stopped or have failed: that explains what hangs or fails.
fn is_changing(view: &View) -> bool {
    view.stopped().next().is_some() || view.failed().next().is_some()
}
