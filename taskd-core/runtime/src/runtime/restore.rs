//! Resuming from an earlier supervisor's log, and the reasons for not resuming.
//!
//! This module only reads the log. It resumes only a state that can be rebuilt exactly. Otherwise the job starts from
//! its checkpoint, which is always safe.

use crate::job::{JobSpec, JobTime};
use crate::journal::{Header, PluginInfo, Recovered, Step};
use crate::kernel::Effect;
use crate::kernel::{Kernel, Plugins, Snapshot};
use crate::launch::Launcher;
use crate::recover::Action;
use crate::trace::TraceSource;

/// The initial kernel, and the job time at which it continues.
pub(super) struct Past {
    pub(super) kernel: Kernel,
    pub(super) now: JobTime,
}

impl Past {
    /// Creates a new kernel at job time zero.
    pub(super) fn none(plugins: Plugins) -> Past {
        Past { kernel: Kernel::new(plugins), now: JobTime::START }
    }

    /// Resumes from an earlier supervisor's state if possible, and logs the result and the reason.
    ///
    /// Job time continues where the log ends: the time without a supervisor does not count.
    pub(super) fn of(recovered: &Recovered, plugins: Plugins) -> Past {
        for problem in &recovered.problems {
            tracing::warn!("the log of an earlier supervisor: {problem}");
        }
        if let Some(why) = obstacle(recovered) {
            if !recovered.is_empty() {
                tracing::warn!(log = %recovered, "the job restarts from its checkpoint, not from the log: {why}");
            }
            return Past::none(plugins);
        }
        for difference in recovered.differences.iter().filter(|d| !d.changes_decisions()) {
            tracing::warn!("continuing the job: {difference}");
        }
        match recovered.resume(plugins) {
            Ok(rebuilt) => {
                for detector in &rebuilt.cold {
                    tracing::info!(%detector, "the detector starts cold");
                }
                if let Some(divergence) = &rebuilt.divergence {
                    tracing::warn!(
                        ?divergence,
                        "a replayed step differs from the log; the launcher's listing corrects the state"
                    );
                }
                tracing::info!(log = %recovered, "continuing the job");
                Past { kernel: rebuilt.kernel, now: recovered.now }
            }
            Err((error, plugins)) => {
                tracing::warn!("the job restarts from its checkpoint, not from the log: {error}");
                Past::none(plugins)
            }
        }
    }
}

/// Returns the reason for which an earlier state cannot be resumed, if there is one.
fn obstacle(recovered: &Recovered) -> Option<String> {
    if !recovered.has_state() {
        let another_job = recovered.differences.iter().find(|d| d.is_another_job());
        return Some(another_job.map_or("no state can be read from it".into(), ToString::to_string));
    }
    let finishes =
        |step: &Step| step.commands.iter().flatten().any(|c| matches!(c.effect, Effect::Act(Action::Finish { .. })));
    if recovered.snapshot.as_ref().is_some_and(Snapshot::is_over) || recovered.steps().any(|step| finishes(&step)) {
        return Some("the logged job has ended".into());
    }
    if let Some(missing) = &recovered.missing {
        return Some(missing.to_string());
    }
    if let Some(step) = recovered.steps().find(|step| step.input.is_none()) {
        return Some(format!("{} is unknown to this program", step.seq));
    }
    // Inputs after the snapshot are replayed, which is exact only with the same plugins as before.
    let decisive = recovered.differences.iter().filter(|d| d.changes_decisions());
    let decisive: Vec<String> = decisive.map(ToString::to_string).collect();
    (!decisive.is_empty()).then(|| decisive.join("; "))
}

/// Builds the journal header: job, start time and plugins.
pub(super) fn header(
    job: &JobSpec,
    sources: &[Box<dyn TraceSource>],
    plugins: &Plugins,
    launcher: &dyn Launcher,
    started_unix_ms: u64,
) -> Header {
    let sources = sources.iter().map(|s| PluginInfo::from(s.info()));
    let detectors = plugins.detectors.iter().map(|d| PluginInfo::from(d.as_ref()));
    let strategies = plugins.strategies.iter().map(|s| PluginInfo::from(s.as_ref()));
    let launcher = [PluginInfo::from(launcher.info())];
    let plugins = sources.chain(detectors).chain(strategies).chain(launcher).collect();
    let (name, job_id) = (job.name.clone(), job.name.to_string());
    Header { job: name, job_id, ranks: job.ranks, started_unix_ms, plugins }
}
