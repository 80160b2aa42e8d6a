//! A simulated hybrid-parallel job: data-parallel replicas of a pipeline with the 1F1B schedule, with or without
//! interleaved model chunks, which records its operations as the columns of an operation trace have them.
//!
//! The simulation is event by event and knows nothing of the model under test. All random values of a step are drawn
//! before it is simulated, so a job with and without a planted straggler differs by the straggler only.

use crate::records::Records;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use taskd_analysis::what_if::{Operation, OperationKind};

/// A worker that computes `factor` times as long in the steps with these indexes; without a stage, a whole replica.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plant {
    pub(crate) data: usize,
    pub(crate) stage: Option<usize>,
    pub(crate) onset: usize,
    pub(crate) end: usize,
    pub(crate) factor: f64,
}

/// A job.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) seed: u64,
    pub(crate) data: usize,
    pub(crate) stages: usize,
    pub(crate) chunks: usize,
    pub(crate) micro_batches: usize,
    pub(crate) steps: usize,
    /// Time of the last stage over that of the others.
    pub(crate) last_stage: f64,
    /// Standard deviation of the logarithm of the micro-batches' lengths.
    pub(crate) lengths: f64,
    /// Gradients are reduced while the backward passes of other chunks run.
    pub(crate) is_overlapped: bool,
    /// Sends and receives are recorded at the ends of the model, too, where nothing is transferred.
    pub(crate) has_empty_transfers: bool,
    pub(crate) plants: Vec<Plant>,
}

/// What a simulation results in.
pub(crate) struct Run {
    pub(crate) operations: Vec<Operation>,
    /// Mean time of a step.
    pub(crate) step_s: f64,
}

/// Number of the first step, and the distance of the traced steps.
pub(crate) const FIRST_STEP: u64 = 16;
pub(crate) const STEP_DISTANCE: u64 = 3;

const FORWARD_S: f64 = 0.2;
const BACKWARD_S: f64 = 0.36;
const TRANSFER_S: f64 = 0.001;
/// Between an operation and the next one of its worker.
const LAUNCH_S: f64 = 0.000_2;

