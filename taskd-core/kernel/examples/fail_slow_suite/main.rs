//! Simulation suite of the fail-slow engine: false blames, misses and delays over thousands of simulated jobs, beside
//! three other rules on the same seeds.
//!
//! `cargo run --release -p taskd-kernel --example fail_slow_suite -- [--jobs N] [--seed S] [--json]`
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::disallowed_methods, clippy::disallowed_macros)] // a program, not a part of the package
#![allow(clippy::cast_possible_truncation)] // sizes of simulated jobs are small

mod bound;
mod rivals;
mod score;
mod sim;

use score::{Figures, Result};
use std::collections::BTreeMap;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let number = |name: &str, otherwise: u64| {
        let at = args.iter().position(|arg| arg == name);
        at.and_then(|at| args.get(at + 1)?.parse().ok()).unwrap_or(otherwise)
    };
    let (jobs, seed, verbose) =
        (number("--jobs", 12_000), number("--seed", 1_000_000), args.iter().any(|a| a == "--verbose"));
    let rivals_on = jobs / 20;
    let mut field = BTreeMap::new();
    let mut faults = BTreeMap::new();
    let mut by_kind: BTreeMap<String, Figures> = BTreeMap::new();
    let mut by_size: BTreeMap<u32, Figures> = BTreeMap::new();
    let mut same: [BTreeMap<&'static str, Figures>; 2] = [BTreeMap::new(), BTreeMap::new()];
    for at in 0..jobs + jobs / 4 {
        let in_the_field = at < jobs;
        let with_rivals = at < rivals_on || (jobs..jobs + rivals_on).contains(&at);
        let result = score::run(score::job(seed + at, in_the_field, u32::MAX), seed + at, with_rivals);
        add(if in_the_field { &mut field } else { &mut faults }, &result);
        if with_rivals {
            add(&mut same[usize::from(!in_the_field)], &result);
        }
        let ours = &result.outcomes["fail-slow"];
        by_kind.entry(format!("{:?}", result.kind)).or_default().add(&result, ours, false);
        if result.has_fault && result.kind != sim::Kind::SlowCheckpoint {
            by_size.entry((result.excess.mul_add(10.0, 0.0) as u32) * 10).or_default().add(&result, ours, false);
        }
        if verbose
            && (!ours.false_blames.is_empty()
                || (result.has_fault
                    && ours.delay.is_none_or(|d| d > if result.kind == sim::Kind::SlowCheckpoint { 150 } else { 30 })))
        {
            println!("seed {} {:?} +{:.0} %: {ours:?}", result.seed, result.kind, result.excess * 100.0);
        }
    }
    let bounds = if args.iter().any(|a| a == "--no-bound") { Vec::new() } else { bound::measure(seed) };
    if args.iter().any(|arg| arg == "--json") {
        let json = serde_json::json!({
            "seed": seed, "field": rows(&field), "faults": rows(&faults), "by_kind": rows(&by_kind), "by_excess_percent": rows(&by_size),
            "same_seeds_field": rows(&same[0]), "same_seeds_faults": rows(&same[1]),
            "bound": bounds.iter().map(bound::Bound::json).collect::<Vec<_>>(),
        });
        println!("{json:#}");
        return;
    }
    print("Jobs with the shares of the field", &field);
    print("Jobs with a faulty component", &faults);
    print("All detectors, same seeds, shares of the field", &same[0]);
    print("All detectors, same seeds, faulty component (rules without causes: slow ranks and hosts only)", &same[1]);
    print("By cause", &by_kind);
    println!("\nBy excess: median and 99th percentile of the delay, steps");
    for (percent, figures) in &by_size {
        println!(
            "{percent:>5} %  faults {:>5}  missed {:>3}  p50 {:?}  p99 {:?}  max {:?}",
            figures.faults,
            figures.missed,
            figures.delay(0.5),
            figures.delay(0.99),
            figures.delay(1.0)
        );
    }
    println!("\nDelay beside the bound ln(ARL)/KL");
    bounds.iter().for_each(|bound| println!("{bound}"));
}

fn add(all: &mut BTreeMap<&'static str, Figures>, result: &Result) {
    for (name, outcome) in &result.outcomes {
        all.entry(*name).or_default().add(result, outcome, *name != "fail-slow");
    }
}

fn rows<K: ToString + Ord>(all: &BTreeMap<K, Figures>) -> serde_json::Value {
    let row = |figures: &Figures| {
        serde_json::json!({
            "jobs": figures.jobs, "jobs_with_false_blame": figures.jobs_with_false_blame, "faults": figures.faults,
            "missed": figures.missed, "partial": figures.partial,
            "delay_p50": figures.delay(0.5), "delay_p99": figures.delay(0.99),
        })
    };
    all.iter().map(|(name, figures)| (name.to_string(), row(figures))).collect::<serde_json::Map<_, _>>().into()
}

fn print<K: ToString>(title: &str, all: &BTreeMap<K, Figures>) {
    println!("\n{title}");
    println!(
        "{:<20} {:>7} {:>12} {:>8} {:>8} {:>8} {:>7} {:>7}",
        "", "jobs", "false blames", "faults", "missed", "partial", "p50", "p99"
    );
    for (name, figures) in all {
        let delay = |share| figures.delay(share).map_or("-".to_owned(), |delay| delay.to_string());
        println!(
            "{:<20} {:>7} {:>12} {:>8} {:>8} {:>8} {:>7} {:>7}",
            name.to_string(),
            figures.jobs,
            figures.jobs_with_false_blame,
            figures.faults,
            figures.missed,
            figures.partial,
            delay(0.5),
            delay(0.99)
        );
    }
}
