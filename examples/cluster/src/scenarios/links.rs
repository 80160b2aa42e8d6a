//! Losses of links between hosts whose processes run on.

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
