//! Small detectors and strategies to begin with.

use crate::detect::{Clue, Damage, Fault, FaultClass, FaultDetector, Findings, Sound, Suspect, detector};
use crate::job::{Counted, Domain, JobTime, Name, Rank, Role, Termination};
use crate::kernel::View;
use crate::launch::{Phase, Place, StartBatch, StartOrder};
use crate::recover::{Action, Cost, Incident, Proposal, RecoveryStrategy, Stage};
use crate::trace::{Observation, Signal};
use std::sync::Arc;
use std::time::Duration;

const SILENT_AFTER: Duration = Duration::from_secs(6);
const STALLED_AFTER: Duration = Duration::from_secs(30);

pub(super) fn detectors() -> Vec<Box<dyn FaultDetector>> {
    vec![Box::new(exits()), Box::new(Silence::default()), Box::new(Stall::default()), Box::new(Broken::default())]
}

fn exits() -> impl FaultDetector {
    detector("exit", |o, view, out| {
        let (Signal::Phase(phase), Domain::Process(role)) = (&o.signal, &o.about) else { return };
        let unwanted = view.proc(role).is_some_and(|p| !p.wanted);
        let Some(how) = phase.termination().filter(|how| !how.is_success()) else { return };
        if unwanted || matches!(phase, Phase::Dead(Termination::Unknown | Termination::Code(_))) {
            return; // only the exact exit carries the error that tells a victim from a cause
        }
        let error = match phase {
            Phase::Exited(exit) => exit.error.clone(),
            _ => None,
        };
        let about = o.about.clone();
        let mut damage = Damage::PROCESS_GONE;
        if how == Termination::Code(view.spec.policy.do_not_restart_code) {
            damage.program = Sound::No;
        }
        let suspect = if error.as_ref().is_some_and(|e| e.follow_up) {
            Suspect::victim(about, FaultClass::Exit, damage)
        } else {
            Suspect::certain(about, FaultClass::Exit, damage)
        };
        out.blame(Fault::new(Name::new("exit"), o.at, suspect).because(Clue::text("phase", how.to_string())).with_error(error));
    })
}

#[derive(Default)]
struct Silence {
    heard: Vec<Option<JobTime>>,
    next: Option<JobTime>,
}

impl FaultDetector for Silence {
    fn name(&self) -> Name {
        Name::new("silence")
    }
    fn observe(&mut self, o: &Observation, view: &View, _out: &mut Findings) {
        match (&o.signal, &o.about) {
            (Signal::SupervisorSlept { .. }, _) => {
                self.heard.iter_mut().flatten().for_each(|at| *at = view.now);
                self.next = Some(view.now + SILENT_AFTER);
            }
            (Signal::Heartbeat | Signal::Progress { .. } | Signal::Phase(_), Domain::Process(Role::Rank(rank))) => {
                let index = rank.0 as usize;
                if self.heard.len() <= index {
                    self.heard.resize(index + 1, None);
                }
                let over = matches!(&o.signal, Signal::Phase(p) if *p != Phase::Running);
                self.heard[index] = (!over).then_some(view.now);
                self.next = self.next.or(Some(view.now + SILENT_AFTER));
            }
            _ => {}
        }
    }
    fn deadline(&self) -> Option<JobTime> {
        self.next
    }
    fn expire(&mut self, view: &View, out: &mut Findings) {
        let by = self.name();
        for (rank, heard) in (0..).zip(&mut self.heard) {
            let Some(at) = *heard else { continue };
            if at + SILENT_AFTER > view.now {
                continue;
            }
            let role = Role::Rank(Rank(rank));
            *heard = None;
            let Some(proc) = view.proc(&role).filter(|p| p.wanted && p.phase == Phase::Running) else { continue };
            let damage = Damage { process: Sound::No, ..Damage::default() };
            let suspect = Suspect::certain(Domain::Process(role.clone()), FaultClass::Silence, damage);
            let clue = Clue::figure("heartbeat_age_ms", 0.0, 0.0, format!("nothing heard since {at}"));
            out.blame(Fault::new(by.clone(), at, suspect).because(clue).of(Some(proc.incarnation)));
        }
        self.next = self.heard.iter().flatten().min().map(|at| *at + SILENT_AFTER);
    }
}

#[derive(Default)]
struct Stall {
    next: Option<JobTime>,
}

