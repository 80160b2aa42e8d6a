//! One simulated job from its first event to its last: due events are executed, the kernel receives inputs, and its
//! commands take effect.
//!
//! Everything runs in one thread and one order. This module reads neither a clock nor the machine's entropy.

use super::agent::Agent;
use super::audit::Audit;
use super::chaos::{Armed, ChaosPlan, Deeds, Relief};
use super::dice::Dice;
use super::event::Event;
use super::fleet::Fleet;
use super::launcher::{Mood, Wire};
use super::log::Log;
use super::operator::Operator;
use super::outcome::{Outcome, Violation};
use super::queue::Queue;
use super::scene::{Scene, Weather};
use super::step_loop::Loops;
use super::supervisor::{Away, Supervisor};
use super::training::Training;
use super::{PluginMaker, SimConfig, with_saboteur};
use crate::job::{ErrorReport, JobTime, Mode, ProcId};
use crate::kernel::{Kernel, Mailbox, Plugins};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Time within which processes must be gone after the end.
const AFTERMATH: Duration = Duration::from_secs(60);

/// A world around one kernel.
pub(super) struct World<'a> {
    pub(super) config: &'a SimConfig,
    maker: &'a PluginMaker<'a>,
    pub(super) scene: Scene,
    pub(super) weather: Weather,
    pub(super) dice: Dice,
    pub(super) now: JobTime,
    pub(super) queue: Queue<Event>,
    pub(super) supervisor: Supervisor,
    pub(super) fleet: Fleet,
    pub(super) wire: Wire,
    pub(super) mood: Mood,
    pub(super) facts_tail: JobTime,
    pub(super) mute_witnesses: bool,
    /// Processes that run but send no heartbeat.
    pub(super) busy: BTreeSet<ProcId>,
    /// Processes that have recorded this failure, and do not end.
    pub(super) stuck: BTreeMap<ProcId, ErrorReport>,
    pub(super) training: Training,
    pub(super) loops: Loops,
    /// The trick to play when processes carry out directives.
    pub(super) armed: Option<Armed>,
    /// A violation that was found outside a kernel step.
    pub(super) broken: Option<Violation>,
    pub(super) plan: ChaosPlan,
    pub(super) deeds: Deeds,
    pub(super) operator: Operator,
    pub(super) agent: Agent,
    pub(super) errors: u64,
    pub(super) audit: Audit,
    pub(super) log: Log,
    pub(super) quiet_until: JobTime,
    calm_since: Option<JobTime>,
    pub(super) finished: Option<(JobTime, bool)>,
    /// True if the launcher refuses the job's first start: the job has to end at once, without remaining processes.
    stillborn: bool,
}

