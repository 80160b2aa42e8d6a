//! Converts the kernel's orders into the guard's form: environments, hosts, processors.
//!
//! The conversion is pure: the properties of this process were read, and the ranks' library unpacked, once when the
//! launcher was built.

use super::builder::LocalLauncherBuilder;
use crate::job::{Affinity, InheritEnv, NodeId, Rank, WorkerSpec, World};
use crate::launch::guard::run_dir::proc_name;
use crate::launch::guard::tree::{JOB_MARK, PROC_MARK};
use crate::launch::guard::wire::{JobId, WireBatch, WireOrder, WireSpec};
use crate::launch::python::standbys;
use crate::launch::{LaunchError, Place, StartBatch, StartOrder};
use crate::worker::library;
use rustix::thread::CpuSet;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Prefix of the runtime's own variables, which are never inherited.
const OWN_PREFIX: &str = "TASKD_";
/// Variable with the path of the library that records for a rank.
const LIBRARY: &str = "TASKD_LIB";
/// Variables that the launcher itself sets: a user's own value would only confuse one job with another.
const OWN: [&str; 18] = [
    JOB_MARK,
    PROC_MARK,
    "TASKD_JOB_NAME",
    "TASKD_RANK",
    "TASKD_WORLD_SIZE",
    "TASKD_LOCAL_RANK",
    "TASKD_LOCAL_WORLD_SIZE",
    "TASKD_GENERATION",
    "TASKD_INCARNATION",
    "TASKD_RESTARTS",
    "TASKD_RUN_DIR",
    "TASKD_LIFELINE",
    "TASKD_HEARTBEAT_INTERVAL_MS",
    "TASKD_CONTROL",
    "TASKD_LISTEN_FD",
    "TASKD_HANDOFF",
    "TASKD_IN_MEMORY_CHECKPOINT",
    LIBRARY,
];

/// The inputs for building orders, besides the orders themselves.
#[derive(Clone, Debug)]
pub(super) struct Ground {
    pub(super) node: NodeId,
    pub(super) slots: u32,
    /// Environment of this process, without the runtime's own variables.
    inherited: BTreeMap<String, String>,
    /// Number of variables that are not passed on because they are not UTF-8.
    pub(super) env_not_utf8: u64,
    cwd: PathBuf,
    cpus: Vec<u16>,
    job_name: String,
    run_dir: String,
    beat_ms: String,
    /// Path of the recorder library for ranks, if it could be unpacked.
    library: Option<String>,
}

