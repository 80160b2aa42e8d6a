//! Writes traces like those of PyTorch's profiler, from a seed: a training of a transformer with data parallelism on GPUs.
//!
//! A step consists of the data loader, a forward pass, a backward pass with all-reduces on a stream of their own, and the
//! optimizer. Operators nest; each launch of a kernel has its call of the runtime, its kernel and the two flow events
//! between them; kernels queue on their stream. Layout, member names and numbers of arguments are those of PyTorch 2.15.
//! Equal plans give equal bytes.

mod names;
mod writer;

use names::Shape;
use std::io::{self, Write};
use writer::Writer;

/// What a generated file contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Start of the pseudo-random sequence. Ranks of one job have equal seeds.
    pub seed: u64,
    /// Global rank, written to `distributedInfo`.
    pub rank: u32,
    /// Number of ranks of the job.
    pub world_size: u32,
    /// Number of training steps.
    pub steps: u64,
    /// Layers of the model: each is about 50 KiB of trace per step.
    pub layers: u32,
    /// Kernels last 0.3 to 3 microseconds instead of 2 to 400.
    pub has_short_kernels: bool,
    /// Writes the file on one line without spaces, as `json.dumps` with compact separators does.
    pub is_minified: bool,
}

impl Default for Plan {
    fn default() -> Self {
        Self { seed: 1, rank: 0, world_size: 1, steps: 4, layers: 2, has_short_kernels: false, is_minified: false }
    }
}

impl Plan {
    /// Returns a plan of a file of about this size, with eight steps.
    #[must_use]
    pub fn with_bytes(self, bytes: u64) -> Self {
        let steps = 8;
        let layers = bytes / steps / LAYER_BYTES;
        Self { steps, layers: u32::try_from(layers).unwrap_or(u32::MAX).max(1), ..self }
    }
}

/// Bytes that one layer adds to a step, on average.
const LAYER_BYTES: u64 = 51_400;

/// Time zero of generated files, in nanoseconds since 1970.
pub const BASE_UNIX_NS: i64 = 1_790_857_026_000_000_000;

/// Writes a trace file.
///
/// # Errors
/// Fails if `out` does.
pub fn write(plan: &Plan, out: impl Write) -> io::Result<()> {
    let mut job = Job::new(*plan, Writer::new(out, plan.is_minified));
    job.out.header(plan.rank, plan.world_size, BASE_UNIX_NS)?;
    for step in 0..plan.steps {
        job.step(step)?;
    }
    job.out.trailer(job.host)
}

/// Pseudo-random numbers (`SplitMix64`, Steele et al. 2014): own code, so that equal seeds give equal files for ever.
#[derive(Clone, Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// Returns a number in `[from, to)`.
    fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.next() % (to - from)
    }
}

/// Streams of the device.
const COMPUTE_STREAM: usize = 0;
const COPY_STREAM: usize = 1;
const NCCL_STREAM: usize = 2;
/// Their numbers in the trace.
const STREAMS: [u32; 3] = [7, 20, 28];

/// State of the simulated rank. Times are nanoseconds after the time zero of the file.
struct Job<W: Write> {
    plan: Plan,
    out: Writer<W>,
    random: Random,
    /// Time of the host's thread.
    host: u64,
    /// Time at which each stream is free.
    free: [u64; 3],
    correlation: u64,
    external: u64,
    collective: u64,
}

/// First time in the file: the profiler counts from an event before the training.
const FIRST_NS: u64 = 5_009_734_009_629_971;

impl<W: Write> Job<W> {
    fn new(plan: Plan, out: Writer<W>) -> Self {
        let random = Random(plan.seed ^ (u64::from(plan.rank) << 32));
        let (correlation, external) = (1_000, 1);
        Self { plan, out, random, host: FIRST_NS, free: [FIRST_NS; 3], correlation, external, collective: 0 }
    }

    fn step(&mut self, number: u64) -> io::Result<()> {
        let start = self.host;
        self.pause(20_000, 40_000);
        self.annotated("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", |job| {
            job.pause(50_000, 900_000);
            job.nested(&["aten::to", "aten::_to_copy"], |job| job.launch(Shape::Copy, COPY_STREAM))
        })?;
        self.annotated("Optimizer.zero_grad#AdamW.zero_grad", |job| {
            job.nested(&["aten::zero_"], |job| job.launch(Shape::Fill, COMPUTE_STREAM))
        })?;
        self.annotated("DistributedDataParallel.forward", |job| {
            (0..job.plan.layers).try_for_each(|layer| job.forward(layer))
        })?;
        for layer in (0..self.plan.layers).rev() {
            self.backward(layer)?;
        }
        // The optimizer waits for the last all-reduce.
        let free = self.free[NCCL_STREAM];
        self.free[COMPUTE_STREAM] = self.free[COMPUTE_STREAM].max(free);
        self.annotated("Optimizer.step#AdamW.step", |job| {
            (0..job.plan.layers.div_ceil(8)).try_for_each(|_| {
                job.nested(&["aten::_fused_adamw_"], |job| job.launch(Shape::Optimizer, COMPUTE_STREAM))
            })
        })?;
        self.synchronize()?;
        let duration = self.host - start;
        self.external += 1;
        let (pid, external) = (names::PROCESS, self.external);
        self.out.annotation(
            "user_annotation",
            &format!("ProfilerStep#{number}"),
            pid,
            pid,
            start,
            duration,
            external,
        )?;
        self.pause(5_000, 60_000);
        Ok(())
    }

