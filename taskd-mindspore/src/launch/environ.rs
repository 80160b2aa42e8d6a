//! msrun's environment for scheduler and workers, variable by variable.
//!
//! The functions are pure: the needed parts of this process's own environment were read when the launcher was created.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

use taskd_core::job::{ErrorReport, Name, Role, Termination, World};
use taskd_core::launch::python::{Failure, Framework, LaunchContext, PythonFile, WorkerRanks, host_of};

use super::SCHEDULER;
use super::files::PYTHON_FILES;
use crate::error::report;

/// SIGTERM, with which MindSpore's workers end themselves after losing their scheduler.
const SIGTERM: i32 = 15;

/// The MindSpore framework: its properties, and the settings for the environment variables and logs of its processes.
#[derive(Clone, Debug)]
pub struct MindSpore {
    sched_host: Option<String>,
    /// Time that scheduler and workers wait for each other, in seconds.
    cluster_time_out_s: u32,
    log_dir: Option<PathBuf>,
    worker_log_name: String,
}

impl Default for MindSpore {
    fn default() -> MindSpore {
        let worker_log_name = "worker_${rank}".to_owned();
        MindSpore { sched_host: None, cluster_time_out_s: 600, log_dir: None, worker_log_name }
    }
}

impl MindSpore {
    /// Also writes the output of MindSpore's processes to files in the directory `dir`, with msrun's names, such as
    /// `scheduler.log` and `worker_3.log`. When a process is started again, its previous file is kept with the suffix
    /// `.1`. Default: only the underlying launcher writes the output.
    #[must_use]
    pub fn log_dir(mut self, dir: impl Into<PathBuf>) -> MindSpore {
        let dir = dir.into();
        let dir = std::path::absolute(&dir).unwrap_or(dir); // ranks may run in another directory
        self.log_dir = Some(dir);
        self
    }

    /// Sets the name of the workers' log files, without `.log` (msrun's `--worker_log_name`). In it, `${rank}` and
    /// `${local_rank}` stand for the numbers of the worker. Default: `worker_${rank}`.
    #[must_use]
    pub fn worker_log_name(mut self, name: impl Into<String>) -> MindSpore {
        self.worker_log_name = name.into();
        self
    }

    /// Sets the environment variable `MS_SCHED_HOST` of the processes. MindSpore requires an IP address, not a name.
    /// Default: the name of the first rank's host if the ranks are on several hosts, otherwise the loopback address.
    #[must_use]
    pub fn sched_host(mut self, address: impl Into<String>) -> MindSpore {
        self.sched_host = Some(address.into());
        self
    }

    /// Sets the time that scheduler and workers wait for each other at their start before they abort
    /// (`MS_TOPO_TIMEOUT`, msrun's `--cluster_time_out`), in whole seconds. Default: 600 s.
    #[must_use]
    pub fn cluster_time_out(mut self, time: Duration) -> MindSpore {
        self.cluster_time_out_s = u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
        self
    }

    /// Returns the environment variables that the scheduler and the workers have in common.
    fn cluster(&self, order: &LaunchContext<'_>, own: &[(&str, &dyn Display)]) -> BTreeMap<String, String> {
        let ranks = order.world.places().count();
        let world: [(&str, &dyn Display); 5] = [
            ("MS_WORKER_NUM", &ranks),
            ("RANK_SIZE", &ranks),
            ("MS_SCHED_HOST", &self.rendezvous_host(order.world)),
            ("MS_SCHED_PORT", &order.port),
            ("MS_TOPO_TIMEOUT", &self.cluster_time_out_s),
        ];
        world.iter().chain(own).map(|(name, value)| ((*name).to_owned(), value.to_string())).collect()
    }
}

