//! Clauses about managers: one at a time, in rising epochs, until it ends or resigns.

use super::session::{DROPS, HOSTS, Session, Waiting, polled};
use super::{
    CAMPAIGN_CANCEL_SAFE, CAMPAIGN_STORES, CONFIRM_IN_FORCE, Clause, EPOCH_KEEPS, ONE_MANAGER, RESIGN_ENDS,
    RESIGN_OLD_IS_FINE,
};
use crate::consensus::{Candidate, ConsensusError, Epoch};
use tokio::time::timeout;

/// Distance to an epoch that was never in force.
const NEVER: u64 = 1000;
/// Number of times that a manager confirms its epoch while other candidates wait.
const CONFIRMS: u32 = 8;

pub(super) async fn check(s: &mut Session<'_>) {
    race(s).await;
    waits(s).await;
    for awaits in 1..=DROPS {
        dropped_while_waiting(s, awaits).await;
        dropped_while_elected(s, awaits).await;
    }
}

/// Lets all hosts campaign at once, and the manager resign until each has been it.
async fn race(s: &mut Session<'_>) {
    s.vacate().await;
    let mut waiting: Vec<(u32, Waiting)> = (1..=HOSTS).map(|host| (host, s.campaign(host))).collect();
    while !waiting.is_empty() {
        let Some((host, candidate, epoch)) = first(s, &mut waiting).await else { return };
        stored(s, epoch, &candidate).await;
        let time = s.limits.settle;
        for (_, other) in &mut waiting {
            if s.verdict.is_broken(ONE_MANAGER) || !s.still_waits(other, host, epoch, time).await {
                waiting.clear();
                return s.resign(host, epoch).await;
            }
        }
        s.resign(host, epoch).await;
    }
}

/// Waits for the first of several campaigns that returns, and notes its epoch. Campaigns that have returned the same
/// epoch break a clause.
async fn first(s: &mut Session<'_>, waiting: &mut Vec<(u32, Waiting)>) -> Option<(u32, Candidate, Epoch)> {
    let within = s.limits.patience;
    let returned = timeout(within, async {
        loop {
            if let Some(at) = waiting.iter().position(|(_, one)| one.has_returned()) {
                return at;
            }
            tokio::time::sleep(s.limits.settle / 10).await;
        }
    });
    let Ok(at) = returned.await else {
        s.broken(CAMPAIGN_STORES, format!("none of {} candidates was the manager after {within:?}", waiting.len()));
        return None;
    };
    let (host, mut one) = waiting.remove(at);
    let epoch = s.elected(&mut one, within, CAMPAIGN_STORES).await?;
    Some((host, one.candidate.clone(), epoch))
}

/// Checks that every host reads the manager that has been elected.
async fn stored(s: &mut Session<'_>, epoch: Epoch, candidate: &Candidate) {
    for host in 1..=HOSTS {
        let Some(record) = s.read(host, CAMPAIGN_STORES).await else { continue };
        if record.epoch != epoch || record.manager.is_none() {
            let found = record.manager.map_or_else(|| "no manager".into(), |manager| manager.to_string());
            let seen = format!(
                "`campaign` of {candidate} returned epoch {epoch}, and host {host} reads {found} in epoch {}",
                record.epoch
            );
            s.broken(CAMPAIGN_STORES, seen);
        }
    }
}

/// Keeps a manager in force for longer than the lease while another candidate waits, and lets it resign.
async fn waits(s: &mut Session<'_>) {
    s.vacate().await;
    let Some(first) = s.elect(1).await else { return };
    let mut next = s.campaign(2);
    let hold = s.failover().unwrap_or_default() + s.limits.settle;
    for _ in 0..CONFIRMS {
        if !s.still_waits(&mut next, 1, first, hold / CONFIRMS).await {
            return s.resign(1, first).await;
        }
        let handle = s.handle(1);
        if s.call(EPOCH_KEEPS, "`confirm` of the epoch in force", handle.confirm(first)).await.is_none() {
            return s.resign(1, first).await;
        }
    }
    confirms(s, &[first], &[Epoch(first.0.saturating_add(NEVER))]).await;

    let handle = s.handle(1);
    s.call(RESIGN_ENDS, "`resign` of the epoch in force", handle.resign(first)).await;
    let within = s.at_once();
    let Some(second) = s.elected(&mut next, within, RESIGN_ENDS).await else { return };
    old_resigns(s, &[first, Epoch(second.0.saturating_add(NEVER))], second).await;
    confirms(s, &[second], &[first]).await;
    s.resign(2, second).await;
    ended(s, second).await;
}