    /// A layer: attention and a feed-forward network.
    fn forward(&mut self, layer: u32) -> io::Result<()> {
        self.python(layer)?;
        for (operators, shape) in names::FORWARD {
            self.nested(operators, |job| job.launch(*shape, COMPUTE_STREAM))?;
        }
        Ok(())
    }

    fn backward(&mut self, layer: u32) -> io::Result<()> {
        for (operators, shape) in names::BACKWARD {
            self.nested(operators, |job| {
                job.launch(*shape, COMPUTE_STREAM)?;
                if matches!(shape, Shape::Matrix) { job.launch(Shape::Matrix, COMPUTE_STREAM) } else { Ok(()) }
            })?;
        }
        if layer.is_multiple_of(2) {
            self.all_reduce()?;
        }
        Ok(())
    }

    fn all_reduce(&mut self) -> io::Result<()> {
        self.collective += 1;
        // Communication begins when the gradients are there.
        let free = self.free[COMPUTE_STREAM];
        self.free[NCCL_STREAM] = self.free[NCCL_STREAM].max(free);
        self.nested(&["c10d::allreduce_", "record_param_comms"], |job| job.launch(Shape::AllReduce, NCCL_STREAM))
    }

    /// Moves the host's time forward.
    fn pause(&mut self, from: u64, to: u64) {
        self.host += self.random.between(from, to);
    }

    fn annotated(&mut self, name: &str, body: impl FnOnce(&mut Self) -> io::Result<()>) -> io::Result<()> {
        let start = self.host;
        self.pause(1_000, 4_000);
        body(self)?;
        self.pause(1_000, 4_000);
        self.external += 1;
        let (duration, pid, external) = (self.host - start, names::PROCESS, self.external);
        self.out.annotation("user_annotation", name, pid, pid, start, duration, external)
    }

    /// Operators, each within the one before.
    fn nested(&mut self, names: &[&str], body: impl FnOnce(&mut Self) -> io::Result<()>) -> io::Result<()> {
        let Some((name, inner)) = names.split_first() else { return body(self) };
        let start = self.host;
        self.external += 1;
        let external = self.external;
        self.pause(300, 2_000);
        self.nested_dyn(inner, body)?;
        self.pause(300, 2_000);
        let dims = self.random.between(0, 4);
        self.out.operator(name, start, self.host - start, external, dims)
    }

    fn nested_dyn(&mut self, names: &[&str], body: impl FnOnce(&mut Self) -> io::Result<()>) -> io::Result<()> {
        // One type for all depths: the recursion would otherwise need a type of its own for each.
        let mut body = Some(body);
        let mut once = |job: &mut Self| body.take().map_or(Ok(()), |body| body(job));
        let body: &mut dyn FnMut(&mut Self) -> io::Result<()> = &mut once;
        self.nested(names, body)
    }

    fn python(&mut self, layer: u32) -> io::Result<()> {
        let start = self.host;
        self.pause(500, 3_000);
        self.out.python(layer, start, self.host - start)
    }

    /// A call of the runtime, the kernel that it launches, and the flow between them.
    fn launch(&mut self, shape: Shape, stream: usize) -> io::Result<()> {
        self.correlation += 1;
        let (start, correlation) = (self.host, self.correlation);
        self.pause(2_500, 6_000);
        let kernel = self.free[stream].max(start + 1_500) + self.random.between(700, 1_400);
        let duration = self.duration(shape);
        self.free[stream] = kernel + duration;
        let external = self.external;
        self.out.runtime(shape.call(), start, self.host - start, correlation, external)?;
        self.out.flow(correlation, start, kernel, STREAMS[stream])?;
        let name = shape.kernel(&mut self.random);
        let group = (self.plan.world_size, self.collective);
        self.out.kernel(shape, &name, kernel, duration, STREAMS[stream], correlation, external, group)
    }

    fn duration(&mut self, shape: Shape) -> u64 {
        if self.plan.has_short_kernels {
            return self.random.between(300, 3_000);
        }
        let (from, to) = shape.duration_ns();
        self.random.between(from, to)
    }

    /// The host waits for the device.
    fn synchronize(&mut self) -> io::Result<()> {
        self.correlation += 1;
        let start = self.host;
        self.host = self.free.iter().copied().fold(self.host, u64::max);
        self.pause(2_000, 9_000);
        self.out.runtime("cudaDeviceSynchronize", start, self.host - start, self.correlation, self.external)
    }
}