/// Returns a value of the standard normal distribution (Box and Muller).
fn normal(random: &mut StdRng) -> f64 {
    let (radius, angle): (f64, f64) = (random.random::<f64>().max(1e-12), random.random());
    (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
}

/// Random values of one step: factors on the times of passes, transfers and the rest.
struct Draws {
    /// Factor of each pass, by replica, stage and place in the schedule.
    passes: Vec<Vec<Vec<f64>>>,
    /// Length of each micro-batch, by replica.
    lengths: Vec<Vec<f64>>,
    /// Times of transfers, by replica, stage and place in the schedule.
    transfers: Vec<Vec<Vec<f64>>>,
    /// Factor on the times of the step's end, by replica and stage.
    tails: Vec<Vec<f64>>,
}

impl Draws {
    fn new(job: &Job, devices: &[Vec<f64>], random: &mut StdRng) -> Draws {
        let places = 2 * job.micro_batches * job.chunks;
        let mut table =
            |value: &mut dyn FnMut(&mut StdRng, usize, usize) -> f64, places: usize| -> Vec<Vec<Vec<f64>>> {
                let row = |random: &mut StdRng, value: &mut dyn FnMut(&mut StdRng, usize, usize) -> f64, d, s| {
                    (0..places).map(|_| value(random, d, s)).collect::<Vec<f64>>()
                };
                (0..job.data).map(|d| (0..job.stages).map(|s| row(random, value, d, s)).collect()).collect()
            };
        let passes = table(
            &mut |random, d, s| {
                let pause = if random.random_range(0..500) == 0 { 1.0 + 3.0 * random.random::<f64>() } else { 1.0 };
                devices[d][s] * (0.02 * normal(random)).exp() * pause
            },
            places,
        );
        let transfers = table(&mut |random, _, _| TRANSFER_S * (0.2 * normal(random)).exp(), places);
        let tails = table(&mut |random, _, _| (0.03 * normal(random)).exp(), 1);
        let lengths = (0..job.data)
            .map(|_| (0..job.micro_batches).map(|_| (job.lengths * normal(random)).exp()).collect())
            .collect();
        let tails = tails.into_iter().map(|stages| stages.into_iter().map(|tail| tail[0]).collect()).collect();
        Draws { passes, lengths, transfers, tails }
    }
}

/// A pass in a stage's schedule.
#[derive(Clone, Copy, Debug)]
struct Pass {
    is_forward: bool,
    chunk: usize,
    micro_batch: usize,
}

/// The 1F1B schedule of a stage, as Megatron-LM has it.
fn schedule(job: &Job, stage: usize) -> Vec<Pass> {
    let total = job.micro_batches * job.chunks;
    let warmup = if job.chunks == 1 {
        job.stages - stage - 1
    } else {
        (job.stages - stage - 1) * 2 + (job.chunks - 1) * job.stages
    };
    let warmup = warmup.min(total);
    let pass = |number: usize, is_forward: bool| {
        let chunk = number % (job.stages * job.chunks) / job.stages;
        let micro_batch = number / (job.stages * job.chunks) * job.stages + number % job.stages;
        let chunk = if is_forward { chunk } else { job.chunks - 1 - chunk };
        if job.chunks == 1 {
            Pass { is_forward, chunk: 0, micro_batch: number }
        } else {
            Pass { is_forward, chunk, micro_batch }
        }
    };
    let mut passes: Vec<Pass> = (0..warmup).map(|number| pass(number, true)).collect();
    for number in 0..total - warmup {
        passes.extend([pass(warmup + number, true), pass(number, false)]);
    }
    passes.extend((total - warmup..total).map(|number| pass(number, false)));
    passes
}

impl Job {
    /// Simulates the job.
    pub(crate) fn run(&self) -> Run {
        let mut random = StdRng::seed_from_u64(self.seed);
        // Equal devices differ by a little.
        let devices: Vec<Vec<f64>> =
            (0..self.data).map(|_| (0..self.stages).map(|_| (0.006 * normal(&mut random)).exp()).collect()).collect();
        let (mut operations, mut total) = (Vec::new(), 0.0);
        for step in 0..self.steps {
            let draws = Draws::new(self, &devices, &mut random);
            total += Step::new(self, step, &draws).run(&mut operations);
        }
        Run { operations, step_s: total / self.steps as f64 }
    }

    /// Returns the place of a pass among the forward or backward passes of its stage.
    fn order(&self, is_forward: bool, chunk: usize, micro_batch: usize) -> u32 {
        let chunk = if is_forward { chunk } else { self.chunks - 1 - chunk };
        let order = match self.chunks {
            1 => micro_batch,
            _ => {
                micro_batch / self.stages * self.stages * self.chunks + chunk * self.stages + micro_batch % self.stages
            }
        };
        u32::try_from(order).unwrap()
    }

    /// The same job without planted stragglers.
    pub(crate) fn without_plants(&self) -> Job {
        Job { plants: Vec::new(), ..self.clone() }
    }
}

/// The state of one replica's stage.
#[derive(Clone, Copy, Debug, Default)]
struct Stage {
    place: usize,
    free: f64,
}

/// One step of all replicas.
struct Step<'a> {
    job: &'a Job,
    index: usize,
    draws: &'a Draws,
}

type Marks = Vec<Option<f64>>;

