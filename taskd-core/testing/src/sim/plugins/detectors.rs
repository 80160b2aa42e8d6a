//! Detectors for features that the built-in ones do not use: absorption, advice, evidence, clearing.

use super::super::dice::Dice;
use super::strict::StrictSilence;
use super::{LINK_DOWN, SILENT_AFTER};
use crate::detect::{Damage, Evidence, Fault, FaultClass, FaultDetector, Findings, Health, Suspect};
use crate::job::{Domain, Incarnation, Name, NodeId};
use crate::launch::NodeState;
use crate::state::View;
use crate::trace::{Observation, PROCESS_STATE, Probe, ProbeResult, Signal};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub(super) fn draw(dice: &mut Dice, into: &mut Vec<Box<dyn FaultDetector>>) {
    if dice.chance(700) {
        into.push(Box::new(LostHost::default()));
    }
    if dice.chance(700) {
        into.push(Box::new(Doubt { advises: dice.chance(500), ..Doubt::default() }));
    }
    if dice.chance(700) {
        into.push(Box::new(Links));
    }
    if dice.chance(300) {
        into.push(Box::new(StrictSilence::after(SILENT_AFTER)));
    }
}

/// Blames a host that is lost as a whole, when the exit of its first process is reported.
#[derive(Debug, Default)]
struct LostHost {
    blamed: BTreeSet<NodeId>,
}

impl FaultDetector for LostHost {
    fn name(&self) -> Name {
        Name::new("sim.lost-host")
    }

    fn observe(&mut self, o: &Observation, view: &View, out: &mut Findings) {
        let Signal::Phase(phase) = &o.signal else { return };
        let Some(node) = view.node_of(&o.about).filter(|_| phase.is_over()) else { return };
        let left = view.nodes.get(node).is_some_and(|n| n.state == NodeState::Left);
        if left && self.blamed.insert(node.clone()) {
            let about = Domain::Node(node.clone());
            let suspect = Suspect::certain(about, FaultClass::NodeLost, Damage::PROCESS_GONE);
            out.blame(Fault::new(self.name(), o.at, suspect).with_evidence(Evidence::text("host", "it has left")));
        }
    }
}

/// Requests evidence about a rank whose vendor reports an error, and blames it only on that evidence.
#[derive(Debug, Default)]
struct Doubt {
    advises: bool,
    asked: BTreeMap<u64, (Domain, Option<Incarnation>)>,
    tags: u64,
}

impl FaultDetector for Doubt {
    fn name(&self) -> Name {
        Name::new("sim.doubt")
    }

    fn observe(&mut self, o: &Observation, _view: &View, out: &mut Findings) {
        match &o.signal {
            Signal::Error(_) => {
                self.tags += 1;
                self.asked.insert(self.tags, (o.about.clone(), o.incarnation));
                let what = PROCESS_STATE;
                let about = vec![o.about.clone()];
                out.probe(Probe::new(self.name(), what, about, Duration::from_secs(2)).with_tag(self.tags));
            }
            Signal::ProbeReply(evidence) if evidence.by == self.name() => {
                let Some((about, incarnation)) = self.asked.remove(&evidence.tag) else { return };
                if matches!(&evidence.result, ProbeResult::Text(state) if state.starts_with("state=T")) {
                    let damage = Damage { process: Health::Faulty, ..Damage::default() };
                    let suspect = Suspect::certain(about, FaultClass::Silence, damage);
                    let mut fault = Fault::new(self.name(), o.at, suspect).with_incarnation(incarnation);
                    if self.advises {
                        fault = fault.with_advice(Name::new("restart"));
                    }
                    out.blame(fault.with_evidence(Evidence::text(PROCESS_STATE, "stopped")));
                }
            }
            _ => {}
        }
    }
}

/// Blames a link that is down, and withdraws the blame when it is up again.
#[derive(Debug)]
struct Links;

impl FaultDetector for Links {
    fn name(&self) -> Name {
        Name::new("sim.links")
    }

    fn observe(&mut self, o: &Observation, _view: &View, out: &mut Findings) {
        let Signal::Metric { name, value } = &o.signal else { return };
        if *name != LINK_DOWN {
            return;
        }
        if *value > 0.0 {
            let sound = Damage { process: Health::Healthy, state: Health::Healthy, ..Damage::default() };
            let suspect = Suspect::victim(o.about.clone(), FaultClass::Network, sound);
            out.blame(Fault::new(self.name(), o.at, suspect).with_evidence(Evidence::text("link", "down")));
        } else {
            out.clear(o.about.clone(), FaultClass::Network);
        }
    }
}
