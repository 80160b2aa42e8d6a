//! The breakdown of Kineto traces beside `HolisticTraceAnalysis` (HTA) 0.5.0: four ranks, plain and compressed. Every tool
//! runs as a process of its own, which measures itself.

use super::{Options, hta_tables};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::process::Command;
use std::time::Instant;
use taskd_core::launch::python::venv::VenvSpec;
use taskd_examples::program::Failure;
use taskd_examples::samples::Samples;
use taskd_pytorch::kineto::generate::{self, Plan};
use taskd_pytorch::kineto::{Mode, breakdown_of_directory};

static HTA: VenvSpec = VenvSpec {
    what: "HolisticTraceAnalysis",
    takes: "about 1 GB, once, about a minute",
    requirements: include_str!("../../python/bench_analysis/requirements-hta.txt"),
    modules: &["hta"],
    versions: &[(3, 13), (3, 12), (3, 11)],
    needs_bytes: 2_000_000_000, // 1 GB installed, plus pip's temporary files
    variable: "TASKD_PYTHON_HTA",
};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/python/bench_analysis/hta_tables.py");

/// Ranks, with one file each.
const RANKS: u32 = 4;

/// The figures of `--json`.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Figures {
    /// HTA's time divided by ours in the HTA mode, which yields the same tables: the smaller one of plain and compressed
    /// files, by wall time.
    hta_ratio: Option<f64>,
    /// The same by CPU time, which other programs on the machine disturb less.
    hta_cpu_ratio: Option<f64>,
    /// The ratio for our exact mode, by wall time.
    hta_exact_ratio: Option<f64>,
    /// Our largest memory in all runs, and HTA's in its largest process.
    peak_rss_mib: f64,
    hta_peak_rss_mib: Option<f64>,
    /// True if HTA's tables equal ours in all rounds: temporal breakdown, overlap, launches, queues, bandwidth of
    /// copies and annotations.
    hta_equal: Option<bool>,
    /// Number of warnings that HTA logged in all rounds. Those of the processes that read the files are not seen.
    hta_warnings: Option<usize>,
    /// Bytes of the four files, decompressed.
    bytes: u64,
    formats: Vec<Format>,
}

/// Figures of plain or of compressed files: medians of the rounds.
#[derive(Debug, Serialize)]
struct Format {
    format: &'static str,
    exact_wall_s: f64,
    exact_cpu_s: f64,
    hta_mode_wall_s: f64,
    hta_mode_cpu_s: f64,
    hta_wall_s: Option<f64>,
    hta_cpu_s: Option<f64>,
}

/// Cost and result of one run, as the process reports it.
#[derive(Debug, Deserialize)]
pub(crate) struct Run {
    pub(crate) wall_s: f64,
    cpu_s: f64,
    pub(crate) peak_kib: f64,
    #[serde(flatten)]
    pub(crate) tables: Value,
}

/// Costs of one tool over the rounds.
#[derive(Debug, Default)]
struct Costs {
    wall: Samples,
    cpu: Samples,
    peak_mib: Samples,
}

impl Costs {
    fn add(&mut self, run: &Run) {
        self.wall.push(run.wall_s);
        self.cpu.push(run.cpu_s);
        self.peak_mib.push(run.peak_kib / 1024.0);
    }
}

/// Generates the files, and runs all tools in turns.
pub(crate) fn measure(options: &Options) -> Result<Figures, Failure> {
    let python =
        if options.alone { None } else { Some(HTA.locate(&mut |line| println!("{line}"))?.python().to_owned()) };
    let parent = options.dir.clone().unwrap_or_else(std::env::temp_dir);
    let directory = tempfile::tempdir_in(parent)?;
    let (hta_equal, hta_warnings) = (python.is_some().then_some(true), python.is_some().then_some(0));
    let mut figures = Figures { hta_equal, hta_warnings, ..Figures::default() };
    for format in ["plain", "gzip"] {
        let files = directory.path().join(format);
        std::fs::create_dir(&files)?;
        figures.bytes = write_files(&files, options.mib << 20, format == "gzip")?;
    }
    println!("{RANKS} files, {} bytes together, {} rounds", figures.bytes, options.rounds);
    println!("{:<6} {:<14} {:>24} {:>24} {:>24}", "files", "tool", "wall s", "CPU s", "peak MiB");
    for format in ["plain", "gzip"] {
        let files = directory.path().join(format);
        let [mut exact, mut hta_mode, mut hta] = <[Costs; 3]>::default();
        for _ in 0..options.rounds {
            exact.add(&ourselves("exact", &files)?);
            let ours = ourselves("hta", &files)?;
            hta_mode.add(&ours);
            if let Some(python) = &python {
                let theirs = child(Command::new(python).arg(SCRIPT).arg(&files))?;
                hta.add(&theirs);
                if let Some(table) = hta_tables::difference(&ours.tables["ranks"], &theirs.tables) {
                    println!("HTA's table differs: {table}");
                    figures.hta_equal = Some(false);
                }
                let warnings = theirs.tables["warnings"].as_array().map_or(0, Vec::len);
                if warnings > 0 {
                    println!("HTA warned {warnings} times, first: {}", theirs.tables["warnings"][0]);
                }
                figures.hta_warnings = figures.hta_warnings.map(|count| count + warnings);
            }
        }
        for (tool, costs) in [("exact mode", &exact), ("HTA mode", &hta_mode), ("HTA 0.5.0", &hta)] {
            println!("{format:<6} {tool:<14} {:>24} {:>24} {:>24}", costs.wall, costs.cpu, costs.peak_mib);
        }
        figures.add(format, &exact, &hta_mode, &hta);
    }
    if let (Some(wall), Some(cpu), Some(equal)) = (figures.hta_ratio, figures.hta_cpu_ratio, figures.hta_equal) {
        let tables = if equal { "equal" } else { "different" };
        println!("HTA takes {wall:.0} times our wall time and {cpu:.0} times our CPU time; the tables are {tables}");
    }
    Ok(figures)
}

