//! A process's handling of directives: one at a time; a new `abort` ends any other in progress.
//!
//! A process refuses directives of a world older than the newest it knows, and directives out of order. It never acts
//! without a directive.

use super::super::event::Event;
use super::super::world::World as Sim;
use super::{Stand, StepLoop, equal_digest};
use crate::job::{CommandId, Generation, ProcId, Rank};
use crate::launch::{Directive, DirectiveReply, LoopPosition, Peer, Window, WorkerState};

/// Size of each rank's state: large enough that several ranks send parts of it.
const STATE_BYTES: u64 = 1 << 30;

impl Sim<'_> {
    /// Handles a directive that a process receives, perhaps again.
    pub(in crate::sim) fn directed(&mut self, proc: &ProcId, id: CommandId) {
        if !self.runs_now(proc) {
            return self.again(proc, Event::Directed { proc: proc.clone(), id });
        }
        let Some(known) = self.loops.procs.get_mut(proc).filter(|known| known.up) else { return };
        let Some((generation, what)) = known.open.get(&id).cloned() else { return };
        if known.done.contains_key(&id) {
            return self.answers_directive(proc, id); // already done, and not repeated
        }
        if known.doing == Some(id) {
            return;
        }
        if generation < known.newest {
            return self.finishes(proc, id, Err("it knows a newer world".into()));
        }
        known.newest = generation;
        known.failed = None;
        if self.refuses_directive(proc) {
            return self.finishes(proc, id, Err("it refuses".into()));
        }
        let Some(known) = self.loops.procs.get_mut(proc) else { return };
        let expected = match &what {
            Directive::Abort {} => !matches!(known.stand, Stand::Script | Stand::Parked),
            Directive::Join { .. } => matches!(known.stand, Stand::GaveUp | Stand::Parked),
            Directive::SyncState { .. } => known.stand == Stand::Joined && known.generation == generation,
            Directive::Resume { .. } => known.stand == Stand::Repaired && known.generation == generation,
            _ => false, // it keeps no checkpoint
        };
        if !expected {
            let stand = known.stand;
            return self.finishes(proc, id, Err(format!("it received {} at {stand:?}", what.name())));
        }
        known.doing = Some(id);
        match what {
            Directive::Abort {} => self.gives_up(proc, id, generation),
            Directive::Join { size, .. } => self.joins_others(proc, generation, size),
            Directive::SyncState { from, to, .. } => self.repairs(proc, id, &from, &to),
            Directive::Resume { .. } => self.resumes(proc, id),
            _ => {}
        }
    }

    /// Carries out an `abort`: the process leaves the group of ranks that step together at once; its reply follows at
    /// the end of its step.
    fn gives_up(&mut self, proc: &ProcId, id: CommandId, generation: Generation) {
        self.leaves_gang(proc);
        if let Some(known) = self.loops.procs.get_mut(proc) {
            (known.stand, known.meets) = (Stand::GaveUp, None);
            known.takes.clear();
            known.gives.clear();
            known.gave_up = None;
        }
        let takes = self.dice.ms(1, 400);
        self.queue.push(self.now + takes, Event::GaveUp { proc: proc.clone(), id, generation });
    }

    /// Replies to an abort at the end of the step, with the process's state.
    pub(in crate::sim) fn has_given_up(&mut self, proc: &ProcId, id: CommandId, generation: Generation) {
        if !self.runs_now(proc) {
            return self.again(proc, Event::GaveUp { proc: proc.clone(), id, generation });
        }
        let Some((holds, torn)) = self.training.seat(proc).map(|seat| (seat.holds, seat.torn)) else { return };
        let closed = self.dice.chance(300);
        let Some(known) = self.is_doing(proc, id) else { return };
        let next = holds.unwrap_or_default() + 1;
        known.gave_up = Some((generation, (!torn).then_some(next)));
        let (step, window) = match (torn, closed && holds.is_some()) {
            (true, _) => (next, Window::Torn),
            (false, true) => (next - 1, Window::Closed),
            (false, false) => (next, Window::Before),
        };
        let committed = holds.filter(|step| *step > 0 || window == Window::Closed);
        let (layout, buckets) = ("one".to_owned(), vec![8, 4]);
        let state = WorkerState { step, committed, window, layout, buckets, bytes: STATE_BYTES, sharded: Vec::new() };
        self.finishes(proc, id, Ok(Box::new(DirectiveReply::default().with_state(state))));
    }

    fn is_doing(&mut self, proc: &ProcId, id: CommandId) -> Option<&mut StepLoop> {
        self.loops.procs.get_mut(proc).filter(|known| known.doing == Some(id))
    }

    /// Returns the processes that received `join` for this generation and wait for the others, with the directive's id.
    fn joining(&self, generation: Generation) -> Vec<(ProcId, CommandId)> {
        let joins = |(proc, known): (&ProcId, &StepLoop)| {
            (known.meets == Some(generation)).then_some(())?;
            Some((proc.clone(), known.doing?))
        };
        self.loops.procs.iter().filter_map(joins).collect()
    }

    fn joins_others(&mut self, proc: &ProcId, generation: Generation, size: u32) {
        if let Some(known) = self.loops.procs.get_mut(proc) {
            known.meets = Some(generation);
        }
        if self.joining(generation).len() == size as usize {
            let at = self.now + self.dice.ms(4, self.scene.rendezvous_ms_max);
            self.queue.push(at, Event::Meet { generation, size });
        }
    }

    /// Lets all members join at once if they are all present; otherwise none joins.
    pub(in crate::sim) fn meet(&mut self, generation: Generation, size: u32) {
        let joining = self.joining(generation);
        let lives = |proc: &ProcId| self.fleet.procs.get(proc).is_some_and(|p| p.is_alive());
        let service = !self.scene.has_service() || self.training.service().is_some();
        if joining.len() != size as usize || !joining.iter().all(|(proc, _)| lives(proc)) || !service {
            return; // they wait until they receive `abort`
        }
        if joining.iter().any(|(proc, _)| !self.runs_now(proc)) {
            let at = self.now + self.dice.ms(50, 200);
            return self.queue.push(at, Event::Meet { generation, size });
        }
        for (proc, id) in joining {
            if let Some(known) = self.loops.procs.get_mut(&proc) {
                (known.stand, known.generation, known.meets) = (Stand::Joined, generation, None);
            }
            if let Some(seat) = self.training.seat_mut(&proc) {
                seat.generation = generation;
            }
            if let Some(process) = self.fleet.procs.get_mut(&proc) {
                process.generation = process.generation.max(generation);
            }
            self.finishes(&proc, id, Ok(Box::default()));
        }
    }

    /// Begins a `sync-state`: the process receives state from the ranks `from` and sends it to the ranks `to`;
    /// afterwards it has the common state.
    fn repairs(&mut self, proc: &ProcId, id: CommandId, from: &[Peer], to: &[Rank]) {
        let Some(known) = self.loops.procs.get_mut(proc) else { return };
        known.takes = from.iter().map(|peer| peer.rank).collect();
        known.gives = to.iter().copied().collect();
        let generation = known.generation;
        if !from.is_empty()
            && let Some(seat) = self.training.seat_mut(proc)
        {
            seat.torn = true; // from the first byte to the last
        }
        let at = self.now + self.dice.ms(1, 2_000);
        self.queue.push(at, Event::Copied { proc: proc.clone(), id, generation });
    }

    /// Ends a state sync if the sources are present; a process that only sends waits for its receivers.
    pub(in crate::sim) fn copied(&mut self, proc: &ProcId, id: CommandId, generation: Generation) {
        let Some(known) = self.loops.get(proc).filter(|known| known.doing == Some(id)) else { return };
        let (takes, waits_for) = (known.takes.clone(), known.gives.clone());
        let again = Event::Copied { proc: proc.clone(), id, generation };
        let later = self.now + self.dice.ms(20, 100);
        if !self.runs_now(proc) {
            return self.again(proc, again);
        }
        let rank = proc.role.rank().unwrap_or_default();
        if takes.is_empty() && !waits_for.is_empty() {
            return self.queue.push(later, again);
        }
        let mut parts = Vec::new();
        for source in &takes {
            match self.source(*source, rank, generation) {
                Err(()) => return self.finishes(proc, id, Err(format!("{source} and its state are lost"))),
                Ok(None) => return self.queue.push(later, again),
                Ok(Some(holds)) => parts.push((*source, holds)),
            }
        }
        for (source, holds) in parts {
            self.takes_state(proc, rank, source, holds);
        }
        if let Some(known) = self.loops.procs.get_mut(proc) {
            known.stand = Stand::Repaired;
            known.takes.clear();
        }
        let holds = self.training.seat(proc).and_then(|seat| seat.holds);
        let digest = Some(equal_digest(holds.map_or(0, |step| step + 1)));
        self.finishes(proc, id, Ok(Box::new(DirectiveReply::default().with_digest(digest))));
    }

    /// Returns the step that the source rank's state has; `None` if the rank has not received its directive to send
    /// yet, an error if the rank is gone.
    fn source(&self, source: Rank, to: Rank, generation: Generation) -> Result<Option<u64>, ()> {
        let seat = self.training.seats.get(source.0 as usize).ok_or(())?;
        let proc = ProcId::rank(source.0, seat.incarnation.0);
        let known = self.loops.get(&proc).filter(|known| known.generation == generation && seat.running).ok_or(())?;
        if known.stand == Stand::GaveUp {
            return Err(());
        }
        Ok(if known.gives.contains(&to) && self.runs_now(&proc) { seat.holds } else { None })
    }

    fn takes_state(&mut self, proc: &ProcId, rank: Rank, source: Rank, holds: u64) {
        if let Some(seat) = self.training.seat_mut(proc) {
            (seat.holds, seat.torn) = (Some(holds), false);
            seat.taken = seat.taken.max(holds); // steps that others have done for it
        }
        let Some(seat) = self.training.seats.get(source.0 as usize) else { return };
        let source = ProcId::rank(source.0, seat.incarnation.0);
        if let Some(known) = self.loops.procs.get_mut(&source) {
            known.gives.remove(&rank);
        }
    }

    fn resumes(&mut self, proc: &ProcId, id: CommandId) {
        if let Some(known) = self.loops.procs.get_mut(proc) {
            (known.stand, known.at) = (Stand::Resumed, LoopPosition::InLoop);
        }
        if let Some(seat) = self.training.seat_mut(proc) {
            seat.waits = false;
        }
        if !self.scene.resumed_by_step {
            self.finishes(proc, id, Ok(Box::default()));
        }
        self.try_form();
    }

    /// Marks the processes as training after the rendezvous, and replies to `resume` after the first step.
    pub(in crate::sim) fn loops_train(&mut self, generation: Generation, has_stepped: bool) {
        let resumed = |(_, known): &(&ProcId, &StepLoop)| {
            known.generation == generation
                && (known.stand == Stand::Resumed || known.doing.is_some() && known.stand == Stand::Trains)
        };
        let all = self.loops.procs.iter().filter(resumed).map(|(proc, known)| (proc.clone(), known.doing));
        for (proc, doing) in all.collect::<Vec<_>>() {
            if let Some(known) = self.loops.procs.get_mut(&proc) {
                known.stand = Stand::Trains;
            }
            if let Some(id) = doing.filter(|_| has_stepped) {
                self.finishes(&proc, id, Ok(Box::default()));
            }
        }
    }
}
