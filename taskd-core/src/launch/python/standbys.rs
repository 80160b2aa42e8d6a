//! Warm standbys: what a launcher of Python processes wishes for, and how it tells the launcher below.
//!
//! It starts nothing. What is wished travels in the order's environment ([`VARIABLE`]), so that every launcher between passes
//! it on; the local one takes it out.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::command::PythonCommand;
use crate::launch::JOIN_VARIABLE;
use crate::launch::guard::wire::{StandbyMode, WireStandby};

/// The variable of an order that says which standbys its process may be seated in; `none` is none.
pub(in crate::launch) const VARIABLE: &str = "TASKD_STANDBYS";
/// Variables by which libraries choose how many threads they start, when they are loaded. A template has one thread.
const HELD: [&str; 3] = ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"];
/// The launcher's own variables that are the same for all ranks of a world, and for those who take a place in it later.
const SHARED: [&str; 7] = [
    "TASKD_JOB",
    "TASKD_JOB_NAME",
    "TASKD_RUN_DIR",
    "TASKD_BEAT_MS",
    "TASKD_WORLD_SIZE",
    "TASKD_LOCAL_WORLD_SIZE",
    "TASKD_LIB",
];
/// A rank's own, whatever the framework.
const ERROR_FILE: &str = "TASKD_ERROR_FILE";

/// Processes that wait, with everything imported, to be told which rank they are: a rank that is seated in one of them runs its
/// program some milliseconds later, unmodified and as `__main__`.
///
/// Only ranks whose command line is that of a Python interpreter (3.8 or later) have them, over a
/// [`LocalLauncher`](crate::launch::LocalLauncher) that has a guard. The first start of a job is as ever; after it the standbys
/// are made in the background, at low priority where it can be had back, and again whenever some were seated. A rank that none
/// waits for is started in the usual way, which is [counted](crate::launch::guard::GuardCounters::standbys_missed). An order
/// whose environment has `TASKD_STANDBYS=none` has none.
///
/// # What they cost
/// Memory for one interpreter with its imports, and, while they come up, some seconds of one core. Where ranks keep all cores busy, low
/// priority is no idle time: a training of two ranks that keeps two cores busy takes 2.8 s longer, once (`BENCHMARKS.md`: its first 400
/// steps 16.4 s in place of 13.6, the next ones as long as ever).
///
/// # Which variables come late
/// Those that are each rank's own: of the launcher (`TASKD_...`), and those that the framework
/// [names](super::Framework::late). Where any other variable, an argument before the program's own, the working directory or the
/// nice value differs, standbys are ended, others are made, and that start is in the usual way.
///
/// # What differs from a new process
/// Very little, and it is tested: the modules that were imported are there already; with hash randomisation (`PYTHONHASHSEED`
/// unset) children of one template share their seed; what was there before the fork does not take part in garbage collection
/// (`gc.freeze`).
///
/// # When a template is refused
/// Where it has more than one thread, a context on a device, or an open descriptor that children would share: then there are no
/// standbys for these ranks, and the runtime's log says why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standbys {
    from: From,
    imports: Vec<String>,
    ahead: Option<u32>,
    parked: u32,
    after: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    Nowhere,
    Template,
    Starts,
}

impl Standbys {
    /// How long after a start they are begun unless told otherwise: the ranks that were started shall have the machine first.
    pub const AFTER: Duration = Duration::from_secs(2);

    const fn from(from: From) -> Standbys {
        Standbys { from, imports: Vec::new(), ahead: None, parked: 1, after: Standbys::AFTER }
    }

    /// No standbys.
    #[must_use]
    pub const fn none() -> Standbys {
        Standbys::from(From::Nowhere)
    }

    /// From a template: one process with one thread that imports what ranks need, takes a first training step by itself where
    /// the framework knows how, and forks. Its children share its memory. As many wait as there are ranks.
    ///
    /// The template runs with `OMP_NUM_THREADS`, `MKL_NUM_THREADS` and `OPENBLAS_NUM_THREADS` of 1; a rank has the job's values,
    /// in its environment and in the libraries.
    #[must_use]
    pub const fn template() -> Standbys {
        Standbys::from(From::Template)
    }

    /// Started one by one: for programs that a template cannot serve, such as those that use an accelerator, whose context no
    /// fork survives. So many wait, number `n` with a context on the device that local rank `n` uses; each costs the memory and
    /// the time of an interpreter of its own.
    #[must_use]
    pub const fn pre_started(count: u32) -> Standbys {
        Standbys::from(From::Starts).ahead(count)
    }

    /// Also imports this module, with the program's own directory on the path. What it does when it is imported it does once,
    /// without knowing a rank.
    #[must_use]
    pub fn import(mut self, module: impl Into<String>) -> Standbys {
        self.imports.push(module.into());
        self
    }

