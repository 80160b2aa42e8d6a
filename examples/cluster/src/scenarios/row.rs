//! The row of one run.

use super::{Scenario, Trial};
use serde::Serialize;

/// One run of a scenario.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Row {
    /// Name of the scenario.
    pub scenario: String,
    /// What was injected.
    pub injected: String,
    /// What the job blamed, for each incident.
    pub blamed: String,
    /// True if all that must follow has followed.
    pub correct: bool,
    /// Seconds from the fault to its detection.
    pub detected_s: Option<f64>,
    /// Seconds from the fault until all ranks that remain have completed a step again; if no rank was lost, the longest
    /// time without a step.
    pub resumed_s: Option<f64>,
    /// Completed steps that were computed again.
    pub steps_lost: Option<u64>,
    /// True if the ranks that were not hit have kept their processes.
    pub pids_kept: bool,
    /// True if two processes trained one rank at the same time.
    pub two_worlds: bool,
    /// Seconds from the fault until the ranks of a host that was cut off had ended.
    pub fenced_s: Option<f64>,
    /// Seconds from the fault until another manager was in office.
    pub manager_s: Option<f64>,
    /// Seconds from a host's return until the job had all its ranks again.
    pub grown_s: Option<f64>,
    /// Longest time without a step of any rank while the job took the returned host in.
    pub paused_s: Option<f64>,
    /// True if every compared step had the undisturbed run's state and loss, to the bit; `None`: nothing was compared.
    pub state_equal: Option<bool>,
    /// Steps of single ranks that were compared.
    pub steps_compared: Option<usize>,
    /// Reason why the state cannot be that of an undisturbed run, if it cannot.
    pub exception: Option<String>,
    /// Bounds of a quiet machine that this run has missed, in sentences.
    pub missed: Vec<String>,
    /// Reason why the scenario does not pass yet, if that is known.
    pub known_gap: Option<&'static str>,
    /// What is not correct, in sentences.
    pub problems: Vec<String>,
    /// What a reader should know besides, in sentences: which parts continued, which message was logged.
    pub notes: Vec<String>,
    /// Lease in seconds.
    pub lease_s: f64,
    /// The machine's load of the last minute at the end.
    pub load: f64,
    /// Seconds of a bare `import torch` on this machine.
    pub import_torch_s: Option<f64>,
    /// Bare mutual TLS handshakes per second on this machine.
    pub tls_handshakes_per_s: Option<f64>,
}

impl Row {
    /// Returns the row of a fault that could not be injected, or that stopped the job too early.
    pub(super) fn failed(scenario: &Scenario, trial: &Trial, error: &impl ToString) -> Row {
        Row { problems: vec![error.to_string()], ..Row::new(scenario.name, scenario.known_gap, trial) }
    }

    /// Returns a row without results.
    pub(super) fn new(name: &str, known_gap: Option<&'static str>, trial: &Trial) -> Row {
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load = load.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or_default();
        Row {
            scenario: name.into(),
            lease_s: trial.training.plan.lease.as_secs_f64(),
            load,
            known_gap,
            ..Row::default()
        }
    }

    /// Records that a time is longer than its bound of a quiet machine.
    pub(super) fn check_bound(&mut self, what: &str, time: Option<f64>, bound: Option<f64>) {
        if let (Some(time), Some(bound)) = (time, bound)
            && time > bound
        {
            self.missed.push(format!("{what} after {time:.2} s, not within {bound} s"));
        }
    }
}

/// Rounds seconds to milliseconds.
pub(super) fn round(seconds: f64) -> f64 {
    (seconds * 1e3).round() / 1e3
}
