//! Output directories of processes: adds them to status and reports, because the kernel does not know the launcher.
//!
//! This module opens no files.

use crate::job::{NodeId, ProcId};
use crate::kernel::{Explanation, IncidentReport, JobReport, JobStatus, ProcReport, output_in_words};
use crate::launch::{LauncherInfo, proc_dir_name};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Output directories of a launcher, by host.
#[derive(Clone, Debug, Default)]
pub(super) struct OutputDirs(BTreeMap<NodeId, PathBuf>);

impl OutputDirs {
    pub(super) fn of(info: &LauncherInfo) -> OutputDirs {
        OutputDirs(info.output_dirs.clone())
    }

    /// Returns the output directory of a process. Without a host, returns the directory if there is only one host.
    pub(super) fn dir(&self, proc: &ProcId, node: Option<&NodeId>) -> Option<String> {
        let dir = match node {
            Some(node) => self.0.get(node)?,
            None => self.0.values().next().filter(|_| self.0.len() == 1)?,
        };
        Some(dir.join(proc_dir_name(proc)).display().to_string())
    }

    /// Returns a sentence that names the output directories; `None` if there are none.
    pub(super) fn in_words(&self) -> Option<String> {
        output_in_words(self.0.iter().map(|(node, dir)| (node, dir.display().to_string())))
    }

    fn all(&self) -> BTreeMap<NodeId, String> {
        self.0.iter().map(|(node, dir)| (node.clone(), dir.display().to_string())).collect()
    }

    pub(super) fn in_status(&self, mut status: JobStatus) -> JobStatus {
        status.output_dirs = self.all();
        for line in &mut status.not_running {
            line.output = self.dir(&line.proc, line.node.as_ref());
        }
        status.incidents.iter_mut().chain(&mut status.recent).for_each(|incident| self.in_incident(incident));
        status
    }

    pub(super) fn in_report(&self, mut report: JobReport) -> JobReport {
        report.output_dirs = self.all();
        report.incidents.iter_mut().for_each(|incident| self.in_incident(incident));
        report
    }

    pub(super) fn in_explanation(&self, mut explanation: Explanation) -> Explanation {
        self.in_incident(&mut explanation.report);
        explanation
    }

    fn in_incident(&self, incident: &mut IncidentReport) {
        for ProcReport { proc, node, output, .. } in &mut incident.procs {
            *output = self.dir(proc, node.as_ref());
        }
    }
}
