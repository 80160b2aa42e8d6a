//! Warm standbys: the configuration of a launcher of Python processes, and its transfer to the launcher below.
//!
//! This module starts no process. The request travels in the order's environment ([`VARIABLE`]), so that every launcher
//! between passes it on; the local launcher removes it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::command::PythonCommand;
use super::copies::COPY_TO_VARIABLE;
use crate::launch::JOIN_VARIABLE;
use crate::launch::guard::wire::{StandbyMode, WireStandby};

/// Variable of an order that describes the standbys that its process may use; `none` disables them.
pub(in crate::launch) const VARIABLE: &str = "TASKD_STANDBYS";
/// Variables from which libraries take their number of threads when they are loaded. A template has one thread.
const HELD: [&str; 3] = ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"];
/// The launcher's own variables that are the same for all ranks of a world, including ranks that join it later.
const SHARED: [&str; 7] = [
    "TASKD_JOB",
    "TASKD_JOB_NAME",
    "TASKD_RUN_DIR",
    "TASKD_HEARTBEAT_INTERVAL_MS",
    "TASKD_WORLD_SIZE",
    "TASKD_LOCAL_WORLD_SIZE",
    "TASKD_LIB",
];
/// A per-rank variable of every framework.
const ERROR_FILE: &str = "TASKD_ERROR_FILE";

/// Pre-started processes that have imported everything and wait to be assigned a rank. A rank that is assigned to one
/// runs its program some milliseconds later, unmodified and as `__main__`.
///
/// Only ranks whose command line is that of a Python interpreter (3.8 or later) have standbys, over a
/// [`LocalLauncher`](crate::launch::LocalLauncher) that has a guard. The first start of a job is a usual one. After it,
/// the standbys are made in the background, at low priority where the priority can be raised again later, and replaced
/// whenever some were assigned. A rank for which none is ready is started in the usual way, which is
/// [counted](crate::launch::guard::GuardCounters::standbys_missed). An order whose environment has
/// `TASKD_STANDBYS=none` has no standbys.
///
/// # What they cost
/// Memory for one interpreter with its imports and, while they start, some seconds of one core. Low priority does not
/// help where ranks keep all cores busy: a training of two ranks that keeps two cores busy takes 2.8 s longer, once
/// (`BENCHMARKS.md`: 16.4 s instead of 13.6 s for its first 400 steps; later steps take as long as without standbys).
///
/// # Which variables are set late
/// The variables that differ from rank to rank: those of the launcher (`TASKD_...`), and those that the framework
/// [names](super::Framework::per_rank_env). If any other variable, an argument before the program's own, the working
/// directory or the nice value differs, the standbys are ended and new ones are made, and that start is a usual one.
///
/// # What differs from a new process
/// Very little, and tests cover it: imported modules are already present; with hash randomisation (`PYTHONHASHSEED`
/// unset) the children of one template share their seed; objects from before the fork are excluded from garbage
/// collection (`gc.freeze`).
///
/// # When a template is refused
/// A template is refused if it has more than one thread, a context on a device, or an open descriptor that children
/// would share. Then these ranks have no standbys, and the runtime's log contains the reason.
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
    /// Default delay between a start of ranks and the start of their standbys, so that the started ranks have the host
    /// to themselves first.
    pub const AFTER: Duration = Duration::from_secs(2);

    const fn from(from: From) -> Standbys {
        Standbys { from, imports: Vec::new(), ahead: None, parked: 1, after: Standbys::AFTER }
    }

    /// Returns the configuration without standbys: every process of a rank is started in the usual way.
    #[must_use]
    pub const fn none() -> Standbys {
        Standbys::from(From::Nowhere)
    }

    /// Returns the configuration of standbys from a template. The template is one process with one thread: it imports
    /// the modules of the ranks, takes a first training step by itself if the framework supports that, and then forks
    /// the standbys, which share its memory. By default, as many standbys wait at one time as there are ranks.
    ///
    /// The template runs with `OMP_NUM_THREADS`, `MKL_NUM_THREADS` and `OPENBLAS_NUM_THREADS` of 1; a rank has the
    /// job's values, both in its environment and in the libraries.
    #[must_use]
    pub const fn template() -> Standbys {
        Standbys::from(From::Template)
    }

    /// Returns the configuration of standbys that are started one by one, for programs that a template cannot serve,
    /// such as those that use an accelerator, whose context does not survive a fork. `count` standbys wait at one time;
    /// number `n` has a context on the device of local rank `n`. Each standby costs the memory and start time of a
    /// separate interpreter.
    #[must_use]
    pub const fn pre_started(count: u32) -> Standbys {
        Standbys::from(From::Starts).ahead(count)
    }

    /// Adds a module that standbys also import in advance, with the program's own directory on the path. The import
    /// runs once, without a rank.
    #[must_use]
    pub fn import(mut self, module: impl Into<String>) -> Standbys {
        self.imports.push(module.into());
        self
    }

    /// Sets the number of standbys that wait for a rank at one time, in place of one standby per rank. At most 64.
    #[must_use]
    pub const fn ahead(mut self, count: u32) -> Standbys {
        self.ahead = Some(count);
        self
    }

    /// Sets the number of pre-warmed standbys, which run the program before they have a rank, in addition to the
    /// waiting ones. A replacement rank that joins ranks that continue is assigned to one of them; since everything is
    /// built already, it is at its first step within milliseconds. Each costs the memory of a rank's state, so the
    /// default is 1. Without a spare host, set it to the number of ranks that one host may lose at once. A host without
    /// ranks has one for each rank that it [may have to take](crate::launch::Launcher::prepare). At most 64.
    #[must_use]
    pub const fn parked(mut self, count: u32) -> Standbys {
        self.parked = count;
        self
    }

    /// Sets the delay between a start of ranks and the start of their standbys. Default: [`AFTER`](Standbys::AFTER).
    #[must_use]
    pub const fn after(mut self, after: Duration) -> Standbys {
        self.after = after;
        self
    }

    /// Returns the variable's value for ranks of a framework with these imports and these per-rank and per-world
    /// variables.
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

