//! torchrun's worker environment, variable by variable.
//!
//! Pure: what it needs of this process's own environment was read when the launcher was made.

use std::collections::BTreeMap;
use std::fmt::Display;

use taskd_core::job::{InheritEnv, NodeId, Rank, WorkerSpec, World};

/// torchrun's name for workers that were given none.
const ROLE: &str = "default";

/// What the variables are made from, besides the world.
#[derive(Debug)]
pub(super) struct Contract {
    pub(super) run_id: String,
    pub(super) max_restarts: u32,
    pub(super) master_addr: Option<String>,
}

impl Default for Contract {
    fn default() -> Contract {
        Contract { run_id: "none".into(), max_restarts: 10, master_addr: None }
    }
}

/// Where a rank sits in its world, as torchrun counts: without gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seat {
    pub(super) rank: usize,
    pub(super) local_rank: usize,
    pub(super) local_world_size: usize,
    pub(super) group_rank: usize,
    pub(super) group_world_size: usize,
}

/// The seats of all ranks. Hosts are counted in the order of their first ranks.
pub(super) fn seats(world: &World) -> BTreeMap<Rank, Seat> {
    let mut hosts: BTreeMap<Option<&NodeId>, (usize, usize)> = BTreeMap::new(); // group rank, ranks so far
    let mut seats = BTreeMap::new();
    for (rank, (name, member)) in world.members().iter().enumerate() {
        let next = hosts.len();
        let (group_rank, ranks) = hosts.entry(member.node.as_ref()).or_insert((next, 0));
        seats.insert(
            *name,
            Seat { rank, local_rank: *ranks, local_world_size: 0, group_rank: *group_rank, group_world_size: 0 },
        );
        *ranks += 1;
    }
    let sizes: BTreeMap<usize, usize> = hosts.values().copied().collect();
    for seat in seats.values_mut() {
        seat.local_world_size = sizes.get(&seat.group_rank).copied().unwrap_or_default();
        seat.group_world_size = sizes.len();
    }
    seats
}

impl Contract {
    /// Everything but the error file, the Python path and what depends on the inherited environment.
    pub(super) fn variables(&self, world: &World, seat: &Seat, port: u16) -> BTreeMap<String, String> {
        let values: [(&str, &dyn Display); 16] = [
            ("LOCAL_RANK", &seat.local_rank),
            ("LOCAL_WORLD_SIZE", &seat.local_world_size),
            ("RANK", &seat.rank),
            ("WORLD_SIZE", &world.size()),
            ("GROUP_RANK", &seat.group_rank),
            ("GROUP_WORLD_SIZE", &seat.group_world_size),
            ("ROLE_RANK", &seat.rank),
            ("ROLE_WORLD_SIZE", &world.size()),
            ("ROLE_NAME", &ROLE),
            ("MASTER_ADDR", &self.master_addr_in(world)),
            ("MASTER_PORT", &port),
            ("TORCHELASTIC_RESTART_COUNT", &world.restarts()),
            ("TORCHELASTIC_MAX_RESTARTS", &self.max_restarts),
            ("TORCHELASTIC_RUN_ID", &self.run_id),
            // torch compares with exactly `True`; anything else lets rank 0's worker host the store.
            ("TORCHELASTIC_USE_AGENT_STORE", &"False"),
            ("TORCH_NCCL_ASYNC_ERROR_HANDLING", &"1"),
        ];
        values.into_iter().map(|(name, value)| (name.to_owned(), value.to_string())).collect()
    }

    /// Where rank 0 is: its host's name, or loopback where all ranks are on one host.
    fn master_addr_in(&self, world: &World) -> String {
        let mut nodes = world.members().values().map(|member| member.node.as_ref());
        let first = nodes.next().flatten();
        let several = nodes.any(|node| node != first);
        let name = first.filter(|_| several).map(|node| node.0.to_string());
        self.master_addr.clone().or(name).unwrap_or_else(|| "127.0.0.1".to_owned())
    }
}

/// Variables of this process's environment on which those of its ranks depend.
#[derive(Debug, Default)]
pub(super) struct Inherited(BTreeMap<String, String>);

impl Inherited {
    pub(super) fn of_this_process() -> Inherited {
        let names = ["PYTHONPATH", "OMP_NUM_THREADS", "TORCH_NCCL_ASYNC_ERROR_HANDLING"];
        let value = |name: &str| std::env::var(name).ok().map(|value| (name.to_owned(), value));
        Inherited(names.into_iter().filter_map(value).collect())
    }

    /// The value that a process of this specification would inherit.
    fn get(&self, spec: &WorkerSpec, name: &str) -> Option<&String> {
        let passes = match &spec.inherit {
            InheritEnv::All => true,
            InheritEnv::Nothing => false,
            InheritEnv::Only(names) => names.contains(name),
        };
        self.0.get(name).filter(|_| passes)
    }