impl<'a> Step<'a> {
    fn new(job: &'a Job, index: usize, draws: &'a Draws) -> Step<'a> {
        Step { job, index, draws }
    }

    fn slow(&self, data: usize, stage: usize) -> f64 {
        let is_slow = |plant: &&Plant| {
            plant.data == data
                && plant.stage.is_none_or(|slow| slow == stage)
                && (plant.onset..plant.end).contains(&self.index)
        };
        self.job.plants.iter().filter(is_slow).map(|plant| plant.factor).product()
    }

    /// Simulates the step, appends its operations, and returns its time.
    fn run(&self, all: &mut Vec<Operation>) -> f64 {
        let job = self.job;
        let mut records = Records::new(job, FIRST_STEP + self.index as u64 * STEP_DISTANCE);
        // The parameters of each chunk are gathered over the replicas, one chunk after the other.
        let gathered: Vec<Vec<f64>> = (0..job.stages)
            .map(|stage| {
                let mut end = 0.0;
                (0..job.chunks)
                    .map(|chunk| {
                        let starts = vec![end; job.data];
                        end = records.collective(OperationKind::ParameterGather, stage, Some(chunk), &starts, 0.03);
                        end
                    })
                    .collect()
            })
            .collect();
        let mut passed = vec![vec![vec![0.0; job.chunks + 1]; job.stages]; job.data];
        for (data, passed) in passed.iter_mut().enumerate() {
            self.pipeline(data, &gathered, &mut records, passed);
        }
        let end = self.tail(&passed, &mut records);
        all.extend(records.numbered());
        end
    }

    /// Simulates the passes of one replica. `passed` has, per stage, the end of each chunk's last backward pass, and the
    /// end of all passes.
    fn pipeline(&self, data: usize, gathered: &[Vec<f64>], records: &mut Records<'_>, passed: &mut [Vec<f64>]) {
        let job = self.job;
        let schedules: Vec<Vec<Pass>> = (0..job.stages).map(|stage| schedule(job, stage)).collect();
        let places = job.stages * job.chunks * job.micro_batches;
        // Ends of the passes, and the moments at which their results are ready to be sent: forward, backward.
        let mut ends: [Marks; 2] = [vec![None; places], vec![None; places]];
        let mut stages = vec![Stage::default(); job.stages];
        let mut streams = vec![[0.0_f64; 4]; job.stages];
        let mut left: usize = schedules.iter().map(Vec::len).sum();
        while left > 0 {
            for stage in 0..job.stages {
                while let Some(pass) = schedules[stage].get(stages[stage].place).copied() {
                    let Some(ready) = self.input(data, stage, pass, &ends, &stages, &mut streams, records) else {
                        break;
                    };
                    let loaded = if pass.is_forward { gathered[stage][pass.chunk] } else { 0.0 };
                    let start = stages[stage].free.max(ready).max(loaded) + LAUNCH_S;
                    let end = start + self.time(data, stage, stages[stage].place, pass);
                    let kind = if pass.is_forward { OperationKind::Forward } else { OperationKind::Backward };
                    records.add(data, stage, kind, Some(pass.chunk), Some(pass.micro_batch), start, end);
                    ends[usize::from(!pass.is_forward)][self.mark(stage, pass)] = Some(end);
                    if job.has_empty_transfers && !pass.is_forward && stage + pass.chunk == 0 {
                        let order = job.order(false, pass.chunk, pass.micro_batch);
                        records.transfer(data, stage, OperationKind::BackwardSend, order, end, end + 1e-5);
                    }
                    if !pass.is_forward {
                        passed[stage][pass.chunk] = end;
                    }
                    passed[stage][job.chunks] = end;
                    stages[stage] = Stage { place: stages[stage].place + 1, free: end };
                    left -= 1;
                }
            }
        }
    }

    fn mark(&self, stage: usize, pass: Pass) -> usize {
        (pass.chunk * self.job.stages + stage) * self.job.micro_batches + pass.micro_batch
    }

    fn time(&self, data: usize, stage: usize, place: usize, pass: Pass) -> f64 {
        let usual = if pass.is_forward { FORWARD_S } else { BACKWARD_S } / self.job.chunks as f64;
        let is_last = stage == self.job.stages - 1 && pass.chunk == self.job.chunks - 1;
        let last = if is_last { self.job.last_stage } else { 1.0 };
        let length = self.draws.lengths[data][pass.micro_batch];
        usual * last * length * self.draws.passes[data][stage][place] * self.slow(data, stage)
    }

    /// Returns the moment at which the pass has its input, and records the transfer; `None`: not yet known.
    #[allow(clippy::too_many_arguments)]
    fn input(
        &self,
        data: usize,
        stage: usize,
        pass: Pass,
        ends: &[Marks; 2],
        stages: &[Stage],
        streams: &mut [[f64; 4]],
        records: &mut Records<'_>,
    ) -> Option<f64> {
        let job = self.job;
        let chunk = pass.chunk * job.stages + stage;
        let source = match pass.is_forward {
            true if chunk == 0 => None,
            true => Some(chunk - 1),
            false if chunk + 1 == job.stages * job.chunks => Some(chunk),
            false => Some(chunk + 1),
        };
        let order = job.order(pass.is_forward, pass.chunk, pass.micro_batch);
        let Some(source) = source else {
            let is_first = stages[stage].place == 0;
            if job.has_empty_transfers && !is_first {
                let start = stages[stage].free + LAUNCH_S / 2.0;
                records.transfer(data, stage, OperationKind::ForwardReceive, order, start, start + 1e-5);
            }
            return Some(0.0);
        };
        let from = usize::from(!pass.is_forward && source != chunk);
        let end = ends[from][source * job.micro_batches + pass.micro_batch]?;
        if source == chunk {
            if job.has_empty_transfers {
                let start = stages[stage].free + LAUNCH_S / 2.0;
                records.transfer(data, stage, OperationKind::BackwardReceive, order, start, start + 1e-5);
                let order = job.order(true, pass.chunk, pass.micro_batch);
                records.transfer(data, stage, OperationKind::ForwardSend, order, end, end + 1e-5);
            }
            return Some(end);
        }
        let sender = source % job.stages;
        let (send, receive, streams_used) = if pass.is_forward {
            (OperationKind::ForwardSend, OperationKind::ForwardReceive, (0, 1))
        } else {
            (OperationKind::BackwardSend, OperationKind::BackwardReceive, (2, 3))
        };
        let sent = (end + LAUNCH_S / 2.0).max(streams[sender][streams_used.0]);
        let received = (stages[stage].free + LAUNCH_S / 2.0).max(streams[stage][streams_used.1]);
        let transferred = sent.max(received) + self.draws.transfers[data][stage][stages[stage].place];
        streams[sender][streams_used.0] = transferred;
        streams[stage][streams_used.1] = transferred;
        let sent_order = job.order(pass.is_forward, source / job.stages, pass.micro_batch);
        records.transfer(data, sender, send, sent_order, sent, transferred);
        records.transfer(data, stage, receive, order, received, transferred);
        Some(transferred)
    }

    /// Simulates the end of the step: reduction of the gradients, clipping and the optimizer.
    fn tail(&self, passed: &[Vec<Vec<f64>>], records: &mut Records<'_>) -> f64 {
        let job = self.job;
        let mut free: Vec<Vec<f64>> =
            passed.iter().map(|stages| stages.iter().map(|chunks| chunks[job.chunks]).collect()).collect();
        let mut reduced = vec![0.0; job.stages];
        if job.is_overlapped {
            for (stage, reduced) in reduced.iter_mut().enumerate() {
                for chunk in (0..job.chunks).rev() {
                    let starts: Vec<f64> = passed.iter().map(|stages| stages[stage][chunk].max(*reduced)).collect();
                    *reduced = records.collective(OperationKind::GradientSync, stage, Some(chunk), &starts, 0.05);
                }
            }
        }
        for data in 0..job.data {
            for stage in 0..job.stages {
                let free = &mut free[data][stage];
                records.add(data, stage, OperationKind::GarbageCollection, None, None, *free, *free);
                let start = free.max(reduced[stage]) + LAUNCH_S;
                *free = start + 0.003 * self.draws.tails[data][stage];
                records.add(data, stage, OperationKind::LayerNormSync, None, None, start, *free);
            }
            let ends = if job.stages > 1 { vec![0, job.stages - 1] } else { vec![0] };
            let begun = ends.iter().map(|stage| free[data][*stage]).fold(0.0, f64::max) + LAUNCH_S;
            for stage in ends {
                let start = free[data][stage] + LAUNCH_S;
                free[data][stage] = begun + 0.01;
                records.add(data, stage, OperationKind::EmbeddingSync, None, None, start, begun + 0.01);
            }
        }
        self.end(free, records)
    }

    fn end(&self, mut free: Vec<Vec<f64>>, records: &mut Records<'_>) -> f64 {
        let job = self.job;
        for stage in 0..job.stages {
            let kind =
                if job.is_overlapped { OperationKind::SeparateGradientSync } else { OperationKind::GradientSync };
            for chunk in 0..if job.is_overlapped { 1 } else { job.chunks } {
                let starts: Vec<f64> = free.iter().map(|stages| stages[stage] + LAUNCH_S).collect();
                let chunk = (!job.is_overlapped).then_some(chunk);
                let end = records.collective(kind, stage, chunk, &starts, 0.05);
                free.iter_mut().for_each(|stages| stages[stage] = end);
            }
        }
        let clipped = free.iter().flatten().copied().fold(0.0, f64::max) + 0.007;
        let mut last: f64 = 0.0;
        for (data, stages) in free.iter().enumerate() {
            for (stage, free) in stages.iter().enumerate() {
                records.add(data, stage, OperationKind::ClipGradient, None, None, free + LAUNCH_S, clipped);
                let end = clipped + 0.02 * self.draws.tails[data][stage] * self.slow(data, stage);
                records.add(data, stage, OperationKind::Optimizer, None, None, clipped, end);
                last = last.max(end);
            }
        }
        last
    }
}
