//! What an answer to [`PROCESS_STATE`](crate::trace::PROCESS_STATE) says: is the process frozen, busy, or asleep?
//!
//! It knows no limits and blames nobody.

use crate::detect::Clue;
use crate::detect::exit::one_line;
use crate::trace::Exhibit;
use std::time::Duration;

/// Where the kernel holds the threads of a frozen control group: of version 2, and of version 1.
const FREEZERS: [&str; 2] = ["do_freezer_trap", "__refrigerator"];
/// A host has far more to run than processors when something waited for one in this part of the last ten seconds,
const OVERLOAD_PRESSURE_PERCENT: u64 = 80;
/// or, where that is not known, when so much could run.
const OVERLOAD_LOAD_PERCENT: u64 = 400;

/// What an answer says.
#[derive(Debug, Default)]
pub(in crate::detect) struct Found<'a> {
    pub(in crate::detect) state: Option<char>,
    wchan: Option<&'a str>,
    pub(in crate::detect) beat_age: Option<Duration>,
    runnable: u32,
    uninterruptible: u32,
    ran: Ran,
    load_percent: Option<u64>,
    pressure_percent: Option<u64>,
}

/// When one of its threads was last seen to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Ran {
    /// So long ago.
    Ago(Duration),
    /// Not since it was first looked at.
    Never,
    /// That cannot be seen there.
    #[default]
    Unknown,
}

impl<'a> Found<'a> {
    pub(in crate::detect) fn of(exhibit: &'a Exhibit) -> Found<'a> {
        let mut found = Found::default();
        let Exhibit::Text(text) = exhibit else { return found };
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
                "host_load_percent" => found.load_percent = value.parse().ok(),
                "host_cpu_pressure_percent" => found.pressure_percent = value.parse().ok(),
                _ => {}
            }
        }
        found
    }

    /// Whether something keeps all of its threads from running: a stop signal, a debugger, a frozen control group.
    pub(in crate::detect) fn is_frozen(&self) -> bool {
        matches!(self.state, Some('T' | 't')) || self.wchan.is_some_and(|wchan| FREEZERS.contains(&wchan))
    }

    /// What it is busy with, in words, if it has run `within` that time, or would have.
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
            Ran::Ago(age) if age <= within => Some(format!("its process ran {:.1} s before", age.as_secs_f64())),
            Ran::Unknown => self.overload(),
            Ran::Ago(_) | Ran::Never => None,
        }
    }

    /// How its host is overloaded, if it is.
    fn overload(&self) -> Option<String> {
        let pressure = self.pressure_percent.filter(|percent| *percent >= OVERLOAD_PRESSURE_PERCENT);
        let load = self.load_percent.filter(|percent| *percent >= OVERLOAD_LOAD_PERCENT);
        match (self.pressure_percent, pressure, load) {
            (_, Some(percent), _) => Some(format!("its host is overloaded: CPU pressure {percent} %")),
            (None, None, Some(percent)) => Some(format!("its host is overloaded: load {percent} % of its processors")),
            _ => None,
        }
    }

    pub(in crate::detect) fn clue(&self, exhibit: &Exhibit) -> Clue {
        let wchan = self.wchan.map(|w| format!(", asleep in {}", one_line(w))).unwrap_or_default();
        let text = match (self.state, exhibit) {
            (Some(state @ ('T' | 't')), _) => format!("frozen: its process is in state {state} (stopped)"),
            (Some(state), _) if self.is_frozen() => {
                format!("frozen: its process is in state {state}{wchan} (its control group is frozen)")
            }
            (Some(state), _) => format!("its process is in state {state}{wchan}"),
            (None, Exhibit::Unavailable(why)) => format!("the state of its process cannot be had: {}", one_line(why)),
            _ => "the question for the state of its process was not answered".into(),
        };
        Clue::text("process_state", text)
    }
}
