//! torchrun's worker environment, variable by variable.
//!
//! The functions are pure: the needed parts of this process's own environment were read when the launcher was created.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;

use taskd_core::job::{ErrorReport, World};
use taskd_core::launch::python::{
    Failure, Framework, LaunchContext, PythonFile, Rendezvous, Standbys, WorkerRanks, host_of,
};

use super::files::PYTHON_FILES;
use super::meeting::StoreMeeting;
use crate::error::report;

/// torchrun's role name for workers without one.
const ROLE: &str = "default";

const THREADS: &str = "OMP_NUM_THREADS";
/// Makes glibc allocate in huge pages. A process that has imported torch and has its state in huge pages frees them in
/// a fraction of the time when it dies, and its replacement has to wait for that. On systems that never use such pages
/// this has no effect.
const MALLOC: (&str, &str) = ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");
/// Modules that almost every PyTorch program imports.
const IMPORTS: [&str; 4] = ["torch", "torch.distributed", "torch.nn.parallel", "torch.utils.data"];
/// The variables of torchrun's contract that differ between ranks or generations.
const LATE: [&str; 12] = [
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "RANK",
    "WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_ERROR_FILE",
];
/// Those of them that are the same for all ranks of a world.
const SHARED: [&str; 5] = ["LOCAL_WORLD_SIZE", "WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR"];
/// Device files whose presence shows that torch has an accelerator here, whose context does not survive a fork.
const ACCELERATORS: [&str; 3] = ["/dev/nvidiactl", "/dev/kfd", "/dev/davinci_manager"];
const ERROR_HANDLING: &str = "TORCH_NCCL_ASYNC_ERROR_HANDLING";

/// The PyTorch framework: its properties, and the settings for the environment variables of its ranks.
#[derive(Clone, Debug)]
pub struct Torch {
    run_id: String,
    max_restarts: u32,
    master_addr: Option<String>,
}

impl Default for Torch {
    fn default() -> Torch {
        Torch { run_id: "none".into(), max_restarts: 10, master_addr: None }
    }
}

impl Torch {
    /// Sets the environment variable `TORCHELASTIC_RUN_ID` of the ranks. Default: `none`, as in torchrun.
    #[must_use]
    pub fn run_id(mut self, id: impl Into<String>) -> Torch {
        self.run_id = id.into();
        self
    }

    /// Sets the environment variable `TORCHELASTIC_MAX_RESTARTS` of the ranks, for training programs that read the
    /// variable. It does not limit the restarts that taskd makes. Default: 10.
    #[must_use]
    pub const fn max_restarts(mut self, restarts: u32) -> Torch {
        self.max_restarts = restarts;
        self
    }

    /// Sets the environment variable `MASTER_ADDR` of the ranks. Default: the name of the first rank's host if the
    /// ranks are on several hosts, otherwise the loopback address.
    #[must_use]
    pub fn master_addr(mut self, addr: impl Into<String>) -> Torch {
        self.master_addr = Some(addr.into());
        self
    }
}

