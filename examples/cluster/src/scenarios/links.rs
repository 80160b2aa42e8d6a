//! Losses of links between hosts; the processes of these hosts continue.

use super::expected::{Moment, host_named};
use super::hosts::{HOST, MANAGER, PLAIN};
use super::shapes::{SIX, SWITCH, Shape};
use super::{BASE, Expected, Injected, Scenario, Trial};
use std::collections::BTreeSet;
use taskd_core::detect::FaultClass;
use taskd_core::job::{Domain, Name};
use taskd_examples::program::Failure;
use tokio::time::sleep;

/// Seconds from the cut to the next step, with a spare host.
const SPARE_BOUND_S: f64 = 3.0;
/// Seconds from the cut of one direction to the next step.
const ONE_WAY_BOUND_S: f64 = 4.0;
/// Five ranks on three hosts, of which the last one has one rank, and a spare host. All three hosts with ranks vote.
const UNEVEN: Shape = Shape { hosts: 4, slots: &[2], ..SIX };
/// Host with one rank, next to [`HOST`], which has two there.
const NEXT: &str = "h3";

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "host-cut",
        about: "a host with two ranks loses its link; it must stop its ranks before a spare host takes over",
        bound_s: Some(SPARE_BOUND_S),
        inject: |trial| Box::pin(cut_host(trial, HOST)),
        ..BASE
    },
    Scenario {
        name: "host-mute",
        about: "packets from a host with two ranks to the manager's host are lost; those in the other direction arrive",
        bound_s: Some(ONE_WAY_BOUND_S),
        inject: |trial| Box::pin(cut_one_way(trial, HOST, MANAGER)),
        ..BASE
    },
    Scenario {
        name: "host-deaf",
        about: "packets from the manager's host to a host with two ranks are lost; those in the other direction arrive",
        bound_s: Some(ONE_WAY_BOUND_S),
        inject: |trial| Box::pin(cut_one_way(trial, MANAGER, HOST)),
        ..BASE
    },
    Scenario {
        name: "rank-killed-in-blip",
        about: "a rank of the manager's host gets SIGKILL while another host has no link for less than its lease",
        inject: |trial| Box::pin(kill_in_blip(trial)),
        ..BASE
    },
    Scenario {
        name: "link-blip",
        about: "a host with two ranks loses its link for less than its lease",
        inject: |trial| Box::pin(cut_briefly(trial)),
        ..BASE
    },
    Scenario {
        name: "six-host-cut",
        about: "of six hosts, one with a rank loses its link; it must stop its rank before the spare host takes over",
        bound_s: Some(SPARE_BOUND_S),
        shape: SIX,
        inject: |trial| Box::pin(cut_host(trial, PLAIN)),
        ..BASE
    },
    Scenario {
        name: "link-to-manager",
        about: "of six hosts, packets from one to the manager's host are lost; those in the other direction arrive",
        bound_s: Some(ONE_WAY_BOUND_S),
        shape: SIX,
        inject: |trial| Box::pin(cut_to_manager(trial)),
        ..BASE
    },
    Scenario {
        name: "link-between",
        about: "packets from a host with two ranks to one with one rank are lost; both reach the manager",
        bound_s: Some(ONE_WAY_BOUND_S),
        shape: UNEVEN,
        inject: |trial| Box::pin(cut_between(trial)),
        ..BASE
    },
    Scenario {
        name: "switch-lost",
        about: "two hosts lose their links with their switch; two spare hosts under another one take over",
        bound_s: Some(SPARE_BOUND_S),
        shape: SWITCH,
        inject: |trial| Box::pin(lose_switch(trial)),
        ..BASE
    },
];

async fn lose_switch(trial: &mut Trial) -> Result<Injected, Failure> {
    trial.training.hosts.put_behind_switch(SWITCH.leaf)?;
    sleep(trial.training.plan.lease).await; // the job trains on over the second switch
    trial.before = trial.training.steps().pids();
    let ranks: BTreeSet<u32> = SWITCH.leaf.iter().flat_map(|host| trial.ranks_on(host)).collect();
    trial.part_of_a_step().await;
    let at = Moment::now();
    trial.training.hosts.set_switch_link(false)?;
    let domain = Domain::Topology(Name::new("leaf l1"));
    let expected = Expected::Recovery { class: FaultClass::NodeLost, domain, ranks };
    let under_it = SWITCH.leaf.join(" and ");
    let what = format!("link of the switch of {under_it} down, their processes run on");
    Ok(Injected { fenced: Some(under_it), ..Injected::new(what, at, expected) })
}

