//! The table of all ranks from Ascend profiles beside `msprof-analyze` 26.2: each tool is a process of its own, from its
//! start to the table.

use super::Options;
use crate::kineto::{Run, child, usage};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;
use taskd_core::analysis::model::GroupRole;
use taskd_core::analysis::{Settings, analyze};
use taskd_core::launch::python::venv::VenvSpec;
use taskd_examples::program::Failure;
use taskd_examples::samples::Samples;
use taskd_hw_ascend::profiler;

static MSPROF: VenvSpec = VenvSpec {
    what: "msprof-analyze",
    takes: "about 500 MB, once, about a minute",
    requirements: include_str!("../../python/bench_analysis/requirements-msprof.txt"),
    modules: &["msprof_analyze"],
    versions: &[(3, 13), (3, 12), (3, 11)],
    needs_bytes: 1_000_000_000, // 500 MB installed, plus pip's temporary files
    variable: "TASKD_PYTHON_MSPROF",
};

/// The command line of the other tool.
const PROGRAM: &str = "import sys; from msprof_analyze.cli.entrance import msprof_analyze_cli; sys.argv[0] = 'msprof-analyze'; \
                       msprof_analyze_cli()";

/// Ranks: two pipeline stages of tensor-parallel pairs.
const RANKS: u32 = 4;
const STEPS: u32 = 10;
/// Kernels and collectives of a rank in a step.
const KERNELS: u32 = 2000;
const COLLECTIVES: u32 = 200;
const COLUMNS: [&str; 9] = [
    "Computing",
    "Communication(Not Overlapped)",
    "Overlapped",
    "Communication",
    "Free",
    "Stage",
    "Bubble",
    "Communication(Not Overlapped and Exclude Receive)",
    "Preparing",
];

/// The figures of `--json`.
#[derive(Debug, Serialize)]
pub(crate) struct Figures {
    /// The time of msprof-analyze divided by ours, elapsed. Ours includes all figures of the report.
    msprof_ratio: Option<f64>,
    /// True if the table of all ranks and stages equals that of msprof-analyze.
    msprof_equal: Option<bool>,
    ascend_wall_s: f64,
    ascend_peak_mib: f64,
}

/// Writes profiles, and runs both tools in turns.
pub(crate) fn measure(options: &Options) -> Result<Figures, Failure> {
    let python =
        if options.alone { None } else { Some(MSPROF.locate(&mut |line| println!("{line}"))?.python().to_owned()) };
    let directory = tempfile::tempdir_in(options.dir.clone().unwrap_or_else(std::env::temp_dir))?;
    let profiles = directory.path().join("profiles");
    for rank in 0..RANKS {
        write_profile(&profiles, rank)?;
    }
    let [mut ours, mut peak, mut theirs] = <[Samples; 3]>::default();
    let mut equal = python.is_some().then_some(true);
    for round in 0..options.rounds {
        let run = child(Command::new(std::env::current_exe()?).args(["--once", "msprof"]).arg(&profiles))?;
        ours.push(run.wall_s);
        peak.push(run.peak_kib / 1024.0);
        let Some(python) = &python else { continue };
        let out = directory.path().join(format!("out-{round}"));
        let began = Instant::now();
        let done = Command::new(python)
            .args(["-c", PROGRAM, "cluster", "-m", "all", "-d"])
            .arg(&profiles)
            .arg("-o")
            .arg(&out)
            .output()?;
        theirs.push(began.elapsed().as_secs_f64());
        let table =
            fs::read_to_string(out.join("cluster_analysis_output/cluster_step_trace_time.csv")).map_err(|error| {
                format!("msprof-analyze wrote no table ({error}): {}", String::from_utf8_lossy(&done.stderr))
            })?;
        equal = equal.map(|equal| equal && rows_of(&table) == rows_of_run(&run));
    }
    println!("Ascend profiles, {RANKS} ranks, {STEPS} steps: ours {ours} s, {peak} MiB; msprof-analyze {theirs} s");
    let msprof_ratio = python.is_some().then(|| theirs.median() / ours.median());
    if let (Some(ratio), Some(equal)) = (msprof_ratio, equal) {
        let tables = if equal { "equal" } else { "different" };
        println!("msprof-analyze takes {ratio:.0} times our time; the tables are {tables}");
    }
    Ok(Figures { msprof_ratio, msprof_equal: equal, ascend_wall_s: ours.median(), ascend_peak_mib: peak.max() })
}

