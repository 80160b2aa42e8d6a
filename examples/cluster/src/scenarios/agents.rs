//! Faults of agents, and agents that must be refused.

use super::expected::Moment;
use super::hosts::HOST;
use super::shapes::{Shape, THREE};
use super::{BASE, Expected, Injected, Scenario, Trial};
use rustix::process::Signal;
use std::time::Duration;
use taskd_examples::program::Failure;
use tokio::time::sleep;

/// Host that is not part of the job.
const OTHER: &str = "h4";
/// Time within which an agent that is refused must end.
const REFUSED_WITHIN: Duration = Duration::from_secs(30);

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "agent-restarted",
        about: "the agent of a host is killed, and started again within its lease",
        inject: |trial| Box::pin(restart_agent(trial)),
        ..BASE
    },
    Scenario {
        name: "same-name",
        about: "a second agent states the name of a host that is connected",
        shape: Shape { more_hosts: 1, ..THREE },
        inject: |trial| Box::pin(same_name(trial)),
        ..BASE
    },
    Scenario {
        name: "other-job",
        about: "an agent of another job connects",
        shape: Shape { more_hosts: 1, ..THREE },
        inject: |trial| Box::pin(other_job(trial)),
        ..BASE
    },
    Scenario {
        name: "agent-stopped",
        about: "the agent of a host gets SIGSTOP, so that it cannot stop its ranks; the guard must",
        inject: |trial| Box::pin(stop_agent(trial)),
        ..BASE
    },
];

async fn restart_agent(trial: &mut Trial) -> Result<Injected, Failure> {
    let lease = trial.training.plan.lease;
    trial.part_of_a_step().await;
    let at = Moment::now();
    trial.restart_program(HOST).await?;
    let what = format!("SIGKILL to the agent of {HOST}, and its restart at once");
    let mut injected = Injected::new(what, at, Expected::Undisturbed { host: None, observe: lease * 2 });
    sleep(lease * 2).await;
    if let Some(agent) = trial.training.programs.get_mut(HOST)
        && let Some(status) = agent.wait(Duration::ZERO).await?
    {
        injected.problems.push(format!("the second agent of {HOST} has ended ({status}): {}", agent.stderr().trim()));
    }
    Ok(injected)
}

async fn same_name(trial: &mut Trial) -> Result<Injected, Failure> {
    let what = format!("an agent on {OTHER} with the name {HOST}");
    refused(trial, what, "job", HOST, &[HOST, "connected already"]).await
}

async fn other_job(trial: &mut Trial) -> Result<Injected, Failure> {
    let what = format!("an agent on {OTHER} of the job `other`");
    refused(trial, what, "other", OTHER, &["job job", "job other"]).await
}

/// Starts an agent that must end with one error that contains these words, and must not disturb the job.
async fn refused(
    trial: &mut Trial,
    what: String,
    job: &str,
    host_name: &str,
    words: &[&str],
) -> Result<Injected, Failure> {
    let observe = trial.training.plan.lease;
    let at = Moment::now();
    let mut agent = trial.training.agent(OTHER, job, host_name)?;
    let ended = agent.wait(REFUSED_WITHIN).await?;
    let mut injected = Injected::new(what, at, Expected::Undisturbed { host: None, observe });
    // Lines of the log, such as the one about plaintext, are not the error.
    let error = agent.stderr();
    let error: String =
        error.lines().filter(|line| !line.trim_start().starts_with("WARN ")).collect::<Vec<_>>().join("\n");
    match ended {
        None => injected.problems.push(format!("the agent still runs after {REFUSED_WITHIN:?}: {}", error.trim())),
        Some(status) if status.success() => injected.problems.push("the agent exits with 0".into()),
        Some(_) if error.lines().count() == 1 && words.iter().all(|word| error.contains(word)) => {}
        Some(_) => injected.problems.push(format!("its error is not one line about {}: {error:?}", words.join(", "))),
    }
    injected.what += &format!(" ({})", error.trim());
    Ok(injected)
}

async fn stop_agent(trial: &mut Trial) -> Result<Injected, Failure> {
    let expected = trial.loss_of(HOST);
    trial.part_of_a_step().await;
    let at = Moment::now();
    trial.training.program(HOST)?.signal(Signal::STOP);
    let injected = Injected::new(format!("SIGSTOP to the agent of {HOST}"), at, expected);
    Ok(Injected { fenced: Some(HOST.into()), ..injected })
}