async fn cut_host(trial: &mut Trial, host: &str) -> Result<Injected, Failure> {
    let expected = trial.loss_of(host);
    trial.part_of_a_step().await;
    let at = Moment::now();
    trial.training.hosts.get(host)?.set_link(false)?;
    let injected = Injected::new(format!("link of {host} down, its processes run on"), at, expected);
    Ok(Injected { fenced: Some(host.into()), ..injected })
}

/// Loses the packets of one direction between the manager's host and another one, which must stop.
async fn cut_one_way(trial: &mut Trial, from: &str, to: &str) -> Result<Injected, Failure> {
    let (manager, _) = trial.manager()?;
    let host = if from == manager { to } else { from };
    let expected = trial.loss_of(host);
    trial.part_of_a_step().await;
    let at = Moment::now();
    let hosts = &trial.training.hosts;
    hosts.get(from)?.cut_to(hosts.get(to)?)?;
    let injected = Injected::new(format!("packets from {from} to {to} are lost"), at, expected);
    Ok(Injected { fenced: Some(host.into()), ..injected })
}

/// Loses the packets from a host to that of the manager in office.
async fn cut_to_manager(trial: &mut Trial) -> Result<Injected, Failure> {
    let (manager, epoch) = trial.manager()?;
    let mut injected = cut_one_way(trial, PLAIN, &manager).await?;
    let hit = injected.expected.ranks();
    trial.trains_again(&hit, injected.at).await?;
    let (now, later) = trial.manager()?;
    if later != epoch {
        injected
            .notes
            .push(format!("the manager changed meanwhile, from {manager} to {now}: the machine was overloaded"));
    }
    Ok(injected)
}

/// Loses the packets of one direction between two hosts that both reach the manager. Without the second one, more ranks
/// are left.
async fn cut_between(trial: &mut Trial) -> Result<Injected, Failure> {
    trial.elect_first().await?; // both hosts vote, too: none of them must be the manager
    let ranks = trial.ranks_on(NEXT);
    if ranks.len() >= trial.ranks_on(HOST).len() {
        return Err(format!("{NEXT} has ranks {ranks:?}, not fewer than {HOST}: the choice has another result").into());
    }
    trial.part_of_a_step().await;
    let at = Moment::now();
    let hosts = &trial.training.hosts;
    hosts.get(HOST)?.cut_to(hosts.get(NEXT)?)?;
    let expected = Expected::Recovery { class: FaultClass::Network, domain: host_named(NEXT), ranks };
    let what = format!("packets from {HOST} to {NEXT} are lost; both reach the manager");
    let evidence = Some(format!("the link between {HOST} and {NEXT} is broken"));
    Ok(Injected { evidence, ..Injected::new(what, at, expected) })
}

async fn kill_in_blip(trial: &mut Trial) -> Result<Injected, Failure> {
    let time = trial.training.plan.lease / 2;
    let rank = trial.ranks_on(MANAGER).first().copied().ok_or("the manager's host has no rank")?;
    trial.training.hosts.get(HOST)?.set_link(false)?;
    sleep(time / 2).await; // the host is out of sight now
    let at = Moment::now();
    trial.kill(rank)?;
    sleep(time / 2).await;
    trial.training.hosts.get(HOST)?.set_link(true)?;
    Ok(Injected::new(
        format!("SIGKILL to rank {rank} while the link of {HOST} is down for {time:?}"),
        at,
        trial.exit_of(rank),
    ))
}

async fn cut_briefly(trial: &mut Trial) -> Result<Injected, Failure> {
    let lease = trial.training.plan.lease;
    let time = lease / 2;
    trial.part_of_a_step().await;
    let at = Moment::now();
    trial.training.hosts.get(HOST)?.set_link(false)?;
    sleep(time).await;
    trial.training.hosts.get(HOST)?.set_link(true)?;
    let what = format!("link of {HOST} down for {time:?} of a lease of {lease:?}");
    Ok(Injected::new(what, at, Expected::Undisturbed { host: None, observe: lease * 2 }))
}
