//! One page that shows what all ranks of a run did, which component is slow or stuck, and what that costs.
//!
//! `cargo run --release -p taskd-report --example cluster_report -- DIR` reads the traces of any known kind below DIR: a
//! trace store of taskd, files of PyTorch's profiler, profiles of `torch_npu` and MindSpore, dumps of PyTorch's flight
//! recorder. It writes one HTML file that needs no network, and prints a summary. `--compare` shows what changed against
//! another run, `--live` serves the page while the run goes on, `--index` writes a page for each run in DIR and an index of
//! them, `--json` prints all figures, `--svg VIEW` writes one view as an image. `--operators` lists which kernels each operator
//! of PyTorch launches. `--hta` and `--reference` show what the rules of other tools find in the same traces.

use clap::Parser;
use serde::Serialize;
use std::cmp::Reverse;
use std::fs;
use std::io::{IsTerminal, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use taskd_core::analysis::report::{self, RunEntry, View};
use taskd_core::analysis::{ReferenceRules, compare, comparison::Comparison, document::Analysis};
use taskd_core::detect::reference::slow_node::cluster_json;
use taskd_core::live::ReadError;
use taskd_core::runtime::exit_code;
use taskd_examples::live;
use taskd_examples::program::{self, Failure};
use taskd_pytorch::kineto::Operators;
use taskd_report::launches;
use taskd_report::open::{OtherRules, Run};

/// Ranks that are listed by the slow-rank rule of msprof-analyze.
const VOTES_LISTED: usize = 8;

/// Writes a page about a run, from the traces of its ranks.
#[derive(Debug, Parser)]
struct Options {
    /// Directory with the traces.
    dir: PathBuf,
    /// File of the page; with --index, the directory of all pages.
    #[arg(long, default_value = "cluster_report.html")]
    out: PathBuf,
    /// Directory with the traces of an earlier run, to show what changed.
    #[arg(long, value_name = "DIR", conflicts_with = "index")]
    compare: Option<PathBuf>,
    /// Writes a page for each directory in DIR that has traces, and an index of them.
    #[arg(long)]
    index: bool,
    /// Prints all figures as one line of JSON at the end.
    #[arg(long)]
    json: bool,
    /// Also writes one view as an SVG image beside the page; can be given several times.
    #[arg(long, value_name = "VIEW", value_parser = view, conflicts_with_all = ["index", "live"])]
    svg: Vec<View>,
    /// Also shows the kernels of PyTorch's traces by the rules of HolisticTraceAnalysis, and where its figures differ.
    #[arg(long)]
    hta: bool,
    /// Also prints the sequences of kernels that the operators of PyTorch launch most often, and how long these wait.
    #[arg(long, conflicts_with_all = ["index", "live"])]
    operators: bool,
    /// Also prints what MindCluster's slow-node rule and msprof-analyze's slow-rank rule find.
    #[arg(long, conflicts_with_all = ["index", "live"])]
    reference: bool,
    /// Serves the page on this host alone while the run goes on, instead of writing a file; Ctrl-C ends it.
    #[arg(long, conflicts_with_all = ["index", "compare", "json"])]
    live: bool,
}

impl Options {
    const fn other_rules(&self) -> OtherRules {
        OtherRules { hta: self.hta, operators: self.operators, reference: self.reference }
    }
}

/// Returns the view of this name.
fn view(name: &str) -> Result<View, String> {
    let known = View::ALL.iter().find(|(_, known)| *known == name);
    known.map(|(view, _)| *view).ok_or_else(|| format!("the views are {}", View::ALL.map(|(_, name)| name).join(", ")))
}

/// What `--json` prints.
#[derive(Serialize)]
struct Figures {
    /// The page.
    page: PathBuf,
    /// The verdict about a hang, if the run has dumps of the flight recorder.
    hang: Option<String>,
    analysis: Analysis,
    comparison: Option<Comparison>,
    /// What the rules of the reference tools find, with `--reference`.
    reference: Option<ReferenceRules>,
    /// The sequences of kernels by operator, with `--operators`.
    operators: Option<Operators>,
}

fn main() -> ExitCode {
    let options: Options = program::options();
    if options.live {
        return program::run("cluster_report", follow(options.dir.clone(), options.other_rules()));
    }
    let written = if options.index { index(&options) } else { page(&options) };
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("cluster_report: {why}");
            exit_code::FAILED.into()
        }
    }
}