    /// How many wait, in place of as many as there are ranks. At most 64.
    #[must_use]
    pub const fn ahead(mut self, count: u32) -> Standbys {
        self.ahead = Some(count);
        self
    }

    /// How many run the program ahead of their rank, beside those that wait. Who takes a lost rank's place among others that train on
    /// is seated in one of them, with everything built: it is at its first step in milliseconds. Each costs the memory of a rank's
    /// state, so it is 1 unless told; say as many as ranks of one host may be lost at once, where there is no spare host. A host
    /// without ranks has one for each rank that it [may have to take](crate::launch::Launcher::prepare). At most 64.
    #[must_use]
    pub const fn parked(mut self, count: u32) -> Standbys {
        self.parked = count;
        self
    }

    /// How long after a start they are begun. Default: [`AFTER`](Standbys::AFTER).
    #[must_use]
    pub const fn after(mut self, after: Duration) -> Standbys {
        self.after = after;
        self
    }

    /// The variable's value for ranks of a framework that imports these modules and has these late variables.
    pub(super) fn value(&self, imports: &[&str], late: &[&str], shared: &[&str]) -> Option<String> {
        let mode = match self.from {
            From::Nowhere => return None,
            From::Template => StandbyMode::Template,
            From::Starts => StandbyMode::PreStarted,
        };
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let wish = Wish {
            mode,
            framework: owned(imports),
            imports: self.imports.clone(),
            late: owned(late),
            shared: owned(shared),
            ahead: self.ahead,
            parked: self.parked,
            after_ms: u64::try_from(self.after.as_millis()).unwrap_or(u64::MAX),
        };
        serde_json::to_string(&wish).ok()
    }
}

/// What stands in the variable.
#[derive(Debug, Serialize, Deserialize)]
struct Wish {
    mode: StandbyMode,
    framework: Vec<String>,
    imports: Vec<String>,
    late: Vec<String>,
    #[serde(default)]
    shared: Vec<String>,
    ahead: Option<u32>,
    parked: u32,
    after_ms: u64,
}

/// What a guard is told of a process with this command line and this variable; `own` are the launcher's late variables. `None`: no
/// standby may stand in for it.
pub(in crate::launch) fn told(value: &str, argv: &[String], own: &[&str]) -> Option<WireStandby> {
    let wish: Wish = serde_json::from_str(value).ok()?; // `none`, for instance
    let command = PythonCommand::of(argv)?;
    let held = match wish.mode {
        StandbyMode::Template => HELD.map(|name| (name.to_owned(), "1".to_owned())).into(),
        StandbyMode::PreStarted => BTreeMap::new(),
    };
    let own = own.iter().chain(&[ERROR_FILE, JOIN_VARIABLE]).map(|name| (*name).to_owned());
    Some(WireStandby {
        mode: wish.mode,
        probe: command.probe,
        fixed: command.fixed,
        script: command.script,
        framework: wish.framework,
        imports: wish.imports,
        late: wish.late.into_iter().chain(own).collect(),
        shared: wish.shared.into_iter().chain(SHARED.map(str::to_owned)).collect(),
        held,
        ahead: wish.ahead,
        parked: wish.parked,
        after_ms: wish.after_ms,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argv(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn what_is_wished_arrives_at_the_guard() {
        let wished = Standbys::template().import("mine").ahead(3).parked(2).after(Duration::ZERO);
        let value = wished.value(&["torch"], &["RANK"], &["SIZE"]).unwrap();
        let told = |line| told(&value, &argv(line), &["TASKD_RANK"]);
        let python = told("python -u train.py x").unwrap();
        assert_eq!(
            (python.fixed, python.script.as_deref(), python.ahead, python.parked, python.after_ms),
            (3, Some("train.py"), Some(3), 2, 0)
        );
        assert_eq!((&python.framework, &python.imports), (&argv("torch"), &argv("mine")));
        assert_eq!(python.late, argv("RANK TASKD_RANK TASKD_ERROR_FILE TASKD_JOIN"));
        assert!(python.shared.contains(&"SIZE".into()) && python.shared.contains(&"TASKD_WORLD_SIZE".into()));
        assert!(["OMP_NUM_THREADS", "RANK"].into_iter().all(|name| python.is_late(name)) && !python.is_late("HOME"));
        assert_eq!(told("sh -c python"), None);
    }

    #[test]
    fn none_and_what_is_no_wish_are_none() {
        assert_eq!(Standbys::none().value(&[], &[], &[]), None);
        for value in ["none", "", "{}", "[1"] {
            assert_eq!(told(value, &argv("python train.py"), &[]), None);
        }
        let started = Standbys::pre_started(2).value(&[], &[], &[]).unwrap();
        let started = told(&started, &argv("python train.py"), &[]).unwrap();
        assert!(started.held.is_empty() && started.ahead == Some(2), "it starts its own threads");
    }
}