impl<'a> World<'a> {
    pub(super) fn new(seed: u64, config: &'a SimConfig, maker: &'a PluginMaker<'a>, log: Log) -> World<'a> {
        let mut dice = Dice::new(seed);
        let scene = Scene::draw(config, &mut dice);
        let plan = ChaosPlan::draw(config, &scene, &mut dice);
        let mut deeds = Deeds::default();
        deeds.pending = plan.len();
        let kernel = Kernel::new(with_saboteur(maker)).with_checks(config.checks.clone());
        let supervisor = Supervisor {
            kernel,
            mailbox: Mailbox::new(config.checks.clone()),
            life: 0,
            away: Away::Gone(JobTime::START),
            away_total: Duration::ZERO,
            doomed: false,
        };
        let mut world = World {
            config,
            maker,
            weather: scene.weather,
            fleet: Fleet::new(&scene),
            training: Training::new(Arc::new(scene.spec.first_world())),
            loops: Loops::default(),
            armed: None,
            broken: None,
            scene,
            dice,
            now: JobTime::START,
            queue: Queue::new(),
            supervisor,
            wire: Wire::default(),
            mood: Mood::Well,
            facts_tail: JobTime::START,
            mute_witnesses: false,
            busy: BTreeSet::new(),
            stuck: BTreeMap::new(),
            plan,
            deeds,
            operator: Operator::default(),
            agent: Agent::default(),
            errors: 0,
            audit: Audit::default(),
            log,
            quiet_until: JobTime::START,
            calm_since: None,
            finished: None,
            stillborn: false,
        };
        world.queue.push(JobTime::START, Event::Boot);
        world.queue.push(JobTime::START, Event::Relief(Relief::Rounds));
        if world.scene.observed {
            world.queue.push(JobTime::START + world.dice.ms(0, 2_000), Event::Agent);
        }
        for host in 0..world.fleet.hosts.len() {
            let at = JobTime::START + world.dice.ms(0, 900);
            world.queue.push(at, Event::Beat(host));
        }
        world
    }

    /// Creates a job that cannot be started.
    pub(super) fn stillborn(seed: u64, config: &'a SimConfig, maker: &'a PluginMaker<'a>) -> World<'a> {
        let mut world = World::new(seed, config, maker, Log::Off);
        world.scene.observed = false;
        Arc::make_mut(&mut world.scene.spec).policy.mode = Mode::Enforce;
        world.stillborn = true;
        world.mood = Mood::Refuses;
        world.plan = ChaosPlan::none();
        world.deeds.pending = 0;
        world
    }

    pub(super) fn plugins(&self) -> Plugins {
        with_saboteur(self.maker)
    }

    /// Runs the job to its end, or to the first violation.
    pub(super) fn run(mut self, seed: u64) -> (Outcome, Log) {
        let violation = self.live().err().map(|v| (self.now, v));
        let outcome = Outcome {
            seed,
            violation,
            ranks: self.scene.ranks(),
            rank_steps: self.training.steps_taken(),
            faults: self.deeds.struck,
            counts: self.supervisor.kernel.counts().clone(),
            report: self.supervisor.kernel.report(),
            inputs: self.supervisor.kernel.seq().0,
        };
        (outcome, self.log)
    }

    fn live(&mut self) -> Result<(), Violation> {
        loop {
            let next = self.queue.next_at();
            let due = self.supervisor_due();
            let Some(at) = next.into_iter().chain(due).min() else { break };
            if self.finished.is_some_and(|(end, _)| at > end + AFTERMATH) {
                break;
            }
            self.now = self.now.max(at);
            if next.is_some_and(|next| next <= self.now)
                && let Some((_, event)) = self.queue.pop()
            {
                self.happens(event);
            }
            if let Some(broken) = self.broken.take() {
                return Err(broken);
            }
            self.supervise()?;
            self.watch_liveness()?;
        }
        self.judge_end()
    }

    /// Returns true if all planned faults have been injected.
    pub(super) fn is_calm(&self) -> bool {
        self.calm_since.is_some()
    }

    fn supervisor_due(&self) -> Option<JobTime> {
        if self.finished.is_some() { None } else { self.kernel_due() }
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Boot => self.boot(),
            Event::Wake { life } if life == self.supervisor.life => self.wake(),
            Event::Wake { .. } => {}
            Event::Nap { life } if life == self.supervisor.life => self.nap(),
            Event::Nap { .. } => {}
            Event::Urgent { life, input } => {
                if self.receives(life) {
                    self.supervisor.mailbox.push(*input);
                }
            }
            Event::Changed { life, history, change } => {
                if self.receives(life) && self.arrives(history) {
                    self.supervisor.mailbox.push(crate::kernel::Input::Changed(*change));
                }
            }
            Event::Listed { life } => {
                if self.receives(life) {
                    self.listing_arrives();
                }
            }
            Event::Facts { life, mut facts } => {
                if self.receives(life) {
                    if self.scene.observed {
                        // Generations are ours: the observed system has none.
                        facts.iter_mut().for_each(|fact| fact.generation = None);
                    }
                    self.supervisor.mailbox.push_facts(self.now, facts);
                }
            }
            Event::Start { life, id, batch } => self.start_arrives(life, id, &batch),
            Event::Stop { procs, grace } => self.stop_arrives(&procs, grace),
            Event::Direct { life, id, batch } => self.direct_arrives(life, id, &batch),
            Event::Links(_)
            | Event::InLoop { .. }
            | Event::Directed { .. }
            | Event::GaveUp { .. }
            | Event::Meet { .. }
            | Event::Copied { .. }
            | Event::Answers { .. }
            | Event::ReportsFailed { .. } => self.loop_does(event),
            Event::Acknowledge(proc) => self.acknowledge_arrives(&proc),
            Event::Joins(world) => self.joins(&world),
            Event::Runs(proc) => self.runs(&proc),
            Event::Ends { proc, exit } => self.ends(&proc, *exit, false),
            Event::Fails { proc, generation, exit } => self.fails(&proc, generation, *exit),
            Event::Stopped { proc, exit } => self.ends(&proc, *exit, true),
            Event::Gone { proc, exit } => self.gone(&proc, exit),
            Event::Form(generation) => self.form(generation),
            Event::Step(number) => self.step(number),
            Event::Beat(host) => self.beat(host),
            Event::Strike(strike) => self.strike(strike),
            Event::Agent => self.agent_looks(),
            Event::Relief(relief) => self.relieve(relief),
        }
    }

    /// Executes an event of a simulated process whose program has a step loop.
    fn loop_does(&mut self, event: Event) {
        match event {
            Event::Links(proc) => self.links(&proc),
            Event::InLoop { proc, generation } => self.comes_to_loop(&proc, generation),
            Event::Directed { proc, id } => self.directed(&proc, id),
            Event::GaveUp { proc, id, generation } => self.has_given_up(&proc, id, generation),
            Event::Meet { generation, size } => self.meet(generation, size),
            Event::Copied { proc, id, generation } => self.copied(&proc, id, generation),
            Event::Answers { proc, id } => self.answers_directive(&proc, id),
            Event::ReportsFailed { proc, generation, kind } => self.reports_failed(&proc, generation, kind),
            _ => {}
        }
    }

    /// Returns an error if the job, after the last planned fault, completes no steps or does not end by itself.
    fn watch_liveness(&mut self) -> Result<(), Violation> {
        if self.finished.is_some() {
            return Ok(());
        }
        if self.calm_since.is_none() && self.deeds.pending == 0 {
            self.calm_since = Some(self.now);
            self.weather = Weather::default();
        }
        let since = self.training.last_step.max(self.calm_since.unwrap_or_default());
        let waits = self.now.since(since) > self.config.finish_within + self.scene.spec.policy.start_timeout * 3;
        let long = self.scene.undisturbed() * 4 + self.config.finish_within;
        let drags = self.calm_since.is_some_and(|calm| self.now.since(calm) > long) && !self.deeds.draining;
        if waits || drags {
            return Err(Violation::Stuck { since, open: self.audit.open_incidents() });
        }
        Ok(())
    }

    /// Checks what is required of a finished job, for example that no process runs and no incident is open.
    fn judge_end(&mut self) -> Result<(), Violation> {
        let kernel = &self.supervisor.kernel;
        self.audit.end(kernel)?;
        let lives_on = self.scene.observed && self.deeds.ending; // the end of the observation does not end the job
        if let Some((proc, _)) = self.fleet.alive().next().filter(|_| !lives_on) {
            return Err(Violation::LeftRunning { proc: proc.clone() });
        }
        let report = kernel.report();
        if let Some(open) = report.incidents.iter().find(|i| i.outcome == "open") {
            return Err(Violation::LeftOpen { incident: open.id });
        }
        if self.stillborn {
            return match report.ok || !self.fleet.procs.is_empty() {
                true => Err(Violation::NotRefused { reason: report.reason }),
                false => Ok(()),
            };
        }
        if !report.ok && !self.deeds.ending {
            return Err(Violation::GivenUp { reason: report.reason });
        }
        let wanted = if report.ok { self.scene.steps } else { self.config.steps_min };
        if let Some((rank, seat)) = self.training.members().find(|(_, seat)| seat.taken < wanted) {
            let rank = rank.0 as usize;
            return Err(Violation::StepsMissing { rank, taken: seat.taken, steps: wanted });
        }
        let (faults, kinds) = (self.deeds.struck.values().sum(), self.deeds.struck.len());
        if faults < *self.config.faults.start() || kinds < 4.min(faults as usize) {
            return Err(Violation::TooQuiet { faults, kinds });
        }
        Ok(())
    }
}