/// Content of the variable.
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

/// Returns the standby request that the guard receives for a process with this command line and this variable; `own`
/// are the launcher's per-rank variables. `None`: the process may not use a standby.
pub(in crate::launch) fn wire_of(value: &str, argv: &[String], own: &[&str]) -> Option<WireStandby> {
    let wish: Wish = serde_json::from_str(value).ok()?; // `none`, for example
    let command = PythonCommand::of(argv)?;
    let held = match wish.mode {
        StandbyMode::Template => HELD.map(|name| (name.to_owned(), "1".to_owned())).into(),
        StandbyMode::PreStarted => BTreeMap::new(),
    };
    let own = own.iter().chain(&[ERROR_FILE, JOIN_VARIABLE, COPY_TO_VARIABLE]).map(|name| (*name).to_owned());
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
    fn standby_settings_reach_the_guard() {
        let wished = Standbys::template().import("mine").ahead(3).parked(2).after(Duration::ZERO);
        let value = wished.value(&["torch"], &["RANK"], &["SIZE"]).unwrap();
        let wire = |line| wire_of(&value, &argv(line), &["TASKD_RANK"]);
        let python = wire("python -u train.py x").unwrap();
        assert_eq!(
            (python.fixed, python.script.as_deref(), python.ahead, python.parked, python.after_ms),
            (3, Some("train.py"), Some(3), 2, 0)
        );
        assert_eq!((&python.framework, &python.imports), (&argv("torch"), &argv("mine")));
        assert_eq!(python.late, argv("RANK TASKD_RANK TASKD_ERROR_FILE TASKD_JOIN TASKD_COPY_TO"));
        assert!(python.shared.contains(&"SIZE".into()) && python.shared.contains(&"TASKD_WORLD_SIZE".into()));
        assert!(["OMP_NUM_THREADS", "RANK"].into_iter().all(|name| python.is_late(name)) && !python.is_late("HOME"));
        assert_eq!(wire("sh -c python"), None);
    }

    #[test]
    fn none_and_what_is_no_wish_are_none() {
        assert_eq!(Standbys::none().value(&[], &[], &[]), None);
        for value in ["none", "", "{}", "[1"] {
            assert_eq!(wire_of(value, &argv("python train.py"), &[]), None);
        }
        let started = Standbys::pre_started(2).value(&[], &[], &[]).unwrap();
        let started = wire_of(&started, &argv("python train.py"), &[]).unwrap();
        assert!(started.held.is_empty() && started.ahead == Some(2), "it starts its own threads");
    }
}
