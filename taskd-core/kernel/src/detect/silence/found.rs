//! Interprets a reply to [`PROCESS_STATE`](crate::trace::PROCESS_STATE): is the process frozen, busy, or asleep?
//!
//! This module knows no time limits and blames no process.

use crate::detect::Evidence;
use crate::detect::exit::one_line;
use crate::trace::ProbeResult;
use std::time::Duration;

/// Wait channels of threads in a frozen control group, of version 2 and of version 1.
const FREEZERS: [&str; 2] = ["do_freezer_trap", "__refrigerator"];
/// CPU pressure over the last ten seconds from which a host counts as overloaded: the percentage of time in which some
/// task waited for a processor.
const OVERLOAD_PRESSURE_PERCENT: u64 = 80;
/// Load per processor from which a host counts as overloaded, in percent, if its pressure is not known.
const OVERLOAD_LOAD_PERCENT: u64 = 400;

/// The content of a reply.
#[derive(Debug, Default)]
pub(crate) struct Found<'a> {
    pub(in crate::detect) state: Option<char>,
    pub(in crate::detect) wchan: Option<&'a str>,
    pub(in crate::detect) beat_age: Option<Duration>,
    pub(in crate::detect) runnable: u32,
    uninterruptible: u32,
    ran: Ran,
    /// Processor time that the process has used, in milliseconds.
    pub(in crate::detect) cpu_ms: Option<u64>,
    load_percent: Option<u64>,
    pressure_percent: Option<u64>,
}

/// When a thread of the process was last seen to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Ran {
    /// A thread was last seen to run this long ago.
    Ago(Duration),
    /// No thread was seen to run since the first observation.
    Never,
    /// The execution of threads cannot be observed on this host.
    #[default]
    Unknown,
}

impl<'a> Found<'a> {
    pub(in crate::detect) fn of(exhibit: &'a ProbeResult) -> Found<'a> {
        let mut found = Found::default();
        let ProbeResult::Text(text) = exhibit else { return found };
        for (name, value) in text.split_whitespace().filter_map(|word| word.split_once('=')) {
            let millis = || value.parse().ok().map(Duration::from_millis);
            match name {
                "state" => found.state = value.chars().next(),
                "wchan" => found.wchan = Some(value).filter(|v| *v != "0"),
                "beat_age_ms" => found.beat_age = millis(),
                "runnable" => found.runnable = value.parse().unwrap_or(0),
                "uninterruptible" => found.uninterruptible = value.parse().unwrap_or(0),
                "ran_age_ms" if value == "-" => found.ran = Ran::Never,
                "ran_age_ms" => found.ran = millis().map_or(Ran::Unknown, Ran::Ago),
                "cpu_ms" => found.cpu_ms = value.parse().ok(),
                "host_load_percent" => found.load_percent = value.parse().ok(),
                "host_cpu_pressure_percent" => found.pressure_percent = value.parse().ok(),
                _ => {}
            }
        }
        found
    }

    /// Returns true if something keeps all threads from running: a stop signal, a debugger, a frozen control group.
    pub(in crate::detect) fn is_frozen(&self) -> bool {
        matches!(self.state, Some('T' | 't')) || self.wchan.is_some_and(|wchan| FREEZERS.contains(&wchan))
    }

    /// Describes what the process is busy with, if it ran `within` that time or waits to run; `None` otherwise.
    pub(in crate::detect) fn busy(&self, within: Duration) -> Option<String> {
        if self.is_frozen() {
            return None;
        }
        if self.runnable > 0 || self.state == Some('R') {
            return Some("its process runs, or waits for a processor".into());
        }
        if self.uninterruptible > 0 || self.state == Some('D') {
            let wchan = self.wchan.map(|wchan| format!(" ({})", one_line(wchan))).unwrap_or_default();
            return Some(format!("its process waits for a disk or a driver{wchan}"));
        }
        match self.ran {
            Ran::Ago(age) if age <= within => Some(format!("its process ran {:.1} s ago", age.as_secs_f64())),
            Ran::Unknown => self.overload(),
            Ran::Ago(_) | Ran::Never => None,
        }
    }

    /// Describes the overload of the process's host, if there is one.
    fn overload(&self) -> Option<String> {
        let pressure = self.pressure_percent.filter(|percent| *percent >= OVERLOAD_PRESSURE_PERCENT);
        let load = self.load_percent.filter(|percent| *percent >= OVERLOAD_LOAD_PERCENT);
        match (self.pressure_percent, pressure, load) {
            (_, Some(percent), _) => Some(format!("its host is overloaded: CPU pressure {percent} %")),
            (None, None, Some(percent)) => Some(format!("its host is overloaded: load {percent} % of its processors")),
            _ => None,
        }
    }

    pub(in crate::detect) fn clue(&self, exhibit: &ProbeResult) -> Evidence {
        let wchan = self.wchan.map(|w| format!(", asleep in {}", one_line(w))).unwrap_or_default();
        let text = match (self.state, exhibit) {
            (Some(state @ ('T' | 't')), _) => format!("frozen: its process is in state {state} (stopped)"),
            (Some(state), _) if self.is_frozen() => {
                format!("frozen: its process is in state {state}{wchan} (its control group is frozen)")
            }
            (Some(state), _) => format!("its process is in state {state}{wchan}"),
            (None, ProbeResult::Unavailable(why)) => {
                format!("the state of its process is not known: {}", one_line(why))
            }
            _ => "the probe for the state of its process was not answered".into(),
        };
        Evidence::text("process_state", text)
    }
}
