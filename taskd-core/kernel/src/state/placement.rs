//! Placement of ranks on hosts.
//!
//! Ranks leave hosts that accept no new processes, and a suspected place is exchanged for another. Other ranks stay
//! where they are. Among equal places the host with fewer incidents is taken ([`View::host_score`]). Nothing is started
//! or stopped here.

use crate::job::{GroupKind, Member, NodeId, Rank, Role, World};
use crate::state::View;
use std::collections::{BTreeMap, BTreeSet};

/// The place where a rank runs: a host, and a device of this host. If no host is set, the launcher chooses one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat {
    /// Host of the rank. `None`: the launcher chooses one.
    pub node: Option<NodeId>,
    /// Index of the rank's device on its host, if one is assigned.
    pub device: Option<u16>,
}

/// The places (host and device) at which ranks run, by rank.
pub type Seats = BTreeMap<Rank, Seat>;

/// Returns the places (host and device) of all ranks of the world in force. A host that the world does not name is
/// the host on which the rank's process was observed.
#[doc(hidden)]
pub fn current(view: &View) -> Seats {
    view.world.members().iter().map(|(rank, member)| (*rank, seat(view, *rank, member))).collect()
}

/// Returns the last known places of the absent ranks.
pub(crate) fn absent(view: &View) -> Seats {
    view.world.absent().iter().map(|(rank, member)| (*rank, seat(view, *rank, member))).collect()
}

fn seat(view: &View, rank: Rank, member: &Member) -> Seat {
    let seen = view.proc(&Role::Rank(rank)).and_then(|p| p.node.clone());
    Seat { node: member.node.clone().or(seen), device: member.device }
}

/// Returns the same places, except for ranks on hosts that accept no new processes, which move.
///
/// They move together to the emptiest host that has room for all ranks of their host, otherwise each to the emptiest
/// host. If the launcher lists no hosts, nothing moves.
///
/// # Errors
/// The reason why a rank finds no place.
pub(crate) fn settle(view: &View, seats: Seats) -> Result<Seats, String> {
    if view.nodes.is_empty() {
        return Ok(seats);
    }
    let mut plan = SeatPlan::new(view, seats);
    let mut leaving: BTreeMap<NodeId, Vec<Rank>> = BTreeMap::new();
    for (rank, seat) in &plan.seats {
        if let Some(node) = seat.node.as_ref().filter(|n| !view.is_ready(n)) {
            leaving.entry(node.clone()).or_default().push(*rank);
        }
    }
    for (node, ranks) in leaving {
        let together = plan.emptiest(ranks.len());
        for rank in ranks {
            let host = together.clone().or_else(|| plan.emptiest(1));
            let no_room = || format!("{node} takes nothing new, and no other host has room for {rank}");
            plan.put(rank, host.ok_or_else(no_room)?);
        }
    }
    Ok(plan.seats)
}

/// Returns the places of some ranks, given all current places: each stays if its host accepts new processes.
///
/// # Errors
/// The reason why one of them finds no place.
pub(crate) fn settle_some(view: &View, before: &Seats, moving: Seats) -> Result<Seats, String> {
    let mut all = before.clone();
    all.extend(moving.clone());
    if view.nodes.is_empty() {
        return Ok(moving);
    }
    let mut plan = SeatPlan::new(view, all);
    for (rank, seat) in &moving {
        if let Some(node) = seat.node.as_ref().filter(|node| !view.is_ready(node)) {
            let no_room = || format!("{node} takes nothing new, and no other host has room for {rank}");
            let host = plan.emptiest(1).ok_or_else(no_room)?;
            plan.put(*rank, host);
        }
    }
    plan.seats.retain(|rank, _| moving.contains_key(rank));
    Ok(plan.seats)
}

/// Returns places of those of the absent ranks that have room, in rank order: on their former hosts if these accept new
/// processes, otherwise where there is room.
pub(crate) fn settle_those_with_room(view: &View, before: &Seats, absent: Seats) -> Seats {
    if view.nodes.is_empty() {
        return absent;
    }
    let mut plan = SeatPlan::new(view, before.clone());
    let is_free = |plan: &SeatPlan<'_>, node: &NodeId| view.is_ready(node) && plan.slots(node) > plan.load(node);
    let mut homeless = Vec::new();
    for (rank, seat) in absent {
        let former = seat.node.clone().filter(|node| is_free(&plan, node));
        plan.seats.insert(rank, seat);
        match former {
            Some(node) => plan.put(rank, node),
            None => homeless.push(rank),
        }
    }
    for rank in homeless {
        match plan.emptiest(1) {
            Some(host) => plan.put(rank, host),
            None => _ = plan.seats.remove(&rank),
        }
    }
    plan.seats.retain(|rank, _| !before.contains_key(rank));
    plan.seats
}

