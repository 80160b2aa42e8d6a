//! The smallest job with a result that can be checked: two shell scripts that each add up a part of a series for π, and
//! save their position in a file.
//!
//! The scripts are independent of each other, so each can be restarted alone. All they use of taskd is its variable
//! `PROC`.

use crate::account::{Account, Injections};
use crate::books::{self, StepLine};
use rustix::process::{Pid, Signal, kill_process};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use taskd_core::job::WorkerSpec;

/// Number of scripts.
pub const RANKS: u32 = 2;
/// Terms that each script adds up.
pub const STEPS: u64 = 40;
/// Exit code of a script that has lost its licence server.
pub const NO_LICENCE: i32 = 7;

/// Its arguments are a directory, the number of steps, and the exit code for a lost licence server (SIGUSR1). After
/// each step it records the step, the sum in units of 1e-12, its process id, and the time in milliseconds.
const SCRIPT: &str = r#"
trap "exit $3" USR1; steps=$2
rank=${PROC#rank }; rank=${rank%#*}; book=$1/rank-$rank; step=0; sum=0
if [ -f "$book" ]; then set -- $(tail -n 1 "$book"); step=$1; sum=$2; fi
while [ "$step" -lt "$steps" ]; do
  sleep 0.02
  n=$((2 * step + rank)); term=$((4000000000000 / (2 * n + 1)))
  if [ $((n % 2)) = 1 ]; then term=$((-term)); fi
  sum=$((sum + term)); step=$((step + 1))
  echo "$step $sum $$ $(date +%s%3N)" >> "$book"
done"#;

/// The directory with the records of one run.
#[derive(Clone, Debug)]
pub struct Shards(PathBuf);

impl Shards {
    /// Makes the directory.
    ///
    /// # Errors
    /// The directory cannot be created.
    pub fn new(dir: &Path) -> std::io::Result<Shards> {
        std::fs::create_dir_all(dir)?;
        Ok(Shards(dir.to_owned()))
    }

    /// Returns the program of every rank.
    #[must_use]
    pub fn worker(&self) -> WorkerSpec {
        let arguments = [self.0.display().to_string(), STEPS.to_string(), NO_LICENCE.to_string()];
        WorkerSpec::new(["sh", "-c", SCRIPT, "shard"].map(str::to_owned).into_iter().chain(arguments))
    }

    /// Runs both scripts to their end, undisturbed.
    ///
    /// # Errors
    /// A script cannot be started or waited for.
    pub async fn undisturbed(&self) -> std::io::Result<()> {
        let argv = self.worker().argv;
        let start = |rank: u32| {
            tokio::process::Command::new(&argv[0]).args(&argv[1..]).env("PROC", format!("rank {rank}#1")).spawn()
        };
        let mut scripts = (0..RANKS).map(start).collect::<Result<Vec<_>, _>>()?;
        for script in &mut scripts {
            script.wait().await?;
        }
        Ok(())
    }

    /// Takes the licence server away from a rank (SIGUSR1, upon which it exits) once it has reached `step`.
    pub async fn lose_licence(&self, rank: u32, step: u64, injections: &Injections) {
        loop {
            if let Some((line, pid)) = self.book(rank).pop().filter(|(line, _)| line.step >= step) {
                let at = Instant::now();
                println!("          >>> from outside: SIGUSR1 to rank {rank} (pid {pid}) at step {}", line.step);
                if Pid::from_raw(pid).is_some_and(|pid| kill_process(pid, Signal::USR1).is_ok()) {
                    injections.push("SIGUSR1", &[rank], at);
                }
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Adds the job's own figures to its account.
    pub fn report(&self, account: &mut Account, undisturbed: &Shards) {
        let ((loss, state), reference) = (self.result(), undisturbed.result());
        let book: Vec<StepLine> = self.book(RANKS - 1).into_iter().map(|(line, _)| line).collect();
        let taken = book.last().map_or(0, |line| line.step);
        account.steps = Some(taken);
        account.final_loss = Some(loss);
        account.loss_equal = Some(loss.to_bits() == reference.0.to_bits());
        account.state_equal = Some(state == reference.1);
        account.goodput = books::goodput(&book);
        for row in &mut account.incidents {
            row.steps_lost = Some((book.len() as u64).saturating_sub(taken)); // all steps that were recorded twice
        }
    }

    /// Returns the distance of the sum from π, and the SHA-256 of the positions of all ranks.
    fn result(&self) -> (f64, [u8; 32]) {
        let last: Vec<StepLine> = (0..RANKS).filter_map(|rank| Some(self.book(rank).pop()?.0)).collect();
        let sum: f64 = last.iter().map(|line| line.loss).sum();
        let state: Vec<String> = last.iter().map(|line| format!("{} {}", line.step, line.loss)).collect();
        ((sum / 1e12 - std::f64::consts::PI).abs(), Sha256::digest(state.join("\n")).into())
    }

    /// Returns what a rank has recorded: each step with its sum, and the process that computed it.
    fn book(&self, rank: u32) -> Vec<(StepLine, i32)> {
        let text = std::fs::read_to_string(self.0.join(format!("rank-{rank}"))).unwrap_or_default();
        let line = |line: &str| {
            let mut words = line.split(' ');
            let (step, loss) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            let (pid, at_ms) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            Some((StepLine { generation: 1, step, loss, at_ms }, pid))
        };
        text.lines().filter_map(line).collect()
    }
}