    /// What torchrun sets only where nobody else has.
    pub(super) fn defaults(&self, spec: &WorkerSpec, seat: &Seat) -> BTreeMap<String, String> {
        let mut defaults = BTreeMap::new();
        if let Some(handling) = self.get(spec, "TORCH_NCCL_ASYNC_ERROR_HANDLING") {
            defaults.insert("TORCH_NCCL_ASYNC_ERROR_HANDLING".into(), handling.clone());
        }
        if seat.local_world_size > 1 && self.get(spec, "OMP_NUM_THREADS").is_none() {
            defaults.insert("OMP_NUM_THREADS".into(), "1".into());
        }
        defaults
    }

    /// The rank's PYTHONPATH, with the helper in front.
    pub(super) fn python_path(&self, spec: &WorkerSpec, helper: &dyn Display) -> String {
        let name = "PYTHONPATH";
        match spec.env.get(name).or_else(|| self.get(spec, name)).filter(|path| !path.is_empty()) {
            Some(path) => format!("{helper}:{path}"),
            None => helper.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use taskd_core::job::{Counted, Incarnation, Member, Name};

    use super::*;

    fn world(nodes: &[Option<&'static str>]) -> World {
        let member = |node: &Option<&'static str>| Member {
            incarnation: Incarnation(1),
            node: node.map(|node| NodeId(Name::new(node))),
            device: None,
        };
        World::first((0..).map(Rank).zip(nodes.iter().map(member)).collect())
    }

    fn of(world: &World, rank: u32) -> BTreeMap<String, String> {
        Contract::default().variables(world, &seats(world)[&Rank(rank)], 29_501)
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
            ("TORCHELASTIC_USE_AGENT_STORE", "False"),
            ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        ];
        assert_eq!(env, expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
        let other = of(&world, 2);
        assert_eq!((&*other["LOCAL_RANK"], &*other["LOCAL_WORLD_SIZE"], &*other["GROUP_RANK"]), ("0", "1", "1"));
    }

    #[test]
    fn a_shrunk_world_has_no_gaps_and_counts_its_restarts() {
        let world = world(&[None; 4]).successor(Counted::Yes, |members| drop(members.remove(&Rank(1))));
        let env = of(&world, 3);
        assert_eq!((&*env["RANK"], &*env["WORLD_SIZE"], &*env["LOCAL_RANK"]), ("2", "3", "2"));
        assert_eq!((&*env["TORCHELASTIC_RESTART_COUNT"], &*env["MASTER_ADDR"]), ("1", "127.0.0.1"));
        assert_eq!(world.successor(Counted::No, |_| ()).restarts(), 1, "a lost race for the port does not count");
    }

    #[test]
    fn one_host_is_reached_over_loopback_unless_told_otherwise() {
        let world = world(&[Some("a"), Some("a")]);
        assert_eq!(of(&world, 0)["MASTER_ADDR"], "127.0.0.1");
        let told = Contract { master_addr: Some("10.0.0.1".into()), ..Contract::default() };
        assert_eq!(told.variables(&world, &seats(&world)[&Rank(0)], 1)["MASTER_ADDR"], "10.0.0.1");
    }

    #[test]
    fn what_is_inherited_is_kept_as_far_as_it_is_inherited() {
        let inherited = |pairs: &[(&str, &str)]| {
            Inherited(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
        };
        let set =
            inherited(&[("PYTHONPATH", "/theirs"), ("OMP_NUM_THREADS", "8"), ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3")]);
        let world = world(&[None; 2]);
        let seat = seats(&world)[&Rank(0)];
        let all = WorkerSpec::new(["python"]);
        let nothing = all.clone().with_inherit(InheritEnv::Nothing);
        let only = all.clone().with_inherit(InheritEnv::Only(BTreeSet::from(["PYTHONPATH".to_owned()])));

        let handling = |value: &str| ("TORCH_NCCL_ASYNC_ERROR_HANDLING".to_owned(), value.to_owned());
        let threads = ("OMP_NUM_THREADS".to_owned(), "1".to_owned());
        assert_eq!(set.defaults(&all, &seat), BTreeMap::from([handling("3")]));
        assert_eq!(set.defaults(&nothing, &seat), BTreeMap::from([threads]));
        let alone = Seat { local_world_size: 1, ..seat };
        assert_eq!(set.defaults(&nothing, &alone), BTreeMap::new(), "a single worker may use the whole machine");

        assert_eq!(set.python_path(&all, &"/helper"), "/helper:/theirs");
        assert_eq!(set.python_path(&only, &"/helper"), "/helper:/theirs");
        assert_eq!(set.python_path(&nothing, &"/helper"), "/helper");
        assert_eq!(set.python_path(&all.with_env("PYTHONPATH", "/own"), &"/helper"), "/helper:/own");
    }
}