impl Framework for MindSpore {
    fn name(&self) -> &'static str {
        "mindspore"
    }

    fn files(&self) -> &[PythonFile] {
        PYTHON_FILES
    }

    fn rank_env(&self, seat: &WorkerRanks, order: &LaunchContext<'_>) -> BTreeMap<String, String> {
        // As in msrun: a host has a number only if there are several.
        let node: &dyn Display = if seat.group_world_size > 1 { &seat.group_rank } else { &-1 };
        self.cluster(
            order,
            &[
                ("MS_ROLE", &"MS_WORKER"),
                ("MS_NODE_ID", &seat.rank), // without it, ranks would be numbered in order of arrival
                ("MS_NODE_RANK", node),
                ("RANK_ID", &seat.rank),
                ("DEVICE_ID", &seat.local_rank),
            ],
        )
    }

    fn manages_service(&self, service: &Name) -> bool {
        *service == SCHEDULER
    }

    fn service_env(&self, order: &LaunchContext<'_>) -> BTreeMap<String, String> {
        self.cluster(order, &[("MS_ROLE", &"MS_SCHED"), ("RANK_ID", &0)])
    }

    fn rendezvous_host(&self, world: &World) -> String {
        self.sched_host.clone().unwrap_or_else(|| host_of(world))
    }

    fn host_variable(&self) -> Option<&'static str> {
        Some("MS_SCHED_HOST")
    }

    fn log_path(&self, role: &Role, seat: Option<&WorkerRanks>) -> Option<PathBuf> {
        let name = match (role, seat) {
            (Role::Service(_), _) => "scheduler".to_owned(),
            (Role::Rank(_), Some(seat)) => {
                let rank = self.worker_log_name.replace("${rank}", &seat.rank.to_string());
                rank.replace("${local_rank}", &seat.local_rank.to_string())
            }
            (Role::Rank(_), None) => return None,
        };
        Some(self.log_dir.as_ref()?.join(format!("{name}.log")))
    }

    fn is_explained(&self, how: Termination) -> bool {
        matches!(how, Termination::Code(_) | Termination::Signal { number: SIGTERM, .. })
    }

    fn report(&self, failure: &Failure<'_>) -> Option<ErrorReport> {
        report(failure)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use taskd_core::job::{Incarnation, Member, NodeId, ProcId, Rank, WorkerSpec, World};
    use taskd_core::launch::python::{Inherited, seats};

    use super::*;

    fn world(nodes: &[Option<&'static str>]) -> World {
        let member = |node: &Option<&'static str>| Member {
            incarnation: Incarnation(1),
            node: node.map(|node| NodeId(Name::new(node))),
            device: None,
        };
        World::first((0..).map(Rank).zip(nodes.iter().map(member)).collect())
    }

    fn of(mindspore: &MindSpore, world: &World, proc: &ProcId) -> BTreeMap<String, String> {
        let (spec, environment) = (WorkerSpec::new(["python"]), Inherited::default());
        let order = LaunchContext::new(proc, &spec, world, 8_118, Path::new("/errors/it.json"), &environment);
        match proc.role.rank() {
            Some(rank) => mindspore.rank_env(&seats(world)[&rank], &order),
            None => mindspore.service_env(&order),
        }
    }

    fn text<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
    }

    #[test]
    fn a_worker_sees_what_msrun_would_set() {
        let env = of(&MindSpore::default(), &world(&[None, None]), &ProcId::rank(1, 1));
        let expected = text([
            ("MS_WORKER_NUM", "2"),
            ("RANK_SIZE", "2"),
            ("MS_SCHED_HOST", "127.0.0.1"),
            ("MS_SCHED_PORT", "8118"),
            ("MS_TOPO_TIMEOUT", "600"),
            ("MS_ROLE", "MS_WORKER"),
            ("MS_NODE_ID", "1"),
            ("MS_NODE_RANK", "-1"),
            ("RANK_ID", "1"),
            ("DEVICE_ID", "1"),
        ]);
        assert_eq!(env, expected);
    }

    #[test]
    fn on_several_hosts_devices_are_counted_on_each() {
        let env = of(&MindSpore::default(), &world(&[Some("a"), Some("a"), Some("b")]), &ProcId::rank(2, 1));
        let seen = ["MS_NODE_ID", "MS_NODE_RANK", "DEVICE_ID", "MS_SCHED_HOST"].map(|name| env[name].as_str());
        assert_eq!(seen, ["2", "1", "0", "a"]);
    }

    #[test]
    fn the_scheduler_has_no_rank_of_its_own() {
        let spec = MindSpore { sched_host: Some("10.0.0.1".into()), cluster_time_out_s: 60, ..MindSpore::default() };
        let expected = text([
            ("MS_WORKER_NUM", "3"),
            ("RANK_SIZE", "3"),
            ("MS_SCHED_HOST", "10.0.0.1"),
            ("MS_SCHED_PORT", "8118"),
            ("MS_TOPO_TIMEOUT", "60"),
            ("MS_ROLE", "MS_SCHED"),
            ("RANK_ID", "0"),
        ]);
        assert_eq!(of(&spec, &world(&[None; 3]), &ProcId::service(SCHEDULER, 1)), expected);
    }

    #[test]
    fn logs_have_msruns_names_in_one_directory() {
        let world = world(&[None, None]);
        let seat = seats(&world)[&Rank(1)];
        let logging = MindSpore { log_dir: Some("logs".into()), ..MindSpore::default() };
        let (rank, scheduler) = (Role::Rank(Rank(1)), Role::Service(SCHEDULER));
        assert_eq!(logging.log_path(&rank, Some(&seat)), Some("logs/worker_1.log".into()));
        assert_eq!(logging.log_path(&scheduler, None), Some("logs/scheduler.log".into()));
        assert_eq!(MindSpore::default().log_path(&rank, Some(&seat)), None);
    }
}
