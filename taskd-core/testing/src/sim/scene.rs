//! One job's fixed parameters, drawn once: its size, its hosts, its speed, its policy, the reliability of its wires.
//!
//! It plans no faults: `chaos` does that.

use super::SimConfig;
use super::dice::Dice;
use crate::job::{BudgetSpec, JobSpec, Mode, Name, NodeId, Permission, Policy, Ready, RemovalCap, WorkerSpec};
use std::sync::Arc;
use std::time::Duration;

/// Share of jobs, in thousandths, with a service that all ranks need.
const SERVICE_PERMILLE: u32 = 300;
/// Share of the jobs that taskd runs, in thousandths, with a step loop.
const STEP_LOOP_PERMILLE: u32 = 500;
/// Name of that service.
const SERVICE: Name = Name::new("scheduler");

/// Imperfections of the wires, in thousandths. All are zero in the calm at the end.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Weather {
    /// A reply is delivered a second time.
    pub(super) answer_twice: u32,
    /// The replies of one call arrive in parts and in another order.
    pub(super) answer_in_parts: u32,
    /// A change is delivered again, up to 20 s later.
    pub(super) change_twice: u32,
    /// Facts of an earlier incarnation or world of a rank arrive after its recovery.
    pub(super) stale_facts: u32,
    /// Largest number of ranks that end with a follow-up error when a peer is gone; the others wait forever.
    pub(super) victims_max: usize,
}

/// The fixed parameters of a job.
#[derive(Debug)]
pub(super) struct Scene {
    pub(super) spec: Arc<JobSpec>,
    /// All hosts; hosts without ranks are last.
    pub(super) nodes: Vec<NodeId>,
    /// Number of ranks that one host holds.
    pub(super) slots: u32,
    /// The step after which the program ends.
    pub(super) steps: u64,
    pub(super) checkpoint_every: u64,
    pub(super) step_takes: Duration,
    /// Longest time of a process from its order to running, in milliseconds.
    pub(super) boot_ms_max: u64,
    /// Longest time of ranks from running to the first step, in milliseconds.
    pub(super) rendezvous_ms_max: u64,
    pub(super) beat_every: Duration,
    /// Longest delay of facts on their way to the supervisor, in milliseconds.
    pub(super) fact_lag_ms_max: u64,
    /// True if deaths are reported before exits.
    pub(super) lifeline: bool,
    pub(super) weather: Weather,
    /// True if another system runs the job, and taskd only observes it.
    pub(super) observed: bool,
    /// True if the program has a step loop of taskd: its ranks have control links, and survivors join when they receive
    /// the directive.
    pub(super) step_loop: bool,
    /// True if a rank replies to `resume` after its first step, and not at once.
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
        spec.policy.mode = if observed { Mode::DryRun } else { Mode::Enforce };
        // All peers may fail only if the incident stays open until the job steps again: otherwise each failure would be
        // an incident of its own.
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
            lifeline: dice.chance(500) && !observed, // deaths are reported by the guard, which an observed job lacks
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

    /// Returns the duration of the whole program without faults.
    pub(super) fn undisturbed(&self) -> Duration {
        self.step_takes.saturating_mul(u32::try_from(self.steps).unwrap_or(u32::MAX))
    }

    /// Returns true if ranks need a service.
    pub(super) fn has_service(&self) -> bool {
        !self.spec.services.is_empty()
    }

    pub(super) fn ranks(&self) -> u32 {
        self.spec.ranks
    }
}

fn draw_policy(dice: &mut Dice) -> Policy {
    let mut policy = Policy::default();
    policy.correlation_window = dice.ms(5, 150);
    policy.budget = BudgetSpec { recoveries_max: 60, refill_every: dice.ms(20_000, 200_000) };
    policy.max_attempts = u32::try_from(dice.between(2, 4)).unwrap_or(2);
    policy.termination_grace_period = dice.ms(500, 5_000);
    policy.ready = *dice
        .pick(&[Ready::Accepted, Ready::Running, Ready::Training, Ready::Stepping, Ready::Stepping])
        .unwrap_or(&Ready::Running);
    policy.start_timeout = dice.ms(20_000, 60_000);
    policy.node_removals =
        RemovalCap { nodes_max: u32::try_from(dice.between(0, 2)).unwrap_or(0), within: dice.ms(30_000, 600_000) };
    policy.min_ranks = 1;
    if dice.chance(300) {
        policy.strategies.insert(super::plugins::REPLACE, Permission::Never);
    }
    if dice.chance(60) {
        policy.strategies.insert(super::plugins::RESTART, Permission::Ask);
    }
    policy
}
