//! The cost of a job's first minute while its standbys start: they import torch and run a step of their own, at low
//! priority, on cores that ranks keep busy.
//!
//! The program is `bench_ddp.py` of `examples/soak/python`, with the same work in every run.

use super::python::Script;
use serde::{Deserialize, Serialize};
use std::path::Path;
use taskd_core::launch::python::Standbys;
use taskd_examples::overhead::Overhead;
use taskd_examples::program::Failure;
use taskd_examples::samples::Samples;

/// Slowdown of steps with standbys.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figures {
    /// The first steps of a job, some forty seconds, while standbys start.
    standbys_first_steps: Overhead,
    /// As many steps after these, when all standbys wait.
    standbys_later_steps: Overhead,
}

/// The output of the program: the time of its first steps, and of as many after these, in seconds.
#[derive(Debug, Deserialize)]
struct Halves {
    first_s: f64,
    later_s: f64,
}

/// Measures jobs with standbys and without, in turns, prints a table, and returns the figures.
pub(crate) async fn measure(python: &Path, quick: bool) -> Result<Figures, Failure> {
    let (pairs, steps) = if quick { (1, 10) } else { (5, 800) };
    println!(
        "\na DDP training of two ranks (gloo) that keeps two cores busy, from its first step on, in turns: seconds, median (least to most)\n"
    );
    println!("| standbys | the first {} steps | the next {0} |\n|---|---|---|", steps / 2);
    let args = ["--what", "halves", "--multiplications", "60", "--steps", &steps.to_string()].map(str::to_owned);
    let (mut first, mut later) = ([const { Vec::new() }; 2], [const { Vec::new() }; 2]);
    for pair in 0..pairs {
        for turn in [pair % 2, 1 - pair % 2] {
            let standbys = [Standbys::none(), Standbys::template()][turn].clone();
            let script = Script::new(python, "bench_ddp.py", &args, 2).standbys(standbys);
            let (halves, _) = script.run::<Halves>().await?;
            first[turn].push(halves.first_s);
            later[turn].push(halves.later_s);
        }
    }
    for (turn, name) in ["none", "as many as ranks"].into_iter().enumerate() {
        let [first, later] = [&first, &later].map(|half| half[turn].iter().copied().collect::<Samples>());
        println!("| {name} | {first} | {later} |");
    }
    let pace = |[without, with]: &[Vec<f64>; 2]| {
        let half = f64::from(steps / 2);
        Overhead::of(&without.iter().zip(with).map(|(without, with)| [half / without, half / with]).collect::<Vec<_>>())
    };
    let figures = Figures { standbys_first_steps: pace(&first), standbys_later_steps: pace(&later) };
    println!("\nthe first steps are slower by {}", figures.standbys_first_steps);
    println!("the next are slower by {}", figures.standbys_later_steps);
    Ok(figures)
}
