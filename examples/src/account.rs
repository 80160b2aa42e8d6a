//! The account of a run: the injected faults, what taskd did about each, and what that cost.
//!
//! It receives the runtime's events, takes their times with its own clock and compares them with the injections. It
//! never touches the job.

use crate::clock::millis;
use crate::program;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use taskd_core::job::{IncidentId, Rank, Role};
use taskd_core::kernel::{Event, IncidentReport, JobReport};
use taskd_core::runtime::{RuntimeHandle, TimestampedEvent};
use tokio::sync::broadcast::error::RecvError;
use tokio::task::JoinHandle;

/// One fault that was injected into the job from outside.
#[derive(Clone, Debug)]
pub struct Injection {
    /// What was done, such as `SIGKILL`.
    pub what: String,
    /// The target.
    pub roles: Vec<Role>,
    /// When it was done.
    pub at: Instant,
}

/// When an incident was found and closed.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    found: Option<Instant>,
    closed: Option<Instant>,
}

/// The account of what was injected, shared with the injector.
#[derive(Clone, Debug, Default)]
pub struct Injections(Arc<Mutex<Vec<Injection>>>);

impl Injections {
    /// Adds an injection into `ranks` at `at`.
    pub fn push(&self, what: &str, ranks: &[u32], at: Instant) {
        self.push_to(what, ranks.iter().map(|rank| Role::Rank(Rank(*rank))).collect(), at);
    }

    /// Adds an injection into any target.
    pub fn push_to(&self, what: &str, roles: Vec<Role>, at: Instant) {
        let injection = Injection { what: what.to_owned(), roles, at };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(injection);
    }

    /// Returns all injections so far.
    #[must_use]
    pub fn all(&self) -> Vec<Injection> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Receives the events of a job from its start.
#[derive(Debug)]
pub struct Listener {
    task: JoinHandle<BTreeMap<IncidentId, Seen>>,
}

impl Listener {
    /// Starts to receive events, and passes a line of text for each to `log`.
    #[must_use]
    pub fn start(handle: &RuntimeHandle, mut log: impl FnMut(String) + Send + 'static) -> Listener {
        let mut events = handle.events();
        let task = tokio::spawn(async move {
            let mut seen: BTreeMap<IncidentId, Seen> = BTreeMap::new();
            loop {
                match events.recv().await {
                    Ok(announcement) => note(&announcement, &mut seen, &mut log),
                    Err(RecvError::Lagged(missed)) => log(format!("({missed} events were missed here)")),
                    Err(RecvError::Closed) => return seen,
                }
            }
        });
        Listener { task }
    }

    /// Returns the rows of the incident table, once the job is over and every handle of it is dropped.
    pub async fn rows(self, report: &JobReport, injections: &Injections) -> Vec<Row> {
        let seen = self.task.await.unwrap_or_default();
        let injections = injections.all();
        let mut left: Vec<&Injection> = injections.iter().collect();
        let row = |incident: &IncidentReport| {
            let seen = seen.get(&incident.id).copied().unwrap_or_default();
            Row::of(incident, seen, &mut left)
        };
        report.incidents.iter().map(row).collect()
    }
}

fn note(announcement: &Arc<TimestampedEvent>, seen: &mut BTreeMap<IncidentId, Seen>, log: &mut impl FnMut(String)) {
    let now = Instant::now();
    let at = announcement.at;
    match &announcement.event {
        Event::Found { incident, fault, opened } => {
            let entry = seen.entry(*incident).or_default();
            entry.found = entry.found.or(Some(now));
            let clues: Vec<&str> = fault.evidence.iter().map(|c| c.text.as_str()).collect();
            let verb = if *opened { "opened" } else { "also" };
            let suspect = fault.primary_suspect();
            let side = if suspect.is_cause() { "" } else { " (a victim)" };
            log(format!(
                "{at}  {incident} {verb}: {} in {}{side}: {}",
                suspect.class,
                suspect.domain,
                clues.join("; ")
            ));
        }
        Event::Decided(decision) => log(format!("{at}  {} decided: {}", decision.incident.id, decision.reason)),
        Event::Closed { incident, how } => {
            seen.entry(*incident).or_default().closed = Some(now);
            log(format!("{at}  {incident} closed: {how}"));
        }
        Event::Cancelled { incident, strategy, reason } => {
            log(format!("{at}  {incident}: {strategy} cancelled: {reason}"));
        }
        Event::Failed { incident, strategy, reason } => log(format!("{at}  {incident}: {strategy} failed: {reason}")),
        Event::Entered { generation, restarts } => log(format!("{at}  {generation} begins (restarts: {restarts})")),
        _ => {}
    }
}

/// One incident and the injection that caused it.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Kind of fault.
    pub class: String,
    /// Ranks that were blamed.
    pub ranks: Vec<u32>,
    /// Services that were blamed.
    pub services: Vec<String>,
    /// The injection and its target; null if there was none.
    pub injected: Option<String>,
    /// True if exactly the targets of the injection were blamed.
    pub correct: bool,
    /// From the injection to the first fault found, in milliseconds.
    pub detected_ms: Option<f64>,
    /// From the injection until the ranks trained again, in milliseconds.
    pub resumed_ms: Option<f64>,
    /// The strategy that was carried out.
    pub strategy: Option<String>,
    /// Training steps that were repeated, from the program's own metrics.
    pub steps_lost: Option<u64>,
    /// The evidence, one sentence each.
    pub evidence: Vec<String>,
}

impl Row {
    /// Returns the names of the blamed processes.
    fn target(&self) -> String {
        let ranks = (!self.ranks.is_empty()).then(|| format!("rank {}", list(&self.ranks)));
        let target: Vec<String> = ranks.into_iter().chain(self.services.iter().cloned()).collect();
        if target.is_empty() { "-".to_owned() } else { target.join(", ") }
    }

