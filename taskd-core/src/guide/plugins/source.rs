use std::fs::File;
use std::io::{BufRead, BufReader};
use std::{mem, time::Duration};
use taskd_core::job::{Domain, Name};
use taskd_core::trace::*;
use tokio::time::{Interval, interval};

const LINES_MAX: usize = 1000; // in one batch

/// Trace source that follows a file into which the training script writes the loss of each step, one number per
/// line.
pub struct LossFile(BufReader<File>, Interval, String);

impl LossFile {
    pub fn follow(file: File, every: Duration) -> LossFile {
        LossFile(BufReader::new(file), interval(every), String::new())
    }
}

fn fact(line: &str) -> Fact {
    let loss = line.trim().parse().map(|value| Signal::Metric { name: Name::new("loss"), value });
    Fact::new(Domain::Job, loss.unwrap_or(Signal::Lost { count: 1 }))
}

#[async_trait::async_trait]
impl TraceSource for LossFile {
    fn info(&self) -> SourceInfo {
        SourceInfo::new("acme.loss-file")
    }
    async fn next(&mut self) -> Option<Result<TraceBatch, SourceError>> {
        let LossFile(file, tick, line) = self;
        tick.tick().await; // the only await: nothing is taken yet, so a call that is dropped here loses nothing
        let mut facts = Vec::new();
        while facts.len() < LINES_MAX {
            match file.read_line(line) {
                Ok(_) if line.ends_with('\n') => facts.push(fact(&mem::take(line))),
                Err(error) if facts.is_empty() => return Some(Err(SourceError::Unavailable(error.to_string()))),
                _ => break, // what is there of a line stays in `line`
            }
        }
        Some(Ok(TraceBatch::of(facts)))
    }
}
