//! Losses of voters: which parts of a job continue, which stop, and what is logged.

use super::expected::Moment;
use super::shapes::FIVE_VOTERS;
use super::two::FENCED;
use super::{BASE, Expected, Injected, Scenario, Trial};
use std::time::Duration;
use taskd_examples::program::Failure;
use tokio::time::sleep;

/// Voters without ranks.
const VOTERS: [&str; 3] = ["h3", "h4", "h5"];
/// What an agent logs that finds no manager.
const NO_MANAGER: &str = "the agent has no manager";
/// Time after which a process that was killed is seen to have ended, on a loaded machine.
const SEEN_WITHIN: Duration = Duration::from_secs(1);

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "two-voters-lost",
        about: "two of five voters are lost, one after the other: training and decisions continue",
        shape: FIVE_VOTERS,
        inject: |trial| Box::pin(lose_in_turn(trial, 2)),
        ..BASE
    },
    Scenario {
        name: "voters-lost-in-turn",
        about: "three of five voters are lost, one after the other",
        shape: FIVE_VOTERS,
        inject: |trial| Box::pin(lose_in_turn(trial, 3)),
        ..BASE
    },
    Scenario {
        name: "voters-lost-at-once",
        about: "three of five voters are lost at the same time, and come back: the job stops, then it trains again",
        shape: FIVE_VOTERS,
        inject: |trial| Box::pin(lose_at_once(trial)),
        ..BASE
    },
    Scenario {
        name: "all-voters-lost",
        about: "all five voters are lost at the same time, with all ranks: the last host waits",
        shape: FIVE_VOTERS,
        inject: |trial| Box::pin(lose_all(trial)),
        ..BASE
    },
];

async fn lose_in_turn(trial: &mut Trial, number: usize) -> Result<Injected, Failure> {
    let observe = trial.training.plan.lease * 2;
    let lost = VOTERS.get(..number).ok_or("there are not so many voters")?;
    let mut first = None;
    for host in lost {
        let at = trial.lose(host).await?;
        first.get_or_insert(at);
        sleep(observe).await;
    }
    let at = first.ok_or("no voter was lost")?;
    let what = format!("voters {} are lost, one after the other", lost.join(", "));
    let mut injected = Injected::new(what, at, Expected::Undisturbed { host: None, observe });
    if trial.training.lives().values().all(|life| life.ended) {
        trial.expect_message(&mut injected, "h1", FENCED)?;
        return Err(format!("all ranks have stopped: {}", injected.notes.join("; ")).into());
    }
    trial.prove_decisions(&mut injected).await?;
    Ok(injected)
}

async fn lose_at_once(trial: &mut Trial) -> Result<Injected, Failure> {
    trial.part_of_a_step().await;
    let at = Moment::now();
    take_away(trial, &VOTERS)?;
    let fenced = trial.stopped(at).await?;
    let what = format!("voters {} are lost at the same time, and come back", VOTERS.join(", "));
    let mut injected = Injected::new(what, at, Expected::Stopped { then: None });
    injected.figures.fenced_s = Some(fenced);
    for host in ["h1", "h2"] {
        trial.expect_message(&mut injected, host, FENCED)?;
    }
    for host in VOTERS {
        trial.bring_back(host).await?;
    }
    injected.expected = Expected::Stopped { then: Some(Moment::now()) };
    Ok(injected)
}

async fn lose_all(trial: &mut Trial) -> Result<Injected, Failure> {
    trial.part_of_a_step().await;
    let at = Moment::now();
    take_away(trial, &["h1", "h2", "h3", "h4", "h5"])?;
    sleep(SEEN_WITHIN + trial.training.plan.lease).await;
    let mut injected = Injected::new("all five voters are lost at the same time", at, Expected::Stopped { then: None });
    injected.figures.fenced_s = Some(trial.stopped(at).await?);
    trial.expect_message(&mut injected, "h6", NO_MANAGER)?;
    Ok(injected)
}

/// Takes all these hosts away: first all links, then all processes.
fn take_away(trial: &Trial, hosts: &[&str]) -> Result<(), Failure> {
    for host in hosts {
        trial.training.hosts.get(host)?.set_link(false)?;
    }
    for host in hosts {
        trial.training.hosts.get(host)?.kill_all()?;
    }
    Ok(())
}