impl Figures {
    fn add(&mut self, format: &'static str, exact: &Costs, hta_mode: &Costs, hta: &Costs) {
        self.peak_rss_mib = self.peak_rss_mib.max(exact.peak_mib.max()).max(hta_mode.peak_mib.max());
        let has_hta = !hta.wall.is_empty();
        let lower = |old: Option<f64>, theirs: &Samples, ours: &Samples| {
            let ratio = theirs.median() / ours.median();
            has_hta.then(|| old.map_or(ratio, |old| old.min(ratio)))
        };
        self.hta_ratio = lower(self.hta_ratio, &hta.wall, &hta_mode.wall);
        self.hta_cpu_ratio = lower(self.hta_cpu_ratio, &hta.cpu, &hta_mode.cpu);
        self.hta_exact_ratio = lower(self.hta_exact_ratio, &hta.wall, &exact.wall);
        if has_hta {
            let peak = hta.peak_mib.max();
            self.hta_peak_rss_mib = Some(self.hta_peak_rss_mib.map_or(peak, |old| old.max(peak)));
        }
        self.formats.push(Format {
            format,
            exact_wall_s: exact.wall.median(),
            exact_cpu_s: exact.cpu.median(),
            hta_mode_wall_s: hta_mode.wall.median(),
            hta_mode_cpu_s: hta_mode.cpu.median(),
            hta_wall_s: has_hta.then(|| hta.wall.median()),
            hta_cpu_s: has_hta.then(|| hta.cpu.median()),
        });
    }
}

/// Writes the files of all ranks, two at a time, and returns the sum of their decompressed sizes.
fn write_files(directory: &Path, bytes: u64, is_compressed: bool) -> Result<u64, Failure> {
    let write = |rank: u32| -> io::Result<u64> {
        let plan = Plan { rank, world_size: RANKS, ..Plan::default() }.with_bytes(bytes);
        let path = directory.join(format!("rank{rank}.json{}", if is_compressed { ".gz" } else { "" }));
        let file = BufWriter::with_capacity(1 << 20, File::create(path)?);
        let mut counted = Counted { bytes: 0, out: file };
        if is_compressed {
            let mut through = Counted { bytes: 0, out: GzEncoder::new(counted, Compression::default()) };
            generate::write(&plan, &mut through)?;
            through.out.finish()?.out.flush()?;
            return Ok(through.bytes);
        }
        generate::write(&plan, &mut counted)?;
        Ok(counted.bytes)
    };
    let mut sum = 0;
    for pair in [[0, 1], [2, 3]] {
        let [one, other] = pair;
        let (one, other) = std::thread::scope(|scope| {
            let other = scope.spawn(|| write(other));
            (write(one), other.join())
        });
        sum += one? + other.map_err(|_| "a thread panicked")??;
    }
    Ok(sum)
}

/// Counts bytes on their way.
struct Counted<W> {
    bytes: u64,
    out: W,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.out.write(bytes)?;
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn ourselves(mode: &str, files: &Path) -> Result<Run, Failure> {
    child(Command::new(std::env::current_exe()?).args(["--once", mode]).arg(files))
}

/// Runs a process to its end, and parses the last line of its output.
pub(crate) fn child(command: &mut Command) -> Result<Run, Failure> {
    let output = command.output()?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        let last = reason.lines().last().unwrap_or_default();
        return Err(format!("{:?} ended with {}: {last}", command.get_program(), output.status).into());
    }
    let text = String::from_utf8(output.stdout)?;
    Ok(serde_json::from_str(text.lines().last().unwrap_or_default())?)
}

/// Analyzes the files in a directory, and prints the tables and the cost.
pub(crate) fn once(mode: &str, directory: &Path) -> Result<(), Failure> {
    let mode = if mode == "hta" { Mode::Hta } else { Mode::Exact };
    let began = Instant::now();
    let breakdown = breakdown_of_directory(directory, mode)?;
    let wall_s = began.elapsed().as_secs_f64();
    let (cpu_s, peak_kib) = usage()?;
    let tables = hta_tables::of(&breakdown);
    println!("{}", serde_json::json!({"wall_s": wall_s, "cpu_s": cpu_s, "peak_kib": peak_kib, "ranks": tables}));
    Ok(())
}

/// Returns the CPU seconds and the peak memory in KiB of this process.
pub(crate) fn usage() -> Result<(f64, u64), Failure> {
    let schedule = std::fs::read_to_string("/proc/self/stat")?;
    // proc_pid_stat(5): user and system time are the 14th and 15th field, in ticks of which Linux reports 100 per second.
    let fields: Vec<&str> = schedule.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |index: usize| fields.get(index).and_then(|field| field.parse::<f64>().ok()).unwrap_or(f64::NAN);
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix("kB")?.trim().parse().ok());
    Ok(((ticks(11) + ticks(12)) / 100.0, peak.ok_or("no VmHWM in /proc/self/status")?))
}
