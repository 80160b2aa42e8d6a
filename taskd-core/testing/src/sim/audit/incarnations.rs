//! No process starts twice, and no two wanted processes of one rank are alive at the same time.

use super::super::outcome::Violation;
use super::Moment;
use crate::job::{CommandId, Incarnation, ProcId};
use crate::kernel::Command;
use crate::kernel::Effect;
use crate::recover::Action;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Default)]
pub(super) struct Incarnations {
    ordered: BTreeMap<ProcId, CommandId>,
    unwanted: BTreeSet<ProcId>,
}

impl Incarnations {
    pub(super) fn check(&mut self, m: &Moment<'_>, command: &Command) -> Result<(), Violation> {
        match &command.effect {
            Effect::Act(Action::Stop { procs, .. }) => self.unwanted.extend(procs.iter().cloned()),
            Effect::Act(Action::Start { batch, .. }) => {
                for order in &batch.starts {
                    self.order(m, command.id, &order.proc)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn order(&mut self, m: &Moment<'_>, id: CommandId, proc: &ProcId) -> Result<(), Violation> {
        let before = self.ordered.insert(proc.clone(), id);
        if before.is_some_and(|b| b != id) {
            return Err(Violation::StartedTwice { proc: proc.clone() });
        }
        let first = ProcId { role: proc.role.clone(), incarnation: Incarnation(0) };
        let earlier = m.fleet.procs.range(first..).take_while(|(p, _)| p.role == proc.role);
        for (other, process) in earlier.filter(|(p, _)| *p != proc) {
            if process.is_alive() && !self.unwanted.contains(other) {
                return Err(Violation::TwoAlive { wanted: other.clone(), ordered: proc.clone() });
            }
        }
        Ok(())
    }
}