impl Framework for Torch {
    fn name(&self) -> &'static str {
        "torch"
    }

    fn files(&self) -> &[PythonFile] {
        PYTHON_FILES
    }

    fn inherited_variables(&self) -> &[&'static str] {
        &[THREADS, ERROR_HANDLING, MALLOC.0]
    }

    /// Returns warm standbys from a template process if this host has no accelerator; otherwise none, and the user has
    /// to choose.
    fn standbys(&self) -> Standbys {
        let is_there = |path: &&str| Path::new(path).exists();
        if ACCELERATORS.iter().any(is_there) { Standbys::none() } else { Standbys::template() }
    }

    fn imports(&self) -> &[&'static str] {
        &IMPORTS
    }

    fn per_rank_env(&self) -> &[&'static str] {
        &LATE
    }

    fn per_world_env(&self) -> &[&'static str] {
        &SHARED
    }

    fn rank_env(&self, seat: &WorkerRanks, order: &LaunchContext<'_>) -> BTreeMap<String, String> {
        let ranks = order.world.places().count();
        let values: [(&str, &dyn Display); 17] = [
            ("LOCAL_RANK", &seat.local_rank),
            ("LOCAL_WORLD_SIZE", &seat.local_world_size),
            ("RANK", &seat.rank),
            ("WORLD_SIZE", &ranks),
            ("GROUP_RANK", &seat.group_rank),
            ("GROUP_WORLD_SIZE", &seat.group_world_size),
            ("ROLE_RANK", &seat.rank),
            ("ROLE_WORLD_SIZE", &ranks),
            ("ROLE_NAME", &ROLE),
            ("MASTER_ADDR", &self.rendezvous_host(order.world)),
            ("MASTER_PORT", &order.port),
            ("TORCHELASTIC_RESTART_COUNT", &order.world.restarts()),
            ("TORCHELASTIC_MAX_RESTARTS", &self.max_restarts),
            ("TORCHELASTIC_RUN_ID", &self.run_id),
            ("TORCHELASTIC_ERROR_FILE", &order.error_file.display()), // for torch's own `@record`
            // torch compares with exactly `True`; any other value makes rank 0's worker host the store.
            ("TORCHELASTIC_USE_AGENT_STORE", if order.is_served { &"True" } else { &"False" }),
            (ERROR_HANDLING, &order.inherited(ERROR_HANDLING).unwrap_or("1")),
        ];
        let mut env: BTreeMap<_, _> =
            values.into_iter().map(|(name, value)| (name.to_owned(), value.to_string())).collect();
        // Variables that torchrun sets only if they are not set yet.
        if seat.local_world_size > 1 && order.inherited(THREADS).is_none() {
            env.insert(THREADS.to_owned(), "1".to_owned());
        }
        if order.inherited(MALLOC.0).is_none() {
            env.insert(MALLOC.0.to_owned(), MALLOC.1.to_owned());
        }
        env
    }

    fn rendezvous(&self) -> Option<&dyn Rendezvous> {
        Some(&StoreMeeting)
    }

    fn rendezvous_host(&self, world: &World) -> String {
        self.master_addr.clone().unwrap_or_else(|| host_of(world))
    }

    fn host_variable(&self) -> Option<&'static str> {
        Some("MASTER_ADDR")
    }

    fn report(&self, failure: &Failure<'_>) -> Option<ErrorReport> {
        report(failure.record, failure.stderr_tail)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use taskd_core::job::{Counted, Incarnation, InheritEnv, Member, Name, NodeId, ProcId, Rank, WorkerSpec, World};
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

    fn completed(
        torch: &Torch,
        world: &World,
        rank: u32,
        spec: &WorkerSpec,
        environment: &Inherited,
    ) -> BTreeMap<String, String> {
        let proc = ProcId::rank(rank, 1);
        let order = LaunchContext::new(&proc, spec, world, 29_501, Path::new("/errors/it.json"), environment);
        torch.rank_env(&seats(world)[&Rank(rank)], &order)
    }

    fn of(world: &World, rank: u32) -> BTreeMap<String, String> {
        completed(&Torch::default(), world, rank, &WorkerSpec::new(["python"]), &Inherited::default())
    }

    #[test]
    fn two_hosts_of_different_size() {
        let world = world(&[Some("b"), Some("b"), Some("a"), Some("b")]);
        let env = of(&world, 3);
        let expected = [
            ("LOCAL_RANK", "2"),
            ("LOCAL_WORLD_SIZE", "3"),
            ("RANK", "3"),
            ("WORLD_SIZE", "4"),
            ("GROUP_RANK", "0"),
            ("GROUP_WORLD_SIZE", "2"),
            ("ROLE_RANK", "3"),
            ("ROLE_WORLD_SIZE", "4"),
            ("ROLE_NAME", "default"),
            ("MASTER_ADDR", "b"),
            ("MASTER_PORT", "29501"),
            ("TORCHELASTIC_RESTART_COUNT", "0"),
            ("TORCHELASTIC_MAX_RESTARTS", "10"),
            ("TORCHELASTIC_RUN_ID", "none"),
            ("TORCHELASTIC_ERROR_FILE", "/errors/it.json"),
            ("TORCHELASTIC_USE_AGENT_STORE", "False"),
            ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
            ("OMP_NUM_THREADS", "1"),
            ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"),
        ];
        assert_eq!(env, expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
        let other = of(&world, 2);
        assert_eq!((&*other["LOCAL_RANK"], &*other["LOCAL_WORLD_SIZE"], &*other["GROUP_RANK"]), ("0", "1", "1"));
    }

    #[test]
    fn rank_in_a_shrunk_world_has_its_own_number_and_restart_count() {
        let world = world(&[None; 4]).successor(Counted::Yes, |members| drop(members.remove(&Rank(1))));
        let env = of(&world, 3);
        assert_eq!((&*env["RANK"], &*env["WORLD_SIZE"], &*env["LOCAL_RANK"]), ("3", "4", "3"));
        assert_eq!((&*env["TORCHELASTIC_RESTART_COUNT"], &*env["MASTER_ADDR"]), ("1", "127.0.0.1"));
        assert_eq!(world.successor(Counted::No, |_| ()).restarts(), 1, "a lost race for the port does not count");
    }

    #[test]
    fn master_address_on_one_host_is_loopback_unless_configured() {
        let world = world(&[Some("a"), Some("a")]);
        assert_eq!(of(&world, 0)["MASTER_ADDR"], "127.0.0.1");
        let spec = Torch { master_addr: Some("10.0.0.1".into()), ..Torch::default() };
        let env = completed(&spec, &world, 0, &WorkerSpec::new(["python"]), &Inherited::default());
        assert_eq!(env["MASTER_ADDR"], "10.0.0.1");
    }

    #[test]
    fn variables_are_inherited_as_the_specification_permits() {
        let set = Inherited::from_iter([(THREADS, "8"), (ERROR_HANDLING, "3"), (MALLOC.0, "glibc.malloc.check=3")]);
        let all = WorkerSpec::new(["python"]);
        let nothing = all.clone().with_inherit(InheritEnv::Nothing);
        let of = |ranks: usize, spec: &WorkerSpec| {
            let mut env = completed(&Torch::default(), &world(&vec![None; ranks]), 0, spec, &set);
            (env.remove(THREADS), env.remove(ERROR_HANDLING), env.remove(MALLOC.0))
        };
        let text = |text: &str| Some(text.to_owned());
        let usual = text(MALLOC.1);
        assert_eq!(of(2, &all), (None, text("3"), None));
        assert_eq!(of(2, &nothing), (text("1"), text("1"), usual.clone()));
        assert_eq!(of(1, &nothing), (None, text("1"), usual), "a single worker may use the whole machine");
    }
}
