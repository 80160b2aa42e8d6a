//! What a new supervisor takes up of an earlier one's log, and why not, where it does not.
//!
//! It reads and never writes; the rule is: only what would go on exactly is taken up. Otherwise the job starts anew from
//! its checkpoint, which is always sound.

use crate::job::{JobSpec, JobTime};
use crate::journal::{Header, PluginInfo, Recovered, Step};
use crate::kernel::{Kernel, Plugins, Snapshot};
use crate::launch::Launcher;
use crate::recover::Action;
use crate::trace::TraceSource;

/// A kernel to begin with, and the job time at which it goes on.
pub(super) struct Past {
    pub(super) kernel: Kernel,
    pub(super) now: JobTime,
}

impl Past {
    /// A job that nobody has run before.
    pub(super) fn none(plugins: Plugins) -> Past {
        Past { kernel: Kernel::new(plugins), now: JobTime::START }
    }

    /// Goes on from an earlier supervisor's state, if that is possible; says what it does and why.
    ///
    /// Time in which no supervisor ran is no job time: the clock goes on where the log ends.
    pub(super) fn of(recovered: &Recovered, plugins: Plugins) -> Past {
        for problem in &recovered.problems {
            tracing::warn!("the log of an earlier supervisor: {problem}");
        }
        if let Some(why) = obstacle(recovered) {
            if !recovered.is_empty() {
                tracing::warn!(log = %recovered, "the job starts anew from its checkpoint, not from the log: {why}");
            }
            return Past::none(plugins);
        }
        for difference in recovered.differences.iter().filter(|d| !d.changes_decisions()) {
            tracing::warn!("going on with the job: {difference}");
        }
        match recovered.resume(plugins) {
            Ok(rebuilt) => {
                for detector in &rebuilt.cold {
                    tracing::info!(%detector, "the detector starts cold");
                }
                if let Some(divergence) = &rebuilt.divergence {
                    tracing::warn!(?divergence, "a step came out otherwise than it was logged; the listing will tell");
                }
                tracing::info!(log = %recovered, "going on with the job");
                Past { kernel: rebuilt.kernel, now: recovered.now }
            }
            Err((error, plugins)) => {
                tracing::warn!("the job starts anew from its checkpoint, not from the log: {error}");
                Past::none(plugins)
            }
        }
    }
}

/// Why an earlier state is not taken up.
fn obstacle(recovered: &Recovered) -> Option<String> {
    if !recovered.has_state() {
        let another_job = recovered.differences.iter().find(|d| d.is_another_job());
        return Some(another_job.map_or("no state can be read from it".into(), ToString::to_string));
    }
    let finishes = |step: &Step| step.commands.iter().flatten().any(|c| matches!(c.action, Action::Finish { .. }));
    if recovered.snapshot.as_ref().is_some_and(Snapshot::is_over) || recovered.steps().any(|step| finishes(&step)) {
        return Some("the job in it has ended".into());
    }
    if let Some(missing) = &recovered.missing {
        return Some(missing.to_string());
    }
    if let Some(step) = recovered.steps().find(|step| step.input.is_none()) {
        return Some(format!("{} holds what this program does not know", step.seq));
    }
    // Inputs after the snapshot are taken again, which is exact only with the plugins that took them before.
    let decisive = recovered.differences.iter().filter(|d| d.changes_decisions());
    let decisive: Vec<String> = decisive.map(ToString::to_string).collect();
    (!decisive.is_empty()).then(|| decisive.join("; "))
}

/// Whose log it is, and with which plugins.
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