/// Analyzes the profiles in a directory, and prints the table and the cost.
pub(crate) fn once(directory: &Path) -> Result<(), Failure> {
    let began = Instant::now();
    let trace = profiler::read(directory)?;
    let analysis = analyze(&trace, &Settings::default());
    let (mut rows, mut stages) = (BTreeMap::new(), Vec::new());
    for found in profiler::find(directory)?.0 {
        let path = found.path.join("ASCEND_PROFILER_OUTPUT/step_trace_time.csv");
        rows.insert(found.rank, profiler::read_step_trace(&path)?.1);
    }
    // The stages of msprof-analyze: ranks that share a collective group.
    for group in trace.ranks.values().flat_map(|rank| &rank.groups).filter(|group| group.role == GroupRole::Tensor) {
        if !stages.contains(&group.members) {
            stages.push(group.members.clone());
        }
    }
    let table = profiler::cluster_step_trace(&rows, &stages);
    let wall_s = began.elapsed().as_secs_f64();
    let (cpu_s, peak_kib) = usage()?;
    let table: Vec<Value> = table.iter().map(|row| json!([row.step, row.is_stage, row.ranks, row.values])).collect();
    println!(
        "{}",
        json!({
            "wall_s": wall_s, "cpu_s": cpu_s, "peak_kib": peak_kib, "table": table, "steps": analysis.steps.len(),
        })
    );
    Ok(())
}

/// Rows by step and ranks: the values as texts, so that equal means the same digits.
type Rows = BTreeMap<(String, String), Vec<String>>;

fn rows_of_run(run: &Run) -> Rows {
    let rows = run.tables["table"].as_array().cloned().unwrap_or_default();
    let numbers =
        |list: &Value| -> Vec<f64> { list.as_array().into_iter().flatten().filter_map(Value::as_f64).collect() };
    let row = |row: &Value| {
        let ranks: Vec<String> = numbers(&row[2]).iter().map(f64::to_string).collect();
        let values = numbers(&row[3]).iter().map(f64::to_string).collect();
        ((row[0].as_str().unwrap_or_default().to_owned(), ranks.join(" ")), values)
    };
    rows.iter().map(row).collect()
}

/// Parses the other tool's table: `step,type,index,values...`, where the index of a stage is `"(0, 1)"`.
fn rows_of(table: &str) -> Rows {
    let row = |line: &str| {
        let (head, values) = match line.split_once('"') {
            Some((head, rest)) => rest.split_once("\",").map(|(ranks, values)| (format!("{head}{ranks}"), values))?,
            None => {
                let at = line.match_indices(',').nth(2)?.0;
                (line[..at].to_owned(), &line[at + 1..])
            }
        };
        let mut parts = head.splitn(3, ',');
        let (step, _, ranks) = (parts.next()?, parts.next()?, parts.next()?);
        let ranks: Vec<&str> = ranks.split(|c: char| !c.is_ascii_digit()).filter(|part| !part.is_empty()).collect();
        let values: Option<Vec<String>> =
            values.split(',').map(|value| Some(value.trim().parse::<f64>().ok()?.to_string())).collect();
        Some(((step.to_owned(), ranks.join(" ")), values?))
    };
    table.lines().skip(1).filter_map(row).collect()
}

