//! A process that records at full speed is killed at random moments, and its records are read afterwards.
//!
//! `cargo run --release -p taskd-soak --example chaos_recorder -- --kills 100`: every record that was published before
//! the kill must be readable and intact. `--seed N` chooses other moments, `--json` prints the account as the last
//! line.
//!
//! Two threads of the victim record, each into a ring of its own, while this program reads their records. The mode of a
//! full ring alternates: either it refuses the newest record, and then no published record may be missing; or it
//! overwrites the oldest, and then the last records must be readable, and missing ones must be counted.

use clap::Parser;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::Serialize;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use taskd_core::trace::recorder::{
    Detail, DrainedRecord, Event, Kind, NameId, Recorder, RecorderConfig, RecorderReader, ThreadRecorder, WhenFull,
};
use taskd_examples::program::{self, Failure, number};

const THREADS: usize = 2;
/// Time from a victim's first records until it is killed.
const LIVES: std::ops::Range<Duration> = Duration::from_micros(50)..Duration::from_millis(20);
/// Time limit for a victim's first records.
const BEGINS_WITHIN: Duration = Duration::from_secs(30);

/// Kills a recording process again and again, and reads its records.
#[derive(Debug, Parser)]
struct Options {
    /// Processes to kill.
    #[arg(long, allow_negative_numbers = true, default_value_t = 100, value_parser = number::<u32>(1, 1_000_000))]
    kills: u32,
    /// Chooses the moments.
    #[arg(long, allow_negative_numbers = true, default_value_t = 7, value_parser = number::<u64>(0, u64::MAX))]
    seed: u64,
    /// Prints the account as one line of JSON at the end.
    #[arg(long)]
    json: bool,
    /// The victim's arguments: its memory, and the mode of a full ring.
    #[arg(long, hide = true, num_args = 2)]
    victim: Option<Vec<String>>,
}

/// The account of all kills.
#[derive(Debug, Default, Serialize)]
struct Account {
    kills: u32,
    /// Records that the victims had published.
    published: u64,
    /// Of these, records that were overwritten, as intended for such a ring; the reader counts each of them.
    overwritten: u64,
    /// Of these, records that are missing although they should not be.
    lost: u64,
    /// Records that differ from what was recorded.
    torn: u64,
    /// Records that were refused by a full ring and never published.
    refused: u64,
}

fn main() -> ExitCode {
    let options: Options = program::options();
    match options.victim.as_deref() {
        Some([memory, when_full]) => program::run("chaos_recorder", async { record_for_ever(memory, when_full) }),
        _ => program::run("chaos_recorder", async move { run(&options) }),
    }
}

fn run(options: &Options) -> Result<(), Failure> {
    let mut dice = StdRng::seed_from_u64(options.seed);
    let mut account = Account::default();
    for kill in 0..options.kills {
        let when_full = if kill % 2 == 0 { WhenFull::DropNewest } else { WhenFull::DropOldest };
        kill_one(when_full, dice.random_range(LIVES), &mut account)?;
        if (kill + 1) % 100 == 0 {
            println!("{} kills, {} records published", kill + 1, account.published);
        }
    }
    let Account { kills, published, overwritten, lost, torn, refused } = account;
    println!(
        "\n  {kills} processes killed\n  {published} records published, {overwritten} of them overwritten and counted\n  \
         {lost} lost\n  {torn} torn\n  {refused} more refused by a full ring, and counted"
    );
    if options.json {
        println!("{}", serde_json::to_string(&account)?);
    }
    if lost + torn > 0 { Err("records are missing or torn".into()) } else { Ok(()) }
}

fn config(when_full: WhenFull) -> RecorderConfig {
    RecorderConfig { threads_max: THREADS, records_per_thread: 4096, when_full, ..RecorderConfig::default() }
}

