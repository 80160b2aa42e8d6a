//! The [`Framework`] trait, which describes a framework's processes, and the [`LaunchContext`] that its methods
//! receive.
//!
//! A framework completes start orders and interprets failures. It starts no process and takes no decision.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::job::{ErrorReport, Name, ProcId, Role, Termination, WorkerSpec, World};

use super::error::{Failure, report_of};
use super::helper::PythonFile;
use super::inherited::Inherited;
use super::rendezvous::Rendezvous;
use super::standbys::Standbys;
use super::worker_ranks::WorkerRanks;

/// Framework-specific part of the Python launcher; [`PythonLauncher`](super::PythonLauncher) does the rest.
///
/// The methods are pure: they depend on their arguments only, so that a repeated start gives the same order.
///
/// # Example
/// ```
/// use std::collections::BTreeMap;
/// use taskd_core::launch::python::{Framework, LaunchContext, PythonFile, WorkerRanks};
///
/// /// Ranks that receive their rank numbers, and nothing else.
/// #[derive(Debug)]
/// struct Plain;
///
/// impl Framework for Plain {
///     fn name(&self) -> &'static str { "plain" }
///     fn files(&self) -> &[PythonFile] { &[] }
///     fn rank_env(&self, seat: &WorkerRanks, order: &LaunchContext<'_>) -> BTreeMap<String, String> {
///         let values = [("RANK", seat.rank.to_string()), ("MEET_AT", format!("{}:{}", order.host(), order.port))];
///         values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
///     }
/// }
/// ```
pub trait Framework: Debug + Send + Sync {
    /// Returns the name of the framework, as it appears in launcher names such as `torch over local`.
    fn name(&self) -> &'static str;

    /// Returns the Python files of the framework, which are installed beside the [neutral ones](super::NEUTRAL_FILES).
    /// Their paths must differ from those.
    fn files(&self) -> &[PythonFile];

    /// Returns the names of those variables of the launcher's own environment that affect the framework's processes;
    /// [`LaunchContext::inherited`] returns their values. They are read once, when the launcher is made.
    fn inherited_variables(&self) -> &[&'static str] {
        &[]
    }

    /// Returns the environment variables of a rank. A variable that the start order itself sets takes precedence.
    fn rank_env(&self, seat: &WorkerRanks, order: &LaunchContext<'_>) -> BTreeMap<String, String>;

    /// Returns the configuration of the warm standbys of the ranks, which applies unless the launcher is configured
    /// otherwise ([`PythonLauncher::standbys`](super::PythonLauncher::standbys)). Default: none.
    fn standbys(&self) -> Standbys {
        Standbys::none()
    }

    /// Returns the names of the modules that a standby imports before it is assigned a rank. Default: none.
    fn imports(&self) -> &[&'static str] {
        &[]
    }

    /// Returns the names of the environment variables that differ from rank to rank. A standby does not have them until
    /// it is assigned a rank, so they must not include a variable that is read on import. Default: none.
    fn per_rank_env(&self) -> &[&'static str] {
        &[]
    }

    /// Returns the names of those [per-rank](Framework::per_rank_env) variables that are the same for all ranks of a
    /// world, including ranks that join it later. A standby that runs its program before it is assigned a rank already
    /// has them. Default: none.
    fn per_world_env(&self) -> &[&'static str] {
        &[]
    }

    /// Returns true if the service of this name runs Python code of this framework. Such a service gets the variables
    /// and the helper, and its failures are explained. Default: false for every service, so that services pass through
    /// unchanged.
    fn manages_service(&self, service: &Name) -> bool {
        let _ = service;
        false
    }

    /// Returns the environment variables of a service that the framework [manages](Framework::manages_service). A
    /// variable that the start order itself sets takes precedence. Default: none.
    fn service_env(&self, order: &LaunchContext<'_>) -> BTreeMap<String, String> {
        let _ = order;
        BTreeMap::new()
    }

    /// Returns the rendezvous host of a world: an address that all ranks can reach. See [`LaunchContext::host`].
    fn rendezvous_host(&self, world: &World) -> String {
        host_of(world)
    }

    /// Returns the rendezvous service of the framework, used if the job has it. Default: none, so that the first rank
    /// listens.
    fn rendezvous(&self) -> Option<&dyn Rendezvous> {
        None
    }

    /// Returns the name of the environment variable that holds the rendezvous host, for a framework that takes over the
    /// launcher's listener. The framework's helper does that in `hosts(after_import, port)` of its
    /// `_taskd_framework.py`: the listening process either takes the listener, or has it closed right before the
    /// process itself listens. With `None`, the default, the launcher binds the port without listening, and another
    /// user of the host could listen there first.
    fn host_variable(&self) -> Option<&'static str> {
        None
    }

    /// Returns an additional path for a process's output, such as the place in which the framework's own tools look for
    /// it. `seat` is set for a rank. A path that the start order itself sets takes precedence. Default: none.
    fn log_path(&self, role: &Role, seat: Option<&WorkerRanks>) -> Option<PathBuf> {
        let _ = (role, seat);
        None
    }

