//! Detectors that reach what the built-in ones do not: absorption, advice, evidence, clearing.

use super::super::dice::Dice;
use super::strict::StrictSilence;
use super::{LINK_DOWN, SILENT_AFTER};
use crate::detect::{Clue, Damage, Fault, FaultClass, FaultDetector, Findings, Sound, Suspect};
use crate::job::{Domain, Incarnation, Name, NodeId};
use crate::kernel::View;
use crate::launch::NodeState;
use crate::trace::{Ask, Exhibit, Observation, PROCESS_STATE, Signal};
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

/// Blames a host that has left as a whole, when the first of its processes is told to have ended.
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
            out.blame(Fault::new(self.name(), o.at, suspect).because(Clue::text("host", "it has left")));
        }
    }
}

/// Asks what has become of a rank whose vendor reports an error, and blames it only on evidence.
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
                out.ask(Ask { by: self.name(), tag: self.tags, what, about, within: Duration::from_secs(2) });
            }
            Signal::Evidence(evidence) if evidence.by == self.name() => {
                let Some((about, incarnation)) = self.asked.remove(&evidence.tag) else { return };
                if matches!(&evidence.exhibit, Exhibit::Text(state) if state.starts_with("state=T")) {
                    let damage = Damage { process: Sound::No, ..Damage::default() };
                    let suspect = Suspect::certain(about, FaultClass::Silence, damage);
                    let mut fault = Fault::new(self.name(), o.at, suspect).of(incarnation);
                    if self.advises {
                        fault = fault.advising(Name::new("restart"));
                    }
                    out.blame(fault.because(Clue::text(PROCESS_STATE, "stopped")));
                }
            }
            _ => {}
        }
    }
}

/// Blames a link that is down, and takes it back when it is up again.
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
            let sound = Damage { process: Sound::Yes, state: Sound::Yes, ..Damage::default() };
            let suspect = Suspect::victim(o.about.clone(), FaultClass::Network, sound);
            out.blame(Fault::new(self.name(), o.at, suspect).because(Clue::text("link", "down")));
        } else {
            out.clear(o.about.clone(), FaultClass::Network);
        }
    }
}