impl Ground {
    pub(super) fn of_this_process(config: &LocalLauncherBuilder, node: NodeId, run_dir: &Path) -> io::Result<Ground> {
        let mut env_not_utf8 = 0;
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            let text = name.into_string().ok().zip(value.into_string().ok());
            env_not_utf8 += u64::from(text.is_none());
            text.filter(|(name, _)| !name.starts_with(OWN_PREFIX))
        };
        let inherited = std::env::vars_os().filter_map(text).collect();
        let set = rustix::thread::sched_getaffinity(None)?;
        let cpus =
            (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).filter_map(|cpu| u16::try_from(cpu).ok()).collect();
        Ok(Ground {
            node,
            slots: config.slots,
            inherited,
            env_not_utf8,
            cwd: std::env::current_dir()?,
            cpus,
            job_name: config.job_name.to_string(),
            run_dir: run_dir.display().to_string(),
            beat_ms: config.beat_every.as_millis().max(1).to_string(),
            library: unpacked_library(),
        })
    }

    /// Returns the directory of the processes' output.
    pub(super) fn output_dir(&self) -> PathBuf {
        Path::new(&self.run_dir).join("procs")
    }

    /// Converts a batch into the form that the guard accepts.
    pub(super) fn batch(&self, job: &JobId, batch: &StartBatch) -> Result<WireBatch, LaunchError> {
        let world = batch.layout(&batch.world);
        let local = self.local_ranks(&world);
        let mut specs: Vec<(&Arc<WorkerSpec>, WireSpec)> = Vec::new();
        let mut orders = Vec::new();
        for order in &batch.starts {
            self.check(order)?;
            let known = specs.iter().position(|(spec, _)| Arc::ptr_eq(spec, &order.spec) || *spec == &order.spec);
            let spec = match known {
                Some(index) => index,
                None => {
                    specs.push((&order.spec, self.spec(order)?));
                    specs.len() - 1
                }
            };
            orders.push(WireOrder {
                proc: order.proc.clone(),
                generation: batch.world.generation().0,
                spec,
                env: self.own_variables(job, order, &world, &local),
                cpus: self.cpus_of(order, &local),
            });
        }
        Ok(WireBatch { specs: specs.into_iter().map(|(_, spec)| spec).collect(), orders })
    }

    fn check(&self, order: &StartOrder) -> Result<(), LaunchError> {
        let here = match &order.place {
            Place::On(node) => *node == self.node,
            Place::AnyBut(others) => !others.contains(&self.node),
            _ => false,
        };
        let refuse = |text: String| Err(LaunchError::Refused(format!("{}: {text}", order.proc)));
        if !here {
            return refuse(format!("it is to run on another host, but this launcher has only {}", self.node));
        }
        if let Some(name) = order.spec.env.keys().find(|name| OWN.contains(&name.as_str())) {
            return refuse(format!("its environment sets {name}, which the launcher sets itself: leave it out"));
        }
        Ok(())
    }

    fn spec(&self, order: &StartOrder) -> Result<WireSpec, LaunchError> {
        let spec = &*order.spec;
        let mut env: BTreeMap<String, String> = match &spec.inherit {
            InheritEnv::All => self.inherited.clone(),
            InheritEnv::Nothing => BTreeMap::new(),
            InheritEnv::Only(names) => {
                self.inherited.iter().filter(|(n, _)| names.contains(*n)).map(|(n, v)| (n.clone(), v.clone())).collect()
            }
        };
        env.extend(spec.env.clone());
        let cwd = spec.cwd.as_ref().map_or_else(|| self.cwd.clone(), |cwd| self.cwd.join(cwd));
        if cwd.to_str().is_none() {
            let text = format!("{}: the name of its working directory {} is not UTF-8", order.proc, cwd.display());
            return Err(LaunchError::Refused(text));
        }
        let log = spec.log.as_ref().map(|log| cwd.join(log));
        let standbys = env.remove(standbys::VARIABLE);
        let standby = standbys.and_then(|wished| standbys::wire_of(&wished, &spec.argv, &OWN));
        let listen = spec.listen.as_ref().map(|path| cwd.join(path));
        let secrets = spec.secrets.clone();
        Ok(WireSpec { argv: spec.argv.clone(), env, cwd, nice: spec.nice, log, listen, standby, secrets })
    }

    /// Returns the variables in which the launcher describes itself and the job to a process.
    fn own_variables(
        &self,
        job: &JobId,
        order: &StartOrder,
        world: &World,
        local: &[Rank],
    ) -> BTreeMap<String, String> {
        let mut env: BTreeMap<String, String> = BTreeMap::new();
        let mut set = |name: &str, value: String| env.insert(name.to_owned(), value);
        set(JOB_MARK, job.0.clone());
        set(PROC_MARK, proc_name(&order.proc));
        set("TASKD_JOB_NAME", self.job_name.clone());
        set("TASKD_RUN_DIR", self.run_dir.clone());
        set("TASKD_HEARTBEAT_INTERVAL_MS", self.beat_ms.clone());
        set("TASKD_GENERATION", world.generation().0.to_string());
        set("TASKD_INCARNATION", order.proc.incarnation.0.to_string());
        set("TASKD_RESTARTS", world.restarts().to_string());
        set("TASKD_WORLD_SIZE", world.places().count().to_string());
        set("TASKD_LOCAL_WORLD_SIZE", local.len().to_string());
        if let Some(rank) = order.proc.role.rank() {
            set("TASKD_RANK", rank.0.to_string());
            if let Some(index) = local.iter().position(|r| *r == rank) {
                set("TASKD_LOCAL_RANK", index.to_string());
            }
        }
        let wants_hooks = order.spec.env.get("TASKD_HOOKS").is_none_or(|hooks| hooks != "0");
        if let Some(library) = self.library.as_ref().filter(|_| wants_hooks) {
            set(LIBRARY, library.clone());
        }
        env
    }

    /// Returns the ranks of this host in order, including absent ones.
    fn local_ranks(&self, world: &World) -> Vec<Rank> {
        let here = |node: &Option<NodeId>| node.as_ref().is_none_or(|node| *node == self.node);
        world.places().filter(|(_, member)| here(&member.node)).map(|(rank, _)| rank).collect()
    }

    fn cpus_of(&self, order: &StartOrder, local: &[Rank]) -> Option<Vec<u16>> {
        match &order.spec.affinity {
            Affinity::Inherit => None,
            Affinity::Cpus(cpus) => Some(cpus.iter().copied().collect()),
            Affinity::Spread => {
                let index = order.proc.role.rank().and_then(|rank| local.iter().position(|r| *r == rank))?;
                Some(share(&self.cpus, index, local.len()))
            }
        }
    }
}

/// Unpacks the recorder library for ranks, and returns its path. `None` if that fails: ranks are then started without
/// it.
fn unpacked_library() -> Option<String> {
    let path = library::unpack().and_then(|path| {
        path.into_os_string().into_string().map_err(|path| io::Error::other(format!("{path:?} is not UTF-8")))
    });
    path.inspect_err(|error| tracing::warn!(%error, "ranks record nothing: libtaskd.so cannot be unpacked")).ok()
}

/// Returns the processors of `cpus` for the process with this index out of `among`: even parts in order, or one
/// processor in rotation if there are fewer processors than processes.
fn share(cpus: &[u16], index: usize, among: usize) -> Vec<u16> {
    let n = cpus.len();
    match n {
        0 => Vec::new(),
        _ if among > n => vec![cpus[index % n]],
        _ => cpus[index * n / among..(index + 1) * n / among].to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_split_evenly_in_order() {
        let cpus = [0, 1, 2, 5, 6, 7, 8, 9];
        let parts: Vec<Vec<u16>> = (0..3).map(|i| share(&cpus, i, 3)).collect();
        assert_eq!(parts, [vec![0, 1], vec![2, 5, 6], vec![7, 8, 9]]);
        assert_eq!((share(&[0, 1], 2, 4), share(&[0, 1], 3, 4)), (vec![0], vec![1]));
        assert!(share(&[], 0, 1).is_empty());
    }
}
