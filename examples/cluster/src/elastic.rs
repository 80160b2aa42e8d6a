//! Elastic jobs: a membership policy decides which hosts take part, and the job grows and shrinks with them.

use crate::options::{HostRange, ManagerOptions};
use crate::shown;
use std::time::Duration;
use taskd_core::cluster::membership::Policy;
use taskd_core::cluster::topology::Topology;
use taskd_core::cluster::{FirstWorld, Manager, Membership, Places};
use taskd_core::detect::{self, FaultDetector, ShrunkDetector};
use taskd_core::job::{JobSpec, NodeId, WorkerSpec};
use taskd_examples::program::Failure;

/// Time for which a job trains with fewer ranks before it checks, again and again, if hosts have room for the others.
const GROW_AFTER: Duration = Duration::from_millis(500);

/// Decides by the options which hosts take part, and returns the job on the first of them.
pub(crate) async fn job(
    options: &ManagerOptions,
    manager: &Manager,
    is_resumed: bool,
) -> Result<(JobSpec, Membership), Failure> {
    let size = Size::of(options)?;
    let membership = manager.membership(size.policy(options), places(options)?).await?;
    let mut spec = JobSpec::new(options.common.job.clone(), size.ranks, WorkerSpec::new(options.command.clone()));
    if !is_resumed {
        let FirstWorld { ranks, spares, slots, reason, .. } = membership.first_world().await?;
        shown::hosts(&shown::measured(manager).await);
        println!("world         {reason}: {}; spares: {}", names(ranks.values()), names(&spares));
        if slots < size.per_host {
            return Err(format!("a host has {slots} slots, and {} ranks are to run on each", size.per_host).into());
        }
        let first = size.per_host.saturating_mul(u32::try_from(ranks.len())?);
        spec.policy.start_ranks = if first < size.ranks { first } else { 0 };
        spec = spec.with_nodes(ranks.into_values());
    }
    spec.policy.min_ranks = options.min_ranks.unwrap_or(size.min_ranks());
    spec.policy.rank_unit = if options.node_unit > 1 { options.node_unit.saturating_mul(size.per_host) } else { 0 };
    Ok((spec, membership))
}

/// Returns the detectors of an elastic job: absent ranks return as soon as hosts have room.
pub(crate) fn detectors() -> Vec<Box<dyn FaultDetector>> {
    let mut detectors = detect::defaults();
    let grow = ShrunkDetector::after(GROW_AFTER);
    detectors.retain(|detector| detector.name() != grow.name());
    detectors.push(Box::new(grow));
    detectors
}

/// Numbers of ranks and hosts, as the options give them.
#[derive(Clone, Copy, Debug)]
struct Size {
    ranks: u32,
    per_host: u32,
    hosts: HostRange,
    spares: u32,
}

impl Size {
    /// # Errors
    /// The hosts cannot hold the ranks.
    fn of(options: &ManagerOptions) -> Result<Size, Failure> {
        let (HostRange { min, max }, slots) = (options.hosts, options.common.slots.max(1));
        let room = max.saturating_mul(slots);
        let ranks = options.ranks.unwrap_or(room);
        if ranks > room {
            let text = format!("{max} hosts of {slots} slots hold {room} ranks, not {ranks}: raise --hosts or --slots");
            return Err(text.into());
        }
        let needed = ranks.div_ceil(slots);
        let fewest = options.min_ranks.map_or(min, |ranks| ranks.div_ceil(slots)).clamp(1, needed);
        let hosts = HostRange { min: fewest, max: needed };
        Ok(Size { ranks, per_host: ranks.div_ceil(needed), hosts, spares: options.spares.max(max - needed) })
    }

    fn policy(&self, options: &ManagerOptions) -> Policy {
        Policy::new(self.hosts.min, self.hosts.max)
            .with_node_unit(options.node_unit)
            .with_waiting_timeout(Duration::from_secs(options.wait_s))
            .with_last_call(Duration::from_secs(options.last_call_s))
            .with_shrink_after(Duration::from_secs(options.shrink_after_s))
            .with_spares(self.spares)
    }

    fn min_ranks(&self) -> u32 {
        self.per_host.saturating_mul(self.hosts.min).min(self.ranks)
    }
}

/// Returns where the places of the hosts are stated.
pub(crate) fn places(options: &ManagerOptions) -> Result<Places, Failure> {
    let Some(file) = &options.topology else { return Ok(Places::default()) };
    let unusable = |why: &dyn std::fmt::Display| format!("the topology in {} cannot be used: {why}", file.display());
    let text = std::fs::read_to_string(file).map_err(|error| unusable(&error))?;
    Ok(Places::Tree(Topology::parse(&text).map_err(|error| unusable(&error))?))
}

fn names<'a>(hosts: impl IntoIterator<Item = &'a NodeId>) -> String {
    let names: Vec<&str> = hosts.into_iter().map(|host| host.0.as_str()).collect();
    if names.is_empty() { "none".into() } else { names.join(", ") }
}
