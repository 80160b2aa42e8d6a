//! What a framework has to say of its processes: the trait, and what it is told.
//!
//! It completes orders and reads failures; it starts nothing and decides nothing.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::job::{ErrorReport, Name, ProcId, Role, Termination, WorkerSpec, World};

use super::error::{Failure, report_of};
use super::helper::PythonFile;
use super::inherited::Inherited;
use super::meeting::Meeting;
use super::seats::Seat;
use super::standbys::Standbys;

/// What one framework alone knows of its processes. [`PythonLauncher`](super::PythonLauncher) does the rest.
///
/// Its methods are pure: they look at nothing but their arguments, so that a repeated start gives the same order.
///
/// # Example
/// ```
/// use std::collections::BTreeMap;
/// use taskd_core::launch::python::{Framework, Order, PythonFile, Seat};
///
/// /// Ranks that are told who they are, and nothing else.
/// #[derive(Debug)]
/// struct Plain;
///
/// impl Framework for Plain {
///     fn name(&self) -> &'static str { "plain" }
///     fn files(&self) -> &[PythonFile] { &[] }
///     fn rank(&self, seat: &Seat, order: &Order<'_>) -> BTreeMap<String, String> {
///         let values = [("RANK", seat.rank.to_string()), ("MEET_AT", format!("{}:{}", order.host(), order.port))];
///         values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
///     }
/// }
/// ```
pub trait Framework: Debug + Send + Sync {
    /// Its name, as in `torch over local`.
    fn name(&self) -> &'static str;

    /// Its Python files beside the [neutral ones](super::NEUTRAL_FILES), of other paths than those have.
    fn files(&self) -> &[PythonFile];

    /// Variables of this process's environment on which those of its processes depend: [`Order::inherited`] knows them.
    /// They are read once, when the launcher is made.
    fn inherits(&self) -> &[&'static str] {
        &[]
    }

    /// The variables of a rank. What the order itself sets wins.
    fn rank(&self, seat: &Seat, order: &Order<'_>) -> BTreeMap<String, String>;

    /// Which warm standbys its ranks have where the launcher is not told otherwise
    /// ([`PythonLauncher::standbys`](super::PythonLauncher::standbys)). By default none.
    fn standbys(&self) -> Standbys {
        Standbys::none()
    }

    /// The modules that a standby of its ranks imports ahead. By default none.
    fn imports(&self) -> &[&'static str] {
        &[]
    }

    /// Of the variables of a rank those that are its own, so that a standby has to do without them until it is seated: nothing that
    /// is read on import may be among them. By default none.
    fn late(&self) -> &[&'static str] {
        &[]
    }

    /// Those of the [late](Framework::late) variables that are the same for all ranks of a world, and for those that take a place in
    /// it later: a standby that runs its program ahead of its rank has them. By default none.
    fn shared(&self) -> &[&'static str] {
        &[]
    }

    /// Whether a service of this name runs Python for this framework: it gets variables and helper, and its failures are
    /// explained. By default none does, and services pass through unchanged.
    fn owns(&self, service: &Name) -> bool {
        let _ = service;
        false
    }

    /// The variables of a service that it [owns](Framework::owns). What the order itself sets wins. By default there are none.
    fn service(&self, order: &Order<'_>) -> BTreeMap<String, String> {
        let _ = order;
        BTreeMap::new()
    }

    /// The host at which the ranks of a world meet, by an address that they can reach: see [`Order::host`].
    fn meets_at(&self, world: &World) -> String {
        host_of(world)
    }

    /// The service at which its ranks meet, where a job has it. By default the first rank is who listens.
    fn meeting(&self) -> Option<&dyn Meeting> {
        None
    }

    /// The environment variable with the host at which processes meet, for a framework that takes over the launcher's listener. The
    /// framework's helper does that in `hosts(after_import, port)` of its `_taskd_framework.py`: the listening process takes the
    /// listener, or has it closed right before it listens itself. With `None`, the default, the launcher binds the port without
    /// listening, and another user of the host could listen there first.
    fn host_variable(&self) -> Option<&'static str> {
        None
    }

