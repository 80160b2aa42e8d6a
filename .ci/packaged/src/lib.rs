//! One plugin of each kind.

use async_trait::async_trait;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use taskd_core::detect::{Damage, Fault, FaultClass, FaultDetector, Findings, Suspect};
use taskd_core::job::{Counted, Domain, Name, Rank, Role};
use taskd_core::launch::*;
use taskd_core::recover::{Action, Cost, Incident, Proposal, RecoveryStrategy, RefusalError, Stage};
use taskd_core::state::View;
use taskd_core::trace::{Fact, Observation, Signal, SourceError, SourceInfo, TraceBatch, TraceSource};

const TEMPERATURE: Name = Name::new("device.temperature_c");

/// Reads the temperature of rank 0's device, from a script.
#[derive(Debug)]
pub struct Thermometer {
    every: Duration,
    readings: VecDeque<f64>,
}

impl Thermometer {
    pub fn new(every: Duration, readings: impl IntoIterator<Item = f64>) -> Thermometer {
        Thermometer { every, readings: readings.into_iter().collect() }
    }

    pub fn fact(value: f64) -> Fact {
        Fact::new(Domain::Process(Role::Rank(Rank(0))), Signal::Metric { name: TEMPERATURE, value })
    }
}

#[async_trait]
impl TraceSource for Thermometer {
    fn info(&self) -> SourceInfo {
        SourceInfo::new("acme.thermometer").with_stand_in()
    }

    async fn next(&mut self) -> Option<Result<TraceBatch, SourceError>> {
        tokio::time::sleep(self.every).await; // nothing is taken before it
        self.readings.pop_front().map(|value| Ok(TraceBatch::of(vec![Thermometer::fact(value)])))
    }
}

/// Blames a device that becomes too hot.
#[derive(Debug)]
pub struct Hot {
    pub limit_c: f64,
}

impl FaultDetector for Hot {
    fn name(&self) -> Name {
        Name::new("acme.hot")
    }

    fn config(&self) -> String {
        format!("limit_c={}", self.limit_c)
    }

    fn observe(&mut self, o: &Observation, _view: &View, out: &mut Findings) {
        let Signal::Metric { name, value } = &o.signal else { return };
        if *name == TEMPERATURE && *value > self.limit_c {
            let suspect = Suspect::certain(o.about.clone(), FaultClass::Device, Damage::default());
            out.blame(Fault::new(self.name(), o.at, suspect));
        }
    }
}

/// Stops all ranks, and starts all of them again.
#[derive(Debug)]
pub struct StartOver;

impl RecoveryStrategy for StartOver {
    fn name(&self) -> Name {
        Name::new("acme.start-over")
    }

    fn propose(&self, _incident: &Incident, view: &View) -> Result<Proposal, RefusalError> {
        let policy = &view.spec.policy;
        let world = Arc::new(view.world.successor(Counted::Yes, |members| {
            for (rank, member) in members.iter_mut() {
                member.incarnation = view.next_incarnation(&Role::Rank(*rank));
            }
        }));
        let order = |proc| StartOrder::new(proc, Place::anywhere(), Arc::clone(&view.spec.worker));
        let starts = world.members().keys().filter_map(|rank| world.proc(*rank)).map(order).collect();
        let running = view.alive().filter(|proc| proc.role.rank().is_some()).collect();
        let stop = Action::Stop { procs: running, grace: policy.termination_grace_period, exact: true };
        let start = Action::Start { batch: StartBatch::new(Arc::clone(&world), starts), until: policy.ready };
        Ok(Proposal::new(
            vec![
                Stage::new("stop", policy.termination_grace_period + Duration::from_secs(30), vec![stop]),
                Stage::new("start", policy.start_timeout, vec![Action::Enter(world), start]),
            ],
            vec![Domain::Job],
            Cost::downtime(Duration::from_secs(10)),
            Counted::Yes,
            "all ranks start again",
        ))
    }
}

/// Another launcher, whose orders are counted.
#[derive(Debug)]
pub struct Counting<L> {
    inner: L,
    started: Arc<AtomicUsize>,
}

impl<L> Counting<L> {
    /// With the number of processes that were ordered.
    pub fn new(inner: L) -> (Counting<L>, Arc<AtomicUsize>) {
        let started = Arc::default();
        (Counting { inner, started: Arc::clone(&started) }, started)
    }
}

#[async_trait]
impl<L: Launcher> Launcher for Counting<L> {
    taskd_core::delegate!(Launcher to |this| this.inner, except start);

    async fn start(&self, batch: &StartBatch) -> Result<(), LaunchError> {
        self.inner.start(batch).await?;
        self.started.fetch_add(batch.starts.len(), Ordering::Relaxed);
        Ok(())
    }
}