/// Checks on every host which epochs are in force.
async fn confirms(s: &mut Session<'_>, in_force: &[Epoch], over: &[Epoch]) {
    for host in 1..=HOSTS {
        let handle = s.handle(host);
        for epoch in in_force {
            let what = format!("`confirm` of the epoch in force on host {host}");
            s.call(CONFIRM_IN_FORCE, &what, handle.confirm(*epoch)).await;
        }
        for epoch in over {
            superseded(s, CONFIRM_IN_FORCE, host, *epoch).await;
        }
    }
}

/// Checks that `confirm` of an epoch that is not in force returns `Superseded`.
pub(super) async fn superseded(s: &mut Session<'_>, clause: Clause, host: u32, epoch: Epoch) {
    let answer = timeout(s.limits.patience, s.handle(host).confirm(epoch)).await;
    if !matches!(answer, Ok(Err(ConsensusError::Superseded { .. }))) {
        let seen = format!("`confirm` of epoch {epoch}, which is not in force, returned {answer:?} on host {host}");
        s.broken(clause, seen);
    }
}

/// Resigns epochs that are not in force, and checks that the one in force stays.
async fn old_resigns(s: &mut Session<'_>, old: &[Epoch], in_force: Epoch) {
    for epoch in old {
        for host in 1..=HOSTS {
            let handle = s.handle(host);
            let what = format!("`resign` of epoch {epoch}, which is not in force,");
            s.call(RESIGN_OLD_IS_FINE, &what, handle.resign(*epoch)).await;
        }
    }
    let what = format!("`confirm` after epochs before {in_force} were resigned");
    let handle = s.handle(2);
    s.call(RESIGN_OLD_IS_FINE, &what, handle.confirm(in_force)).await;
}

/// Checks that no host sees the manager any more that has resigned.
async fn ended(s: &mut Session<'_>, epoch: Epoch) {
    let within = s.at_once();
    for host in 1..=HOSTS {
        let ended = s.read_until(host, within, |record| record.epoch != epoch || record.manager.is_none()).await;
        if let Err(last) = ended {
            let seen = format!("epoch {epoch} has resigned, and host {host} reads after {within:?}: {last}");
            return s.broken(RESIGN_ENDS, seen);
        }
    }
}

/// Drops a campaign that waits for the end of another manager.
async fn dropped_while_waiting(s: &mut Session<'_>, awaits: u32) {
    s.vacate().await;
    let Some(epoch) = s.elect(1).await else { return };
    let (handle, candidate) = (s.handle(2), s.candidate(2));
    polled(handle.campaign(&candidate), awaits, s.limits.settle).await;
    s.resign(1, epoch).await;
    others_turn(s).await;
}

/// Drops a campaign while the engine elects its candidate.
async fn dropped_while_elected(s: &mut Session<'_>, awaits: u32) {
    s.vacate().await;
    let (handle, candidate) = (s.handle(2), s.candidate(2));
    if let Some(Ok(epoch)) = polled(handle.campaign(&candidate), awaits, s.limits.settle).await {
        s.resign(2, epoch).await;
    }
    others_turn(s).await;
}

/// Checks that another candidate becomes the manager after a campaign was dropped.
async fn others_turn(s: &mut Session<'_>) {
    let mut next = s.campaign(3);
    let within = s.takeover();
    if let Some(epoch) = s.elected(&mut next, within, CAMPAIGN_CANCEL_SAFE).await {
        s.resign(3, epoch).await;
    }
}