impl FaultDetector for Stall {
    fn name(&self) -> Name {
        Name::new("stall")
    }
    fn observe(&mut self, o: &Observation, view: &View, _out: &mut Findings) {
        if matches!(o.signal, Signal::Progress { .. } | Signal::Phase(_) | Signal::SupervisorSlept { .. }) {
            self.next = Some(view.now + STALLED_AFTER);
        }
    }
    fn deadline(&self) -> Option<JobTime> {
        self.next
    }
    fn expire(&mut self, view: &View, out: &mut Findings) {
        self.next = Some(view.now + STALLED_AFTER);
        if view.training().next().is_some() {
            out.blame(Fault::new(self.name(), view.now, Suspect::certain(Domain::Job, FaultClass::Stall, Damage::default())));
        }
    }
}

#[derive(Default)]
struct Broken {
    last: Option<(Name, Option<u64>)>,
}

impl FaultDetector for Broken {
    fn name(&self) -> Name {
        Name::new("program")
    }
    fn observe(&mut self, o: &Observation, _view: &View, out: &mut Findings) {
        let Signal::Phase(Phase::Exited(exit)) = &o.signal else { return };
        let Some(error) = exit.error.as_ref().filter(|e| !e.follow_up && !e.retry_free) else { return };
        let key = Some((error.code.clone(), error.step));
        if self.last == key {
            let suspect = Suspect::certain(o.about.clone(), FaultClass::Program, Damage::PROGRAM_BROKEN);
            out.blame(Fault::new(self.name(), o.at, suspect).with_error(exit.error.clone()));
        }
        self.last = key;
    }
}

pub(super) struct Restart;

impl RecoveryStrategy for Restart {
    fn name(&self) -> Name {
        Name::new("restart")
    }
    fn propose(&self, incident: &Incident, view: &View) -> Result<Proposal, String> {
        if incident.faults.iter().any(|f| f.prime().damage.program == Sound::No) {
            return Err("the program itself fails".into());
        }
        let free = incident.root().is_some_and(|f| f.error.as_ref().is_some_and(|e| e.retry_free));
        let counted = if free { Counted::No } else { Counted::Yes };
        let mut ready = view.ready_nodes().collect::<Vec<_>>().into_iter().cycle();
        let world = Arc::new(view.world.successor(counted, |members| {
            for (rank, member) in members.iter_mut() {
                member.incarnation = view.next_incarnation(&Role::Rank(*rank));
                if member.node.as_ref().is_some_and(|n| !view.ready_nodes().any(|r| r == n)) {
                    member.node = ready.next().cloned();
                }
            }
        }));
        let policy = &view.spec.policy;
        let stop = Action::Stop { procs: view.alive().collect(), grace: policy.stop_grace, exact: true };
        let batch = start_all(&world, &view.spec.worker);
        let start = Action::Start { batch, until: policy.ready };
        Ok(Proposal {
            stages: vec![
                Stage::new("stop", policy.stop_grace + Duration::from_secs(30), vec![stop]),
                Stage::new("start", policy.start_within, vec![Action::Enter(world), start]),
            ],
            touches: vec![Domain::Job],
            cost: Cost { ends_job: false, lost_work: Duration::from_secs(30), downtime: Duration::from_secs(10), nodes_removed: 0 },
            counted,
            reason: "restart".into(),
        })
    }
}

pub(super) struct GiveUp;

impl RecoveryStrategy for GiveUp {
    fn name(&self) -> Name {
        Name::new("exit")
    }
    fn propose(&self, incident: &Incident, view: &View) -> Result<Proposal, String> {
        let grace = view.spec.policy.stop_grace;
        let stop = Action::Stop { procs: view.alive().collect(), grace, exact: true };
        let finish = Action::Finish { ok: false, reason: format!("{} cannot be mended", incident.id) };
        Ok(Proposal {
            stages: vec![
                Stage { need: crate::recover::Need::AtLeast(0), ..Stage::new("stop", grace + Duration::from_secs(20), vec![stop]) },
                Stage::new("finish", grace, vec![finish]),
            ],
            touches: vec![Domain::Job],
            cost: Cost { ends_job: true, lost_work: Duration::ZERO, downtime: Duration::ZERO, nodes_removed: 0 },
            counted: Counted::No,
            reason: "nothing else helps".into(),
        })
    }
}

fn start_all(world: &Arc<crate::job::World>, spec: &Arc<crate::job::WorkerSpec>) -> StartBatch {
    let orders = world.members().iter().map(|(rank, member)| StartOrder {
        proc: crate::job::ProcId { role: Role::Rank(*rank), incarnation: member.incarnation },
        place: member.node.clone().map_or(Place::anywhere(), Place::On),
        spec: Arc::clone(spec),
    });
    StartBatch { world: Arc::clone(world), orders: orders.collect() }
}