/// Writes the profile of one rank, as `torch_npu` writes it.
fn write_profile(root: &Path, rank: u32) -> Result<(), Failure> {
    let dir = root.join(format!("node-1_{}_2026010100000000{rank}_ascend_pt", 1000 + rank));
    let output = dir.join("ASCEND_PROFILER_OUTPUT");
    fs::create_dir_all(&output)?;
    fs::write(dir.join(format!("profiler_info_{rank}.json")), "{}")?;
    let (tensor, pipeline) = (format!("tp{}", rank / 2), format!("pp{}", rank % 2));
    let (pair, chain) = ([rank / 2 * 2, rank / 2 * 2 + 1], [rank % 2, rank % 2 + 2]);
    let groups = json!({"parallel_group_info": {
        &tensor: {"group_name": "tp", "group_rank": rank % 2, "global_ranks": pair},
        &pipeline: {"group_name": "pp", "group_rank": rank / 2, "global_ranks": chain},
    }});
    fs::write(dir.join("profiler_metadata.json"), groups.to_string())?;
    let mut random = Random(u64::from(rank) + 1);
    let mut times = format!("Device_id,Step,{}\n", COLUMNS.join(","));
    let mut kernels =
        "Step Id,Device_id,Model ID,Task ID,Stream ID,Name,Type,Accelerator Core,Start Time(us),Duration(us)\n"
            .to_owned();
    let (mut operators, mut links) = (serde_json::Map::new(), serde_json::Map::new());
    for step in 1..=STEPS {
        let values: Vec<String> = COLUMNS.map(|_| format!("{:.3}", random.next(1000.0))).to_vec();
        times += &format!("{rank},{step},{}\n", values.join(","));
        let began = 1_718_000_000_000_000_u64 + u64::from(step) * 100_000;
        for kernel in 0..KERNELS {
            let (start, length) = (began + u64::from(kernel) * 40, random.next(30.0));
            kernels += &format!(
                "{step},{rank},4294967295,{kernel},2,aclnnMatmul_{},MatMul,AI_CORE,{start}.125\t,{length:.3}\n",
                kernel % 50
            );
        }
        let (mut collectives, mut sends) = (serde_json::Map::new(), serde_json::Map::new());
        for number in 0..COLLECTIVES {
            let (name, group, list) = match number % 4 {
                0 if rank < 2 => ("hcom_send__1", &pipeline, &mut sends),
                0 => ("hcom_receive__1", &pipeline, &mut sends),
                _ => ("hcom_allReduce__7", &tensor, &mut collectives),
            };
            let start = began + u64::from(number) * 400;
            list.insert(format!("{name}_{number}_1@{}", profiler::group_hash(group)), json!({
                "Communication Time Info": {
                    "Start Timestamp(us)": start, "Elapse Time(ms)": 0.1, "Transit Time(ms)": random.next(0.05),
                    "Wait Time(ms)": random.next(0.05), "Synchronization Time(ms)": 0.0, "Idle Time(ms)": 0.0,
                    "Wait Time Ratio": 0.5, "Synchronization Time Ratio": 0.0,
                },
                "Communication Bandwidth Info": {"HCCS": {
                    "Transit Size(MB)": random.next(5.0), "Transit Time(ms)": random.next(0.05), "Bandwidth(GB/s)": 20.0,
                    "Large Packet Ratio": 1.0, "Size Distribution": {},
                }},
            }));
        }
        operators.insert(format!("step{step}"), json!({"collective": collectives, "p2p": sends}));
        let local = rank % 2;
        let link = |transport: &str, size: f64| {
            json!({
                "Transport Type": transport, "Transit Size(MB)": size, "Transit Time(ms)": 0.05, "Bandwidth(GB/s)": 1.0, "Op Name": "",
            })
        };
        let own = json!({format!("{local}-{local}"): link("LOCAL", 1.0), format!("{local}-{}", 1 - local): link("HCCS", 2.0)});
        let total = json!({format!("allreduce-total@{}", profiler::group_hash(&tensor)): own});
        links.insert(format!("step{step}"), json!({"collective": total, "p2p": {}}));
    }
    fs::write(output.join("step_trace_time.csv"), times)?;
    fs::write(output.join("kernel_details.csv"), kernels)?;
    fs::write(output.join("communication.json"), Value::Object(operators).to_string())?;
    fs::write(output.join("communication_matrix.json"), Value::Object(links).to_string())?;
    Ok(())
}

/// A sequence of numbers by seed.
struct Random(u64);

impl Random {
    /// Returns a number from 0 to `below`.
    fn next(&mut self, below: f64) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        #[allow(clippy::cast_precision_loss, reason = "31 bits are exact")]
        let share = (self.0 >> 33) as f64 / (1_u64 << 31) as f64;
        share * below
    }
}
