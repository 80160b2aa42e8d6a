//! Losses of links between hosts; the processes of these hosts continue.

use super::hosts::{HOST, MANAGER};
use super::trial::Moment;
use super::{Expected, Injected, Scenario, Trial};
use taskd_examples::program::Failure;
use tokio::time::sleep;

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "host-cut",
        about: "a host with two ranks loses its link; it must stop its ranks before a spare host takes over",
        known_gap: None,
        more_hosts: 0,
        inject: |trial| Box::pin(cut_host(trial)),
    },
    Scenario {
        name: "host-mute",
        about: "packets from a host with two ranks to the manager's host are lost; those in the other direction arrive",
        known_gap: None,
        more_hosts: 0,
        inject: |trial| Box::pin(cut_one_way(trial, HOST, MANAGER)),
    },
    Scenario {
        name: "host-deaf",
        about: "packets from the manager's host to a host with two ranks are lost; those in the other direction arrive",
        known_gap: None,
        more_hosts: 0,
        inject: |trial| Box::pin(cut_one_way(trial, MANAGER, HOST)),
    },
    Scenario {
        name: "rank-killed-in-blip",
        about: "a rank of the manager's host gets SIGKILL while another host has no link for less than its lease",
        known_gap: Some("the recovery waits for a stage's limit of 120 s, although the host is back after 1.5 s"),
        more_hosts: 0,
        inject: |trial| Box::pin(kill_in_blip(trial)),
    },
    Scenario {
        name: "link-blip",
        about: "a host with two ranks loses its link for less than its lease",
        known_gap: None,
        more_hosts: 0,
        inject: |trial| Box::pin(cut_briefly(trial)),
    },
];

async fn cut_host(trial: &mut Trial) -> Result<Injected, Failure> {
    let expected = trial.loss_of(HOST);
    trial.part_of_a_step().await;
    let at = Moment::now();
    trial.training.hosts.get(HOST)?.set_link(false)?;
    let injected = Injected::new(format!("link of {HOST} down, its processes run on"), at, expected);
    Ok(Injected { fenced: Some(HOST.into()), ..injected })
}

async fn cut_one_way(trial: &mut Trial, from: &str, to: &str) -> Result<Injected, Failure> {
    let expected = trial.loss_of(HOST);
    trial.part_of_a_step().await;
    let at = Moment::now();
    let hosts = &trial.training.hosts;
    hosts.get(from)?.cut_to(hosts.get(to)?)?;
    let injected = Injected::new(format!("packets from {from} to {to} are lost"), at, expected);
    Ok(Injected { fenced: Some(HOST.into()), ..injected })
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