    /// Where what a process prints is to go besides, such as where the framework's own tools look for it; `seat` is a rank's.
    /// What the order itself sets wins. By default nowhere.
    fn log(&self, role: &Role, seat: Option<&Seat>) -> Option<PathBuf> {
        let _ = (role, seat);
        None
    }

    /// Whether a process that ends so has said why: then nothing is decided of it before that was read, as its exit is told. By
    /// default, whoever ends by an exit code has; a framework whose processes send themselves signals names those, too.
    fn says_why(&self, how: Termination) -> bool {
        matches!(how, Termination::Code(_))
    }

    /// What a failure of a rank or of an owned service means; `None` where what was left tells nothing. A step that the
    /// report has none of comes from the record or the exit.
    ///
    /// By default an exception is reported as the program's own fault.
    fn report(&self, failure: &Failure<'_>) -> Option<ErrorReport> {
        failure.exception().map(|exception| report_of(&exception))
    }
}

/// What the variables of a process are made from.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Order<'a> {
    /// The process.
    pub proc: &'a ProcId,
    /// What the order itself says of it.
    pub spec: &'a WorkerSpec,
    /// The world that it is to start in.
    pub world: &'a World,
    /// Where the processes of this generation may meet: kept from other programs of this host, and of no other generation.
    pub port: u16,
    /// Where it is to record its failure, which the helper does (`TASKD_ERROR_FILE`).
    pub error_file: &'a Path,
    /// What it may inherit.
    pub environment: &'a Inherited,
    /// Whether a [service](Framework::meeting) listens at that port; else the first rank is to.
    pub is_served: bool,
}

impl<'a> Order<'a> {
    /// An order as the launcher makes it, for tests of a framework.
    #[must_use]
    pub const fn new(
        proc: &'a ProcId,
        spec: &'a WorkerSpec,
        world: &'a World,
        port: u16,
        error_file: &'a Path,
        environment: &'a Inherited,
    ) -> Order<'a> {
        Order { proc, spec, world, port, error_file, environment, is_served: false }
    }

    /// Says whether a service listens at the port.
    #[must_use]
    pub const fn served(mut self, is_served: bool) -> Order<'a> {
        self.is_served = is_served;
        self
    }

    /// The value of a variable that the process would inherit. Known are those of [`Framework::inherits`].
    #[must_use]
    pub fn inherited(&self, name: &str) -> Option<&str> {
        self.environment.get(self.spec, name)
    }

    /// Where the first rank of the world is: its host's name, or loopback where all ranks are on one host.
    #[must_use]
    pub fn host(&self) -> String {
        host_of(self.world)
    }
}

/// Where the first rank of a world is: its host's name, or loopback where all ranks are on one host.
#[must_use]
pub fn host_of(world: &World) -> String {
    let mut nodes = world.members().values().map(|member| member.node.as_ref());
    let first = nodes.next().flatten();
    let several = nodes.any(|node| node != first);
    first.filter(|_| several).map_or_else(|| loopback().to_owned(), |node| node.0.to_string())
}

/// The loopback address of this host: that of IPv4, and where it has none, that of IPv6.
fn loopback() -> &'static str {
    static LOOPBACK: OnceLock<&str> = OnceLock::new();
    LOOPBACK.get_or_init(|| {
        let can_bind = |address: IpAddr| TcpListener::bind((address, 0)).is_ok();
        let chosen = loopback_where(can_bind);
        if chosen != IPV4_LOOPBACK {
            tracing::warn!(
                "this host has no IPv4 loopback (127.0.0.1 cannot be bound): ranks meet at {chosen}; a framework's own library may look \
                 for an IPv4 address all the same and fail: tell it to use the interface lo, or bring the address up (ip addr add 127.0.0.1/8 dev lo)"
            );
        }
        chosen
    })
}

const IPV4_LOOPBACK: &str = "127.0.0.1";

/// The same by what can be bound. Where nothing can, the usual one: then the first that binds it says why it cannot.
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
