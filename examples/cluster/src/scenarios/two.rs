//! Jobs of two hosts: with a third voter exactly one of them continues, without one the host of the manager does.

use super::expected::Moment;
use super::hosts::{HOST, MANAGER};
use super::shapes::{TWO, TWO_AND_VOTER};
use super::{BASE, Injected, Scenario, Trial};
use taskd_examples::program::Failure;

/// What a host logs that stops its ranks.
pub(super) const FENCED: &str = "no manager that a majority of the job confirms has reached this host in time";
/// Seconds from the loss of the manager's host to the next step of the other one.
const CONTINUE_BOUND_S: f64 = 5.0;

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "two-manager-lost",
        about: "of two hosts and a third voter, the manager's host is lost: the other host continues",
        bound_s: Some(CONTINUE_BOUND_S),
        shape: TWO_AND_VOTER,
        inject: |trial| Box::pin(lose_manager(trial)),
        ..BASE
    },
    Scenario {
        name: "two-cut",
        about: "two hosts are cut off from each other, and both reach a third voter: exactly one continues",
        bound_s: Some(CONTINUE_BOUND_S),
        shape: TWO_AND_VOTER,
        inject: |trial| Box::pin(cut_apart(trial)),
        ..BASE
    },
    Scenario {
        name: "two-alone",
        about: "two hosts without a third voter are cut off from each other: the one without the manager stops",
        bound_s: Some(CONTINUE_BOUND_S),
        shape: TWO,
        inject: |trial| Box::pin(cut_alone(trial)),
        ..BASE
    },
];

/// Has one of the two hosts with ranks elected: the third voter has none.
async fn elect_with_ranks(trial: &mut Trial) -> Result<(String, u64), Failure> {
    trial.elect(|trial, host| !trial.ranks_on(host).is_empty()).await
}

async fn lose_manager(trial: &mut Trial) -> Result<Injected, Failure> {
    let (host, epoch) = elect_with_ranks(trial).await?;
    let expected = trial.smaller_without(&host);
    let at = trial.lose(&host).await?;
    let mut injected =
        Injected::new(format!("{host}, one of two hosts, with the manager and the store, is lost"), at, expected);
    injected.figures.manager_s = Some(trial.next_manager(epoch, at).await?.1);
    Ok(injected)
}

async fn cut_apart(trial: &mut Trial) -> Result<Injected, Failure> {
    let (manager, _) = elect_with_ranks(trial).await?;
    let other = if manager == MANAGER { HOST } else { MANAGER };
    let expected = trial.smaller_without(other);
    trial.part_of_a_step().await;
    let at = Moment::now();
    let hosts = &trial.training.hosts;
    hosts.get(MANAGER)?.cut_to(hosts.get(HOST)?)?;
    hosts.get(HOST)?.cut_to(hosts.get(MANAGER)?)?;
    let what = format!("packets between {MANAGER} and {HOST} are lost in both directions; both reach the third voter");
    let injected = Injected { fenced: Some(other.into()), ..Injected::new(what, at, expected) };
    stops(trial, injected, other, at).await
}

async fn cut_alone(trial: &mut Trial) -> Result<Injected, Failure> {
    let expected = trial.smaller_without(HOST);
    trial.part_of_a_step().await;
    let at = Moment::now();
    trial.training.hosts.get(HOST)?.set_link(false)?;
    let what = format!("link between two hosts down; {MANAGER} has the only manager");
    let injected = Injected { fenced: Some(HOST.into()), ..Injected::new(what, at, expected) };
    stops(trial, injected, HOST, at).await
}

/// Waits until the other host trains on alone; this one must have stopped, and have logged the reason.
async fn stops(trial: &mut Trial, mut injected: Injected, host: &str, at: Moment) -> Result<Injected, Failure> {
    let hit = injected.expected.ranks();
    trial.trains_without(&hit, at).await?;
    trial.expect_message(&mut injected, host, FENCED)?;
    Ok(injected)
}