/// Serves the page of a run until Ctrl-C.
async fn follow(dir: PathBuf, other: OtherRules) -> Result<(), Failure> {
    let read = move || -> Result<Analysis, ReadError> { Ok(Run::open(&dir, other)?.analysis) };
    let server = live::open(read).await?;
    tokio::signal::ctrl_c().await?;
    server.shutdown().await;
    Ok(())
}

fn page(options: &Options) -> Result<(), String> {
    let Run { analysis, hang, reference, operators } = Run::open(&options.dir, options.other_rules())?;
    let before = options.compare.as_deref().map(|dir| Run::open(dir, OtherRules::default())).transpose()?;
    let comparison = before.map(|before| compare(&before.analysis, &analysis));
    write(&options.out, &report::html(&analysis))?;
    print!("{}", report::terminal(&analysis, stdout().is_terminal()));
    for line in hang.iter().flat_map(|hang| hang.evidence.iter().chain(&hang.notes)) {
        println!("  {line}");
    }
    if let Some(comparison) = &comparison {
        let path = options.out.with_extension("comparison.html");
        write(&path, &report::comparison_html(comparison))?;
        println!("\ncompared      {}\ncomparison    {}", comparison.sentence, path.display());
    }
    if options.hta {
        launches::lines(&analysis.kernels).iter().for_each(|line| println!("{line}"));
    }
    for line in operators.iter().flat_map(launches::operator_lines) {
        println!("{line}");
    }
    for line in &analysis.kernels.differences {
        println!("HTA           {line}");
    }
    if let Some(rules) = &reference {
        print_reference(rules)?;
    }
    println!("\npage          {}", options.out.display());
    for (view, name) in View::ALL.into_iter().filter(|(view, _)| options.svg.contains(view)) {
        let path = options.out.with_extension(format!("{name}.svg"));
        write(&path, &report::svg(&analysis, view))?;
        println!("image         {}", path.display());
    }
    if options.json {
        let hang = hang.map(|hang| hang.to_string());
        print_json(&Figures { page: options.out.clone(), hang, analysis, comparison, reference, operators });
    }
    Ok(())
}

/// Prints what the rules of the reference tools find.
fn print_reference(rules: &ReferenceRules) -> Result<(), String> {
    let json = cluster_json(&rules.slow_node).map_err(|error| error.to_string())?;
    println!("slow node     by MindCluster's rule: {json}");
    let mut votes: Vec<(u32, u64)> = rules.slow_rank_votes.iter().map(|(rank, votes)| (*rank, *votes)).collect();
    votes.sort_by_key(|(rank, votes)| (Reverse(*votes), *rank));
    let rest = votes.len().saturating_sub(VOTES_LISTED);
    let listed: Vec<String> =
        votes.iter().take(VOTES_LISTED).map(|(rank, votes)| format!("rank {rank} in {votes}")).collect();
    let late = match rest {
        _ if listed.is_empty() => "no rank".to_owned(),
        0 => listed.join(", "),
        _ => format!("{} and {rest} more ranks", listed.join(", ")),
    };
    println!("slow rank     by msprof-analyze's rule: of {} collectives, late: {late}", rules.collectives);
    Ok(())
}

/// Writes a page for each run in the directory, and the index.
fn index(options: &Options) -> Result<(), String> {
    let failed = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    let mut dirs: Vec<PathBuf> = fs::read_dir(&options.dir)
        .map_err(|error| failed(&options.dir, error))?
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
        .collect();
    dirs.sort();
    fs::create_dir_all(&options.out).map_err(|error| failed(&options.out, error))?;
    let mut runs = Vec::new();
    for dir in dirs {
        let analysis = match Run::open(&dir, options.other_rules()) {
            Ok(run) => run.analysis,
            Err(why) => {
                println!("left out      {why}");
                continue;
            }
        };
        let name = format!("{}.html", analysis.title);
        write(&options.out.join(&name), &report::html(&analysis))?;
        println!("{:<13} {}", analysis.title, analysis.verdict.sentence);
        runs.push(RunEntry::new(&name, &analysis));
    }
    let path = options.out.join("index.html");
    write(&path, &report::index(&runs))?;
    println!("\nindex         {}", path.display());
    if options.json {
        print_json(&runs.len());
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("{} cannot be written: {error}", path.display()))
}

fn print_json(figures: &impl Serialize) {
    match serde_json::to_string(figures) {
        Ok(line) => println!("{line}"),
        Err(error) => println!("{{\"error\":\"{error}\"}}"),
    }
}