    /// Removes from `left` the injections that this incident answers, those that came before it was found.
    fn of(incident: &IncidentReport, seen: Seen, left: &mut Vec<&Injection>) -> Row {
        let ranks: Vec<u32> = incident.blamed.iter().map(|r| r.0).collect();
        let before = |i: &&Injection| seen.closed.or(seen.found).is_some_and(|t| i.at <= t);
        let answered: Vec<&Injection> = left.iter().copied().filter(before).collect();
        left.retain(|i| !before(i));
        let hit: BTreeSet<&Role> = answered.iter().flat_map(|i| &i.roles).collect();
        let services = incident.blamed_services.iter().cloned().map(Role::Service);
        let blamed: Vec<Role> = incident.blamed.iter().copied().map(Role::Rank).chain(services).collect();
        let is_hit = blamed.iter().collect::<BTreeSet<_>>() == hit;
        let first = answered.first().map(|i| i.at);
        let since = |t: Option<Instant>| Some(millis(t?.duration_since(first?)));
        let what: Vec<String> = answered.iter().map(|i| format!("{} to {}", i.what, names(&i.roles))).collect();
        Row {
            class: incident.class.to_string(),
            correct: !answered.is_empty() && is_hit,
            ranks,
            services: incident.blamed_services.iter().map(ToString::to_string).collect(),
            injected: (!what.is_empty()).then(|| what.join(", ")),
            detected_ms: since(seen.found),
            resumed_ms: since(seen.closed).filter(|_| incident.resumed.is_some()),
            strategy: incident.strategy.as_ref().map(ToString::to_string),
            steps_lost: None,
            evidence: incident.evidence.clone(),
        }
    }
}

/// Returns a list such as `rank 1,2, service scheduler`.
fn names(roles: &[Role]) -> String {
    let ranks: Vec<u32> = roles.iter().filter_map(Role::rank).map(|rank| rank.0).collect();
    let others = roles.iter().filter(|role| role.rank().is_none()).map(ToString::to_string);
    let ranks = (!ranks.is_empty()).then(|| format!("rank {}", list(&ranks)));
    ranks.into_iter().chain(others).collect::<Vec<_>>().join(", ")
}

fn list(ranks: &[u32]) -> String {
    ranks.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// The account that an example of a single job prints.
#[derive(Clone, Debug, Serialize)]
pub struct Account {
    /// True if training ended as it should.
    pub completed: bool,
    /// Why the job ended.
    pub reason: String,
    /// Training steps of the finished job.
    pub steps: Option<u64>,
    /// Loss over the whole data set at the end.
    pub final_loss: Option<f64>,
    /// True if that is the loss of the undisturbed run; null if there is none to compare with.
    pub loss_equal: Option<bool>,
    /// True if the SHA-256 of the state is that of the undisturbed run; null if there is none to compare with.
    pub state_equal: Option<bool>,
    /// Restarts that counted.
    pub restarts: u32,
    /// Share of the run's time that went into steps whose results were kept.
    pub goodput: Option<f64>,
    /// The incidents.
    pub incidents: Vec<Row>,
}

impl Account {
    /// Returns the account of a job whose training result is not compared.
    #[must_use]
    pub fn of(report: &JobReport, incidents: Vec<Row>) -> Account {
        Account {
            completed: report.ok,
            reason: report.reason.clone(),
            steps: None,
            final_loss: None,
            loss_equal: None,
            state_equal: None,
            restarts: report.restarts,
            goodput: None,
            incidents,
        }
    }

    /// Returns the incident table and the outcome as text.
    #[must_use]
    pub fn table(&self) -> String {
        let mut out = String::from(
            "\n  what           where      injected               correct  detected   decided           resumed    lost steps\n",
        );
        for row in &self.incidents {
            let after = |t: Option<f64>| t.map_or("-".to_owned(), |t| format!("{t:.1} ms"));
            let _ = writeln!(
                out,
                "  {:<13}  {:<9}  {:<21}  {:<7}  {:<9}  {:<16}  {:<9}  {}",
                row.class,
                row.target(),
                row.injected.as_deref().unwrap_or("-"),
                match (row.injected.is_some(), row.correct) {
                    (false, _) => "-",
                    (true, true) => "yes",
                    (true, false) => "NO",
                },
                after(row.detected_ms),
                row.strategy.as_deref().unwrap_or("-"),
                after(row.resumed_ms),
                row.steps_lost.map_or("-".to_owned(), |n| n.to_string()),
            );
            for line in &row.evidence {
                let _ = writeln!(out, "      because {line}");
            }
        }
        if self.incidents.is_empty() {
            out.push_str("  (no incident)\n");
        }
        let same = |equal: Option<bool>| match equal {
            Some(true) => "equal to the undisturbed run",
            Some(false) => "DIFFERENT from the undisturbed run",
            None => "not compared",
        };
        let _ = writeln!(out, "\n  outcome   {}", self.reason);
        if let (Some(steps), Some(loss)) = (self.steps, self.final_loss) {
            let _ = writeln!(out, "  training  {steps} steps, final loss {loss:.6} ({})", same(self.loss_equal));
            let _ = writeln!(out, "  state     SHA-256 {}", same(self.state_equal));
        }
        if let Some(goodput) = self.goodput {
            let _ = writeln!(out, "  goodput   {:.1} %, {} restarts", goodput * 100.0, self.restarts);
        }
        out
    }

    /// Prints the account: a table, or one line of JSON as the last line.
    pub fn print(&self, json: bool) {
        program::print(self, json, || self.table());
    }
}
