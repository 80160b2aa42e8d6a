//! Managers, voters and agents of a job over a simulated network, in simulated time, with faults that follow from a seed.
//! All of taskd's own code is real: agents, sessions, managers, the runtime, the embedded engine with its store.
//!
//! ```text
//! cargo test -p taskd-cluster --test simulation -- --seeds 1000 --removals 60
//! ```
//! `--first F` sets the first seed, `--without CHECK` removes a check, `--removals N` sets the most seeds that the removal
//! of each check may take to be noticed, `--jobs N` the threads, `--notes` prints what happened, `--log` prints what the
//! processes log.

mod cluster;
mod directed;
mod engine;
mod faults;
mod launcher;
mod ledger;
mod network;
mod orders;
mod process;
mod run;
mod unreliable;

use ledger::Property;
use run::Shown;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use taskd_cluster::security::{JobToken, Security, SecurityContext};
use taskd_cluster::{Check, Checks};

/// Seeds of a run without arguments.
const SEEDS: u64 = 8;
/// Most seeds after which the removal of a check is noticed: of each check in the soak run, of none in a run without
/// arguments, for its time.
const REMOVALS: u64 = 0;

#[derive(Clone)]
struct Options {
    first: u64,
    seeds: u64,
    removals: u64,
    without: Option<Check>,
    jobs: usize,
    notes: bool,
    log: bool,
    json: bool,
}

fn options() -> Options {
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let mut options = Options {
        first: 0,
        seeds: SEEDS,
        removals: REMOVALS,
        without: None,
        jobs,
        notes: false,
        log: false,
        json: false,
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number =
            || args.next().and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{arg} NUMBER"));
        match &*arg {
            "--first" => options.first = number(),
            "--seeds" => options.seeds = number(),
            "--removals" => options.removals = number(),
            "--jobs" => options.jobs = usize::try_from(number()).expect("a number of threads"),
            "--notes" => options.notes = true,
            "--log" => options.log = true,
            "--json" => options.json = true,
            "--without" => {
                let name = args.next().unwrap_or_default();
                let known = Check::ALL.into_iter().find(|check| format!("{check:?}").eq_ignore_ascii_case(&name));
                options.without = Some(known.unwrap_or_else(|| panic!("--without one of {:?}", Check::ALL)));
            }
            _ => {} // of a test runner
        }
    }
    options
}

fn security() -> SecurityContext {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let token = JobToken::new("0123456789abcdef0123456789abcdef").expect("long enough");
    runtime.block_on(Security::Token(token).open("host")).expect("no files")
}

/// Simulates seeds until `enough` returns true for one, on several threads. Returns what they showed, by seed.
fn simulate_all(options: &Options, without: Option<Check>, enough: impl Fn(&Shown) -> bool + Sync) -> Vec<Shown> {
    let security = security();
    let checks = without.map_or_else(Checks::default, Checks::without);
    let seeds = if without.is_some() && options.without.is_none() { options.removals } else { options.seeds };
    let (next, stop) = (AtomicU64::new(0), std::sync::atomic::AtomicBool::new(false));
    let all = Mutex::new(Vec::new());
    let work = || {
        while !stop.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= seeds {
                return;
            }
            let begun = std::time::Instant::now();
            let shown = run::simulate(options.first + number, checks, &security);
            print(options, without, &shown, begun.elapsed());
            stop.fetch_or(enough(&shown), Ordering::Relaxed);
            all.lock().expect("no panic").push(shown);
        }
    };
    std::thread::scope(|scope| {
        (1..options.jobs.max(1)).for_each(|_| drop(scope.spawn(work)));
        work();
    });
    let mut all = all.into_inner().expect("no panic");
    all.sort_by_key(|shown| shown.seed);
    all
}

/// Returns true if hosts have done what they must not: a job that only heals slowly does not count.
fn is_unsafe(shown: &Shown) -> bool {
    matches!(shown.violation, Some((Property::Job, _)))
}

fn print(options: &Options, without: Option<Check>, shown: &Shown, took: Duration) {
    if options.json {
        return;
    }
    if options.notes || (shown.violation.is_some() && without.is_none()) {
        shown.notes.iter().for_each(|note| println!("{note}"));
    }
    let what = without.map_or_else(String::new, |check| format!("without {check:?}, "));
    println!(
        "{what}seed {}: {:.1} s simulated in {:.1} s, healed in {:.1} s, manager replaced in {:.1?}, {:?} {}",
        shown.seed,
        shown.simulated.as_secs_f64(),
        took.as_secs_f64(),
        shown.healed.as_secs_f64(),
        shown.replaced,
        shown.counts,
        shown.violation.as_ref().map_or(String::new(), |(property, what)| format!("{property:?}: {what}"))
    );
}

/// Prints the sums of all seeds as JSON.
fn summarise(all: &[Shown], noticed: &[(Check, Option<u64>)]) {
    let count = |what: &str| all.iter().filter_map(|shown| shown.counts.get(what)).sum::<u64>();
    let violations: Vec<_> = all.iter().filter_map(|shown| Some((shown.seed, &shown.violation.as_ref()?.1))).collect();
    let longest = |times: &mut dyn Iterator<Item = Duration>| times.max().unwrap_or_default().as_secs_f64();
    let noticed: std::collections::BTreeMap<String, Option<u64>> =
        noticed.iter().map(|(check, seeds)| (format!("{check:?}"), *seeds)).collect();
    let summary = serde_json::json!({
        "seeds": all.len(),
        "violations": violations,
        "simulated_s": all.iter().map(|shown| shown.simulated.as_secs_f64()).sum::<f64>(),
        "healed_max_s": longest(&mut all.iter().map(|shown| shown.healed)),
        "manager_replaced_max_s": longest(&mut all.iter().filter_map(|shown| shown.replaced)),
        "faults": count("faults"),
        "hosts_lost": count("hosts_lost"),
        "ranks_killed": count("ranks_killed"),
        "epochs": count("epochs"),
        "ranks_started": count("starts"),
        "runtime_gave_up": count("gave_up"),
        "removed_check_noticed_after_seeds": noticed,
    });
    println!("{summary}");
}

fn main() -> ExitCode {
    let options = options();
    run::catch_panics();
    if options.log {
        let targets = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).without_time().with_ansi(false);
        targets.init();
    }
    let all = simulate_all(&options, options.without, |_| false);
    let mut noticed = Vec::new();
    for check in Check::ALL.into_iter().filter(|_| options.without.is_none() && options.removals > 0) {
        let shown = simulate_all(&options, Some(check), is_unsafe);
        let seeds = shown.iter().any(is_unsafe).then_some(shown.len() as u64);
        noticed.push((check, seeds));
    }
    if options.json {
        summarise(&all, &noticed);
    }
    let violated = all.iter().filter(|shown| shown.violation.is_some()).count();
    let unnoticed: Vec<_> = noticed.iter().filter(|(_, seeds)| seeds.is_none()).map(|(check, _)| check).collect();
    if !unnoticed.is_empty() {
        eprintln!("the removal of these checks was not noticed: {unnoticed:?}");
    }
    let fails = (violated > 0 && options.without.is_none()) || !unnoticed.is_empty();
    if fails { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
