//! One job's fixed circumstances, drawn once: its size, its hosts, its pace, its policy, how reliable its wires are.
//!
//! It plans no faults: that is `chaos`.

use super::SimConfig;
use super::dice::Dice;
use crate::job::{BudgetSpec, JobSpec, Mode, Name, NodeId, Permission, Policy, Ready, RemovalCap, WorkerSpec};
use std::sync::Arc;
use std::time::Duration;

/// How many of the jobs, in thousandths, have a service without which no rank trains.
const SERVICE_PERMILLE: u32 = 300;
/// How many of those that we run, in thousandths, have a step loop.
const STEP_LOOP_PERMILLE: u32 = 500;
/// That service.
const SERVICE: Name = Name::new("scheduler");

/// How much worse than perfect the wires are, in thousandths. All zero in the calm at the end.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Weather {
    /// An answer is delivered a second time.
    pub(super) answer_twice: u32,
    /// The answers of one call come in parts and in another order.
    pub(super) answer_in_parts: u32,
    /// A change is delivered again, up to 20 s later.
    pub(super) change_twice: u32,
    /// A rank's facts of an earlier life or world arrive after its recovery.
    pub(super) stale_facts: u32,
    /// How many ranks at most end with a follow-up error when a peer is gone; the others wait for ever.
    pub(super) victims_max: usize,
}

/// The circumstances.
#[derive(Debug)]
pub(super) struct Scene {
    pub(super) spec: Arc<JobSpec>,
    /// All hosts, those without ranks at the end.
    pub(super) nodes: Vec<NodeId>,
    /// How many ranks one host holds.
    pub(super) slots: u32,
    /// The step after which the program ends.
    pub(super) steps: u64,
    pub(super) checkpoint_every: u64,
    pub(super) step_takes: Duration,
    /// A process needs at most so long from its order to running.
    pub(super) boot_ms_max: u64,
    /// Ranks need at most so long from running to the first step.
    pub(super) rendezvous_ms_max: u64,
    pub(super) beat_every: Duration,
    /// Facts reach the supervisor after at most this time.
    pub(super) fact_lag_ms_max: u64,
    /// Whether deaths are told ahead of exits.
    pub(super) lifeline: bool,
    pub(super) weather: Weather,
    /// Something else runs the job, and it is only observed.
    pub(super) observed: bool,
    /// The program has a step loop of taskd's: its ranks have control links, and survivors join when they are told to.
    pub(super) step_loop: bool,
    /// Who is told to resume answers after its first step, and not at once.
    pub(super) resumed_by_step: bool,
}

impl Scene {
    pub(super) fn draw(config: &SimConfig, dice: &mut Dice) -> Scene {
        let ranks = dice.log_uniform(*config.ranks.start(), *config.ranks.end());
        let hosts = dice.between(2, u64::from(ranks / 4).clamp(2, 48));
        let hosts_used = u32::try_from(hosts).unwrap_or(2).min(ranks);
        let spares = dice.between(0, 2);
        let nodes: Vec<NodeId> = (0..hosts + spares).map(|n| NodeId(Name::from(format!("host-{n}")))).collect();
        let tail = config.steps_min / 20 + dice.between(0, config.steps_min / 20);
        let mut spec = JobSpec::new("simulated", ranks, WorkerSpec::new(["train"]));
        spec.nodes = nodes.iter().take(hosts_used as usize).cloned().collect();
        spec.policy = draw_policy(dice);
        let observed = dice.chance(config.observed_permille);
        if !observed && dice.chance(SERVICE_PERMILLE) {
            spec = spec.with_service(SERVICE, WorkerSpec::new(["serve"]));
        }
        let step_loop = !observed && dice.chance(STEP_LOOP_PERMILLE);
        if step_loop {
            spec.worker = Arc::new(WorkerSpec::new(["train", super::step_loop::ARGUMENT]));
        }
        spec.policy.mode = if observed { Mode::Observe } else { Mode::Act };
        // All at once only where the incident stays open until the job steps again: else each would be one of its own.
        let all = if spec.policy.ready == Ready::Stepping { usize::MAX } else { 3 };
        let victims_max = *dice.pick(&[0, 3, all]).unwrap_or(&0);
        Scene {
            spec: Arc::new(spec),
            nodes,
            slots: ranks.div_ceil(hosts_used) * 2,
            steps: config.steps_min + tail,
            checkpoint_every: dice.between(10, 60),
            step_takes: dice.ms(80, 400),
            boot_ms_max: dice.between(300, 4_000),
            rendezvous_ms_max: dice.between(100, 1_500),
            beat_every: (config.silence_within / 5).min(Duration::from_secs(1)),
            fact_lag_ms_max: dice.between(1, 40),
            lifeline: dice.chance(500) && !observed, // it comes from the guard, which is not there
            weather: Weather {
                answer_twice: 100,
                answer_in_parts: 150,
                change_twice: 20,
                stale_facts: 400,
                victims_max,
            },
            observed,
            step_loop,
            resumed_by_step: dice.chance(500),
        }
    }

    /// How long the whole program takes when nothing happens.
    pub(super) fn undisturbed(&self) -> Duration {
        self.step_takes.saturating_mul(u32::try_from(self.steps).unwrap_or(u32::MAX))
    }

    /// Whether ranks need a service.
    pub(super) fn has_service(&self) -> bool {
        !self.spec.services.is_empty()
    }

    pub(super) fn ranks(&self) -> u32 {
        self.spec.ranks
    }
}

fn draw_policy(dice: &mut Dice) -> Policy {
    let mut policy = Policy {
        correlate: dice.ms(5, 150),
        budget: BudgetSpec { recoveries_max: 60, refill_every: dice.ms(20_000, 200_000) },
        tries_max: u32::try_from(dice.between(2, 4)).unwrap_or(2),
        stop_grace: dice.ms(500, 5_000),
        ready: *dice
            .pick(&[Ready::Accepted, Ready::Running, Ready::Training, Ready::Stepping, Ready::Stepping])
            .unwrap_or(&Ready::Running),
        start_within: dice.ms(20_000, 60_000),
        node_removals: RemovalCap {
            nodes_max: u32::try_from(dice.between(0, 2)).unwrap_or(0),
            within: dice.ms(30_000, 600_000),
        },
        ranks_min: 1,
        ..Policy::default()
    };
    if dice.chance(300) {
        policy.strategies.insert(super::plugins::REPLACE, Permission::Never);
    }
    if dice.chance(60) {
        policy.strategies.insert(super::plugins::RESTART, Permission::Ask);
    }
    policy
}
