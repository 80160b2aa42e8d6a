//! Opens a run: reads the traces of every kind that a directory has, and analyzes them.

use crate::kinds::Kinds;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use taskd_core::analysis::document::{Analysis, Blame, EvidenceItem, Verdict};
use taskd_core::analysis::model::{Missing, Trace};
use taskd_core::analysis::{Settings, analyze};
use taskd_core::detect::hang::{Culprit, HangCause};
use taskd_core::live;
use taskd_hw_ascend::profiler;
use taskd_pytorch::flight_recorder::{self, FlightVerdict};
use taskd_pytorch::kineto;

/// A run after its traces were read and analyzed.
#[derive(Debug)]
pub struct Run {
    /// All figures.
    pub analysis: Analysis,
    /// The verdict about a hang, if the directory has dumps of PyTorch's flight recorder.
    pub hang: Option<FlightVerdict>,
}

impl Run {
    /// Reads and analyzes the traces of a directory.
    ///
    /// If it has several kinds of traces, the most detailed one counts: Ascend's profiles, else Kineto's, else taskd's
    /// own stores. The others are named among the missing parts.
    ///
    /// # Errors
    /// A sentence, if the directory cannot be listed or has no known kind of trace.
    pub fn open(dir: &Path) -> Result<Run, String> {
        let failed = |error: io::Error| format!("{} cannot be read: {error}", dir.display());
        let found = Kinds::find(dir).map_err(failed)?;
        if found.is_empty() {
            return Err(format!(
                "{} has no traces of a known kind: it needs a trace store of taskd, files of PyTorch's profiler \
                 (*.json, *.json.gz), of Ascend's profilers (*_ascend_pt, *_ascend_ms), dumps of PyTorch's flight \
                 recorder, or the logs of a supervisor",
                dir.display()
            ));
        }
        let title = title(dir);
        let (mut trace, mut sources) = (Trace { title: title.clone(), ..Trace::default() }, Vec::new());
        let mut left_out = Vec::new();
        let kinds = [
            ("Ascend profiler", !found.ascend.is_empty()),
            ("PyTorch profiler (Kineto)", !found.kineto.is_empty()),
            ("taskd store", !found.stores.is_empty()),
        ];
        for (kind, _) in kinds.into_iter().filter(|(_, is_there)| *is_there) {
            if !sources.is_empty() {
                left_out.push(format!("traces of the kind {kind} are here, too, and were not read"));
                continue;
            }
            trace = match kind {
                "Ascend profiler" => profiler::read(dir).map_err(failed)?,
                "taskd store" => live::stores::read(&found.stores, &title).map_err(failed)?,
                _ => of_kineto(&found.kineto)?,
            };
            sources.push(kind.to_owned());
        }
        trace.title = title;
        trace.missing.extend(left_out.into_iter().map(|what| Missing { rank: None, what }));
        if found.is_cut {
            trace
                .missing
                .push(Missing { rank: None, what: "the directory has more folders than were searched".into() });
        }
        let hang = hang(&found.flight_recorder, &mut trace)?;
        if hang.is_some() {
            sources.push("PyTorch flight recorder".to_owned());
        }
        let mut incidents = Vec::new();
        for dir in &found.journals {
            let found = live::incidents::read(dir)?;
            incidents.extend(found.incidents);
            trace.missing.extend(found.missing.into_iter().map(|what| Missing { rank: None, what }));
        }
        if !found.journals.is_empty() {
            sources.push("logs of a supervisor".to_owned());
        }
        live::incidents::on_axis(&mut incidents, &mut trace);
        let hung = hang.as_ref().map(of_hang);
        let analysis = analyze(&trace, &Settings { sources, incidents, hang: hung, ..Settings::default() });
        Ok(Run { analysis, hang })
    }
}

/// Returns the verdict about a hang in the form of the document.
fn of_hang(found: &FlightVerdict) -> Verdict {
    let evidence =
        |text: &String| EvidenceItem { what: "flight recorder".into(), value: None, usual: None, text: text.clone() };
    let blame = |culprit: &Culprit| {
        // As sure as the hang detector, which looks twice, but at processes instead of dumps.
        let (cause, confidence_permille) = match culprit.cause {
            HangCause::Frozen { .. } => ("hang-frozen", 850),
            HangCause::Ended => ("hang-ended", 900),
            HangCause::Skipped => ("hang-skipped", 900),
            HangCause::Mismatch => ("hang-mismatch", 900),
            HangCause::Missing => ("hang-missing", 700),
            _ => ("hang-unreported", 700),
        };
        Blame {
            component: culprit.rank.to_string(),
            ranks: vec![culprit.rank.0],
            cause: cause.into(),
            onset_step: None,
            slowdown_percent: 0.0,
            confidence_permille,
            evidence: found.evidence.iter().chain(&found.notes).map(evidence).collect(),
            ..Blame::default()
        }
    };
    let blamed: Vec<Blame> = found.verdict.culprits.iter().map(blame).collect();
    let is_healthy = blamed.is_empty() && found.verdict.dispute.is_none();
    Verdict::new(&found.summary, is_healthy, blamed)
}

/// Returns the name of a run: that of its directory.
fn title(dir: &Path) -> String {
    let path = dir.canonicalize().unwrap_or_else(|_| dir.to_path_buf());
    path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}

/// Reads the files of one directory, the first by name: each profiling session writes into one of its own.
fn of_kineto(dirs: &BTreeSet<PathBuf>) -> Result<Trace, String> {
    let Some(first) = dirs.first() else { return Ok(Trace::default()) };
    let mut trace = kineto::read_directory(first).map_err(|error| error.to_string())?;
    for other in dirs.iter().skip(1) {
        let what = format!("{} was not read: give it alone to see it", other.display());
        trace.missing.push(Missing { rank: None, what });
    }
    Ok(trace)
}

/// Evaluates the dumps of the first directory that has some.
fn hang(dirs: &BTreeSet<PathBuf>, trace: &mut Trace) -> Result<Option<FlightVerdict>, String> {
    let Some(dir) = dirs.first() else { return Ok(None) };
    let failed = |error: io::Error| format!("{} cannot be read: {error}", dir.display());
    let dumps = flight_recorder::read_directory(dir).map_err(failed)?;
    trace.missing.extend(dumps.problems.iter().map(|what| Missing { rank: None, what: what.to_string() }));
    let ranks = trace.ranks.last_key_value().map(|(rank, _)| rank.saturating_add(1));
    Ok(Some(flight_recorder::evaluate(&dumps.dumps, ranks)))
}