/// Returns places for as many of these ranks as have room, the lowest ones, so that a start gives them the numbers from
/// 0. Places on hosts that accept new processes stay in use. `None` if the policy does not allow so few ranks.
pub(crate) fn settle_fewer(view: &View, seats: &Seats) -> Option<Seats> {
    let policy = &view.spec.policy;
    let mut plan = SeatPlan::new(view, Seats::new());
    let mut places: Vec<Seat> = Vec::new();
    for seat in seats.values() {
        let ready = seat.node.as_ref().filter(|node| view.is_ready(node) && plan.slots(node) > plan.load(node));
        if let Some(node) = ready.cloned() {
            *plan.load.entry(node).or_default() += 1;
            places.push(seat.clone());
        }
    }
    let mut ranks: Vec<Rank> = seats.keys().copied().collect();
    for (rank, seat) in ranks.iter().zip(&places) {
        plan.devices.extend(seat.node.clone().zip(seat.device));
        plan.seats.insert(*rank, seat.clone());
    }
    for rank in ranks.iter().skip(places.len()) {
        let Some(host) = plan.emptiest(1) else { break };
        plan.seats.insert(*rank, Seat { node: None, device: seats.get(rank).and_then(|seat| seat.device) });
        plan.put(*rank, host);
    }
    let placed = plan.seats.len() - policy.beyond_unit(plan.seats.len());
    let has_groups = view.world.groups().iter().any(|(id, ranks)| id.kind == GroupKind::Dp && !ranks.is_empty());
    if has_groups || placed < policy.min_ranks_of(view.spec.ranks).max(1) as usize {
        return None;
    }
    ranks.truncate(placed);
    plan.seats.retain(|rank, _| ranks.contains(rank));
    Some(plan.seats)
}

/// Returns places in which `rank` is elsewhere. Its host's ranks are exchanged with those of another host (an empty
/// one, if there is one), so that ranks that share a host still do; otherwise the rank exchanges its device with
/// another rank of its host. `None` if there is no other place.
pub(crate) fn elsewhere(view: &View, seats: &Seats, rank: Rank) -> Option<Seats> {
    let here = seats.get(&rank)?.node.as_ref()?;
    let plan = SeatPlan::new(view, seats.clone());
    let (here_slots, here_load) = (plan.slots(here), plan.load(here));
    let fits = |n: &&NodeId| *n != here && plan.slots(n) >= here_load && here_slots >= plan.load(n);
    let mut moved = seats.clone();
    if let Some(there) = view.ready_nodes().filter(fits).min_by_key(|n| (plan.load(n), view.host_score(n), *n)) {
        for seat in moved.values_mut() {
            if seat.node.as_ref() == Some(here) {
                seat.node = Some(there.clone());
            } else if seat.node.as_ref() == Some(there) {
                seat.node = Some(here.clone());
            }
        }
        return Some(moved);
    }
    let mine = seats.get(&rank)?.device?;
    let others = || seats.iter().filter(|(_, s)| s.node.as_ref() == Some(here) && s.device.is_some_and(|d| d != mine));
    let (other, seat) = others().find(|(r, _)| **r > rank).or_else(|| others().next())?;
    moved.get_mut(&rank)?.device = seat.device;
    moved.get_mut(other)?.device = Some(mine);
    Some(moved)
}

/// Returns places for all ranks of a first world, if the history distinguishes the hosts. `None` if it does not,
/// if the job names hosts, or if not all ranks have room: then the launcher chooses the hosts.
pub(crate) fn first(view: &View, world: &World) -> Option<Seats> {
    let mut scores = view.ready_nodes().map(|host| view.host_score(host));
    let first = scores.next()?;
    if scores.all(|score| score == first) || world.members().values().any(|member| member.node.is_some()) {
        return None;
    }
    spread(view, world)
}

/// Returns places for all ranks of a world without hosts: each on the host with the fewest ranks that has room, as a
/// launcher chooses it. `None` if not all ranks have room.
pub(crate) fn spread(view: &View, world: &World) -> Option<Seats> {
    let seats = world.members().iter().map(|(rank, member)| (*rank, Seat { node: None, device: member.device }));
    let mut plan = SeatPlan::new(view, seats.collect());
    for rank in world.members().keys() {
        let host = plan.emptiest(1)?;
        plan.put(*rank, host);
    }
    Some(plan.seats)
}

