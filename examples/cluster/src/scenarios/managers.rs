//! Losses of managers: another voter becomes the manager, and training does not notice.

use super::expected::Moment;
use super::shapes::{APART, SIX};
use super::{BASE, Expected, Injected, Scenario, Trial};
use taskd_examples::program::Failure;
use tokio::time::sleep;

/// What a manager logs that has lost its office.
const STEPPED_DOWN: &str = "another host is the manager";
/// What a manager logs that no majority confirms.
const NOT_CONFIRMED: &str = "the manager is not confirmed";
/// Seconds from the cut of the manager's host, which has ranks, to the next step.
const CUT_BOUND_S: f64 = 5.0;
/// Seconds for which training may pause while a manager on a host without ranks is replaced.
const STALL_BOUND_S: f64 = 0.5;

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "manager-host-lost",
        about: "the manager's host, which has no rank, is lost: training does not stall, and another manager decides",
        bound_s: Some(STALL_BOUND_S),
        shape: APART,
        inject: |trial| Box::pin(lose_manager_host(trial)),
        ..BASE
    },
    Scenario {
        name: "manager-killed",
        about: "the manager's program gets SIGKILL and is started again: its ranks run on, and another manager decides",
        bound_s: Some(STALL_BOUND_S),
        shape: SIX,
        inject: |trial| Box::pin(kill_manager(trial)),
        ..BASE
    },
    Scenario {
        name: "manager-cut",
        about: "the manager's host, with rank 0 and the store, is cut off with a minority, and comes back",
        bound_s: Some(CUT_BOUND_S),
        shape: SIX,
        inject: |trial| Box::pin(cut_manager(trial)),
        ..BASE
    },
    Scenario {
        name: "manager-cut-apart",
        about: "the manager's host, which has no rank, is cut off with a minority, and comes back",
        bound_s: Some(STALL_BOUND_S),
        shape: APART,
        inject: |trial| Box::pin(cut_manager_apart(trial)),
        ..BASE
    },
];

/// Has a host without ranks elected: one of the three voters has a rank.
async fn elect_apart(trial: &mut Trial) -> Result<(String, u64), Failure> {
    trial.elect(|trial, host| trial.ranks_on(host).is_empty()).await
}

async fn lose_manager_host(trial: &mut Trial) -> Result<Injected, Failure> {
    let observe = trial.training.plan.lease * 2;
    let (host, epoch) = elect_apart(trial).await?;
    let at = trial.lose(&host).await?;
    let expected = Expected::Undisturbed { host: Some(host.clone()), observe };
    let mut injected = Injected::new(format!("{host}, the host of the manager alone, is lost"), at, expected);
    injected.figures.manager_s = Some(trial.next_manager(epoch, at).await?.1);
    sleep(observe).await; // the leases that the old manager granted have ended by now
    trial.prove_decisions(&mut injected).await?;
    Ok(injected)
}

async fn kill_manager(trial: &mut Trial) -> Result<Injected, Failure> {
    let observe = trial.training.plan.lease * 2;
    let (host, epoch) = trial.manager()?;
    trial.part_of_a_step().await;
    let at = Moment::now();
    trial.restart_program(&host).await?;
    let expected = Expected::Undisturbed { host: None, observe };
    let what =
        format!("SIGKILL to the manager on {host}, which is also the agent of its host, and its restart at once");
    let mut injected = Injected::new(what, at, expected);
    injected.figures.manager_s = Some(trial.next_manager(epoch, at).await?.1);
    sleep(observe).await;
    trial.prove_decisions(&mut injected).await?;
    Ok(injected)
}

async fn cut_manager(trial: &mut Trial) -> Result<Injected, Failure> {
    let (host, epoch) = trial.elect_first().await?;
    let expected = trial.loss_of(&host);
    trial.part_of_a_step().await;
    let at = Moment::now();
    trial.training.hosts.get(&host)?.set_link(false)?;
    let mut injected =
        Injected::new(format!("link of {host}, the manager's host, down; its processes run on"), at, expected);
    injected.fenced = Some(host.clone());
    injected.figures.manager_s = Some(trial.next_manager(epoch, at).await?.1);
    let hit = injected.expected.ranks();
    trial.trains_again(&hit, at).await?;
    steps_down(trial, &mut injected, &host).await?;
    Ok(injected)
}

async fn cut_manager_apart(trial: &mut Trial) -> Result<Injected, Failure> {
    let observe = trial.training.plan.lease * 2;
    let (host, epoch) = elect_apart(trial).await?;
    trial.part_of_a_step().await;
    let at = Moment::now();
    trial.training.hosts.get(&host)?.set_link(false)?;
    let expected = Expected::Undisturbed { host: Some(host.clone()), observe };
    let mut injected = Injected::new(format!("link of {host}, the host of the manager alone, down"), at, expected);
    injected.figures.manager_s = Some(trial.next_manager(epoch, at).await?.1);
    sleep(observe).await;
    trial.prove_decisions(&mut injected).await?; // while the old manager is alive, too
    steps_down(trial, &mut injected, &host).await?;
    Ok(injected)
}

/// Brings the old manager's link back: it must have stopped to decide, and steps down.
async fn steps_down(trial: &mut Trial, injected: &mut Injected, host: &str) -> Result<(), Failure> {
    trial.expect_message(injected, host, NOT_CONFIRMED)?;
    trial.bring_back(host).await?;
    let logged = |training: &crate::training::Training| {
        let log = training.program(host).ok()?.stderr();
        log.contains(STEPPED_DOWN).then_some(())
    };
    trial.training.wait_until(&format!("the manager on {host} steps down"), logged).await?;
    trial.expect_message(injected, host, STEPPED_DOWN)
}
