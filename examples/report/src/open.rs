//! Opens a run: reads the traces of every kind that a directory has, and analyzes them.

use crate::kinds::Kinds;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use taskd_core::analysis::document::{Analysis, Blame, EvidenceItem, KernelFigures, Verdict};
use taskd_core::analysis::model::{Missing, Trace};
use taskd_core::analysis::{ReferenceRules, Settings, analyze, reference_rules};
use taskd_core::detect::hang::{Culprit, HangCause};
use taskd_core::detect::reference::slow_node::SlowNodeConfig;
use taskd_core::live;
use taskd_hw_ascend::profiler;
use taskd_pytorch::flight_recorder::{self, FlightVerdict};
use taskd_pytorch::kineto::{self, Mode, Operators};

/// Rules of other tools that are applied beside those of the report.
#[derive(Clone, Copy, Debug, Default)]
pub struct OtherRules {
    /// The kernels also by the rules of `HolisticTraceAnalysis`.
    pub hta: bool,
    /// The sequences of kernels that each operator launches.
    pub operators: bool,
    /// The slow-node rule of MindCluster and the slow-rank rule of msprof-analyze.
    pub reference: bool,
}

/// A run after its traces were read and analyzed.
#[derive(Debug)]
pub struct Run {
    /// All figures.
    pub analysis: Analysis,
    /// The verdict about a hang, if the directory has dumps of PyTorch's flight recorder.
    pub hang: Option<FlightVerdict>,
    /// What the rules of the reference tools find, if that was asked for.
    pub reference: Option<ReferenceRules>,
    /// The sequences of kernels by operator, if that was asked for and the traces are PyTorch's.
    pub operators: Option<Operators>,
}

impl Run {
    /// Reads and analyzes the traces of a directory.
    ///
    /// If it has several kinds of traces, the most detailed one counts: Ascend's profiles, else Kineto's, else taskd's
    /// own stores. The others are named among the missing parts.
    ///
    /// # Errors
    /// A sentence, if the directory cannot be listed or has no known kind of trace.
    pub fn open(dir: &Path, other: OtherRules) -> Result<Run, String> {
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
        let (mut kernels, mut operators) = (None, None);
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
                _ => {
                    let (files, missing) = kineto_files(&found.kineto);
                    let mut trace = kineto::read_files(&files);
                    trace.missing.extend(missing);
                    operators = other.operators.then(|| kineto::operators_of_files(&files));
                    kernels = of_kernels(&files, other.hta, &mut trace);
                    trace
                }
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
        if other.hta && kernels.is_none() {
            let what =
                "HTA's rules were not applied: the traces have no kernels that PyTorch's profiler recorded".into();
            trace.missing.push(Missing { rank: None, what });
        }
        let analysis = analyze(&trace, &Settings { sources, incidents, hang: hung, kernels, ..Settings::default() });
        let reference = other.reference.then(|| reference_rules(&trace, &SlowNodeConfig::default()));
        Ok(Run { analysis, hang, reference, operators })
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

/// Returns the files to read: those of all directories if each has the file of one rank, else those of the first by
/// name, because each profiling session writes into a directory of its own. The others are missing.
fn kineto_files(found: &BTreeMap<PathBuf, Vec<PathBuf>>) -> (Vec<PathBuf>, Vec<Missing>) {
    if found.values().all(|files| files.len() == 1) {
        return (found.values().flatten().cloned().collect(), Vec::new());
    }
    let left_out = |other: &PathBuf| Missing {
        rank: None,
        what: format!("{} was not read: give it alone to see it", other.display()),
    };
    (found.values().next().cloned().unwrap_or_default(), found.keys().skip(1).map(left_out).collect())
}

/// Returns the kernels of the files; `None` for traces of the CPU alone. What the files lack is added to the trace.
fn of_kernels(files: &[PathBuf], hta: bool, trace: &mut Trace) -> Option<KernelFigures> {
    let exact = kineto::breakdown_of_files(files, Mode::Exact);
    if exact.ranks.is_empty() {
        return None;
    }
    let mut figures = KernelFigures { rules: vec![exact.rules()], differences: Vec::new() };
    let mut missing = exact.missing.clone();
    if hta {
        let hta = kineto::breakdown_of_files(files, Mode::Hta);
        figures.differences = exact.differences(&hta);
        figures.rules.push(hta.rules());
        missing.extend(hta.missing);
    }
    for one in missing {
        if !trace.missing.contains(&one) {
            trace.missing.push(one);
        }
    }
    Some(figures)
}

/// Evaluates the dumps of all directories: each host may have one of its own.
fn hang(dirs: &BTreeSet<PathBuf>, trace: &mut Trace) -> Result<Option<FlightVerdict>, String> {
    if dirs.is_empty() {
        return Ok(None);
    }
    let dumps = flight_recorder::read_directories(dirs.iter().map(PathBuf::as_path));
    let dumps = dumps.map_err(|error| format!("dumps of the flight recorder cannot be read: {error}"))?;
    trace.missing.extend(dumps.problems.iter().map(|what| Missing { rank: None, what: what.to_string() }));
    let ranks = trace.ranks.last_key_value().map(|(rank, _)| rank.saturating_add(1));
    Ok(Some(flight_recorder::evaluate(&dumps.dumps, ranks)))
}