/// Returns the hosts that were passed over because of their history, each with it: the choice would have used them
/// otherwise. `choose` makes the choice that led to `chosen`.
pub(crate) fn passed_over(
    view: &View,
    chosen: &Seats,
    choose: impl FnOnce(&View) -> Option<Seats>,
) -> BTreeMap<NodeId, String> {
    let Some(history) = view.host_history.as_ref().filter(|history| !history.is_empty()) else {
        return BTreeMap::new();
    };
    let plain = choose(&View { host_history: None, ..view.clone() });
    let used: BTreeSet<&NodeId> = chosen.values().filter_map(|seat| seat.node.as_ref()).collect();
    let hosts = plain.iter().flat_map(Seats::values).filter_map(|seat| seat.node.as_ref());
    let now = view.wall.or_else(|| history.newest());
    let line = |host: &NodeId| Some((host.clone(), history.line(host, now?)?));
    hosts.filter(|host| !used.contains(host)).filter_map(line).collect()
}

/// Returns the text for the reason of a proposal: the hosts that were passed over, if any.
pub(crate) fn passed_over_text(view: &View, chosen: &Seats, choose: impl FnOnce(&View) -> Option<Seats>) -> String {
    let lines: Vec<String> = passed_over(view, chosen, choose).into_values().collect();
    if lines.is_empty() { String::new() } else { format!("; passed over: {}", lines.join("; ")) }
}

/// Returns true if the process of this role can be placed elsewhere.
pub(crate) fn can_move(view: &View, role: &Role) -> bool {
    let seats = || settle(view, current(view)).ok();
    role.rank().is_some_and(|rank| seats().is_some_and(|seats| elsewhere(view, &seats, rank).is_some()))
}

/// Places while they are being changed.
struct SeatPlan<'a> {
    view: &'a View,
    seats: Seats,
    load: BTreeMap<NodeId, usize>,
    devices: BTreeSet<(NodeId, u16)>,
}

impl<'a> SeatPlan<'a> {
    fn new(view: &'a View, seats: Seats) -> SeatPlan<'a> {
        let mut load = BTreeMap::new();
        let mut devices = BTreeSet::new();
        for seat in seats.values() {
            let Some(node) = &seat.node else { continue };
            *load.entry(node.clone()).or_default() += 1;
            devices.extend(seat.device.map(|d| (node.clone(), d)));
        }
        SeatPlan { view, seats, load, devices }
    }

    fn slots(&self, node: &NodeId) -> usize {
        self.view.nodes.get(node).map_or(0, |n| n.slots as usize)
    }

    fn load(&self, node: &NodeId) -> usize {
        self.load.get(node).copied().unwrap_or(0)
    }

    /// Returns the ready host with the fewest ranks that has room for `ranks` more; among equals one with standbys for them,
    /// then the one with the lowest score in the history of hosts.
    fn emptiest(&self, ranks: usize) -> Option<NodeId> {
        let has_room = |n: &&NodeId| self.slots(n) >= self.load(n) + ranks;
        let standbys = |n: &NodeId| self.view.nodes.get(n).and_then(|status| status.standbys);
        let lacks = |n: &NodeId| standbys(n).is_some_and(|ready| (ready as usize) < ranks);
        let order = |n: &&NodeId| (self.load(n), lacks(n), self.view.host_score(n), (*n).clone());
        self.view.ready_nodes().filter(has_room).min_by_key(order).cloned()
    }

    /// Moves a rank to a host. It keeps its device number if that is free there, otherwise it gets the first free one.
    fn put(&mut self, rank: Rank, host: NodeId) {
        let Some(seat) = self.seats.get_mut(&rank) else { return };
        seat.node = Some(host.clone()); // the host it leaves accepts no new processes, so its load does not matter
        *self.load.entry(host.clone()).or_default() += 1;
        if let Some(wished) = seat.device {
            let free = |d: &u16| !self.devices.contains(&(host.clone(), *d));
            let device = Some(wished).filter(free).or_else(|| (0..=u16::MAX).find(free)).unwrap_or(wished);
            seat.device = Some(device);
            self.devices.insert((host, device));
        }
    }
}

#[cfg(test)]
mod tests;