/// Starts a victim, reads its records for a while, kills it, reads the rest, and checks all of them.
fn kill_one(when_full: WhenFull, life: Duration, account: &mut Account) -> Result<(), Failure> {
    let memory = config(when_full).memory()?;
    let mut victim = Victim::start(&memory, when_full)?;
    let mut recording = victim.recording(&memory)?;
    let mut books = [Books::default(); THREADS];
    let until = Instant::now() + life;
    while Instant::now() < until {
        recording.take(|one| books[one.ring].enter(one))?;
        recording.commit()?;
    }
    victim.kill()?;
    recording.take(|one| books[one.ring].enter(one))?;
    account.kills += 1;
    let losses = recording.losses();
    account.refused += losses.dropped;
    account.overwritten += losses.overwritten;
    let published: u64 = recording.threads().iter().map(|thread| thread.written).sum();
    let seen: u64 = books.iter().map(|books| books.seen).sum();
    account.published += published;
    account.lost += published.abs_diff(seen + losses.overwritten);
    if when_full == WhenFull::DropNewest {
        account.lost += losses.overwritten;
    }
    account.torn += books.iter().map(|books| books.torn).sum::<u64>() + losses.unknown;
    for (thread, books) in recording.threads().iter().zip(books) {
        let is_last = when_full == WhenFull::DropNewest || books.next == thread.written;
        account.lost += u64::from(!is_last);
    }
    Ok(())
}

/// The records that were read of one thread.
#[derive(Clone, Copy, Debug, Default)]
struct Books {
    seen: u64,
    torn: u64,
    /// The number of the next record.
    next: u64,
}

impl Books {
    fn enter(&mut self, taken: DrainedRecord) {
        self.seen += 1;
        let (number, record) = (taken.number, taken.record);
        let is_whole = record.event == (Event::Begin { range: number.rotate_left(17) })
            && record.detail == (Detail::Step { number, cpu_nanos: !number });
        self.torn += u64::from(!is_whole || number < self.next);
        self.next = number + 1;
    }
}

/// A process that records, killed when this is dropped.
struct Victim(Child);

impl Victim {
    fn start(memory: &File, when_full: WhenFull) -> Result<Victim, Failure> {
        let path = format!("/proc/{}/fd/{}", std::process::id(), memory.as_raw_fd());
        let when_full = if when_full == WhenFull::DropNewest { "newest" } else { "oldest" };
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--victim", &path, when_full]).stdin(Stdio::null());
        Ok(Victim(command.spawn()?))
    }

    /// Returns the victim's records, as soon as both of its threads have begun.
    fn recording(&mut self, memory: &File) -> Result<RecorderReader, Failure> {
        let begun = Instant::now();
        loop {
            if let Ok(recording) = RecorderReader::open(memory.try_clone()?)
                && recording.threads().iter().filter(|thread| thread.written > 0).count() == THREADS
            {
                return Ok(recording);
            }
            if let Some(status) = self.0.try_wait()? {
                return Err(format!("the victim has ended by itself ({status})").into());
            }
            if begun.elapsed() > BEGINS_WITHIN {
                return Err("the victim does not begin to record".into());
            }
            std::thread::yield_now();
        }
    }

    fn kill(&mut self) -> Result<(), Failure> {
        self.0.kill()?;
        self.0.wait()?;
        Ok(())
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.kill(); // an error means that it has ended already
    }
}

/// Runs as the victim.
fn record_for_ever(memory: &str, when_full: &str) -> Result<(), Failure> {
    let when_full = if when_full == "newest" { WhenFull::DropNewest } else { WhenFull::DropOldest };
    let memory = File::options().read(true).write(true).open(memory)?;
    let recorder = Recorder::create(memory, config(when_full))?;
    std::thread::scope(|scope| {
        for _ in 1..THREADS {
            scope.spawn(|| record(&mut recorder.thread()));
        }
        record(&mut recorder.thread());
    });
    Ok(())
}

/// Records numbers in such a way that every word of a record follows from its number, until it is killed.
fn record(thread: &mut ThreadRecorder<'_>) {
    let mut number = 0u64;
    loop {
        let event = Event::Begin { range: number.rotate_left(17) };
        let detail = Detail::Step { number, cpu_nanos: !number };
        if thread.record(Kind::Step, event, NameId(0), detail) {
            number += 1; // a refused record is recorded again
        }
    }
}