    /// Returns true if a process that ended in this way has recorded the reason. The death of such a process is
    /// reported only with its exit, after the record was read, so that no decision is taken without it. Default: true
    /// for an exit with an exit code. A framework whose processes send signals to themselves returns true for those
    /// signals as well.
    fn is_explained(&self, how: Termination) -> bool {
        matches!(how, Termination::Code(_))
    }

    /// Interprets the failure of a rank or of a managed service; `None` if the record and stderr show nothing. If the
    /// report has no step, the step is taken from the record or the exit.
    ///
    /// By default an exception is reported as a fault of the program itself.
    fn report(&self, failure: &Failure<'_>) -> Option<ErrorReport> {
        failure.exception().map(|exception| report_of(&exception))
    }
}

/// Input from which a framework computes the environment of a process.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct LaunchContext<'a> {
    /// Id of the process to start.
    pub proc: &'a ProcId,
    /// Specification of the process, from its start order.
    pub spec: &'a WorkerSpec,
    /// World (set of ranks) in which the process starts.
    pub world: &'a World,
    /// Rendezvous port of the world's generation. It is reserved against other programs of this host, and differs from
    /// the ports of all other generations.
    pub port: u16,
    /// Path of the file in which the helper records a failure of the process (`TASKD_ERROR_FILE`).
    pub error_file: &'a Path,
    /// Variables of the launcher's own environment that the process may inherit.
    pub environment: &'a Inherited,
    /// True if a [rendezvous service](Framework::rendezvous) listens at `port`; otherwise the first rank of the world
    /// has to listen there.
    pub is_served: bool,
}

impl<'a> LaunchContext<'a> {
    /// Creates a context from its parts, as the launcher does for each process. Meant for tests of a framework.
    #[must_use]
    pub const fn new(
        proc: &'a ProcId,
        spec: &'a WorkerSpec,
        world: &'a World,
        port: u16,
        error_file: &'a Path,
        environment: &'a Inherited,
    ) -> LaunchContext<'a> {
        LaunchContext { proc, spec, world, port, error_file, environment, is_served: false }
    }

    /// Sets [`is_served`](Self::is_served): true if a rendezvous service listens at the rendezvous port.
    #[must_use]
    pub const fn served(mut self, is_served: bool) -> LaunchContext<'a> {
        self.is_served = is_served;
        self
    }

    /// Returns the value of a variable that the process would inherit. Only the variables in
    /// [`Framework::inherited_variables`] are available.
    #[must_use]
    pub fn inherited(&self, name: &str) -> Option<&str> {
        self.environment.get(self.spec, name)
    }

    /// Returns the host name of the world's first rank, or loopback if all ranks are on one host.
    #[must_use]
    pub fn host(&self) -> String {
        host_of(self.world)
    }
}

/// Returns the host name of the world's first rank, or loopback if all ranks are on one host.
#[must_use]
pub fn host_of(world: &World) -> String {
    let mut nodes = world.members().values().map(|member| member.node.as_ref());
    let first = nodes.next().flatten();
    let several = nodes.any(|node| node != first);
    first.filter(|_| several).map_or_else(|| loopback().to_owned(), |node| node.0.to_string())
}

/// Returns the loopback address of this host: the IPv4 one, or the IPv6 one on a host without IPv4 loopback.
fn loopback() -> &'static str {
    static LOOPBACK: OnceLock<&str> = OnceLock::new();
    LOOPBACK.get_or_init(|| {
        let can_bind = |address: IpAddr| TcpListener::bind((address, 0)).is_ok();
        let chosen = loopback_where(can_bind);
        if chosen != IPV4_LOOPBACK {
            tracing::warn!(
                "this host has no IPv4 loopback (127.0.0.1 cannot be bound): the rendezvous is at {chosen}; a framework's own library may \
                 still look for an IPv4 address and fail: set its interface to lo, or add the address (ip addr add 127.0.0.1/8 dev lo)"
            );
        }
        chosen
    })
}

const IPV4_LOOPBACK: &str = "127.0.0.1";

/// Chooses the loopback address by what can be bound. If neither can, returns IPv4, so that the first bind reports the
/// reason.
fn loopback_where(can_bind: impl Fn(IpAddr) -> bool) -> &'static str {
    let is_v6_only = !can_bind(Ipv4Addr::LOCALHOST.into()) && can_bind(Ipv6Addr::LOCALHOST.into());
    if is_v6_only { "::1" } else { IPV4_LOOPBACK }
}

#[cfg(test)]
mod loopback_tests {
    use super::*;

    #[test]
    fn the_loopback_of_ipv6_is_taken_where_it_is_the_only_one() {
        assert_eq!(loopback_where(|_| true), "127.0.0.1");
        assert_eq!(loopback_where(|address| address.is_ipv4()), "127.0.0.1");
        assert_eq!(loopback_where(|address| address.is_ipv6()), "::1");
        assert_eq!(loopback_where(|_| false), "127.0.0.1");
    }
}
