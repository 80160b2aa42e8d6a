//! Confirms the manager again and again: each confirmation is the anchor of the leases that follow.
//!
//! The consensus engine confirms it. While the engine does not answer, all *standbys* together do: the other processes
//! that can become manager. So an etcd that is unavailable stops no rank, as long as every standby answers; the manager
//! decides nothing meanwhile, because every decision is a write of the engine.
//!
//! # Why all standbys are as good as a majority
//! A lease is safe if its anchor is not later than the moment E at which the next manager took office: that one starts
//! replacements [`replace_after`](crate::ClusterSettings::replace_after) E at the earliest, when all those leases have
//! ended. A process notes that it takes office *before* it reads E ([`ManagerService`](super::ManagerService)), and states
//! from then on that it has. A statement "no later epoch" was therefore made before the E of this process. If the manager
//! reads the anchor A, then asks, and every process that can ever take office states this, then A is before every E.
//!
//! Two conditions make "every process" complete:
//! - Only the listed candidates stand, and all of them have the same list, which their statements contain. One that lists
//!   others is not counted.
//! - A statement speaks for a process, not for a host: a candidate that took office, ended and was started again knows
//!   nothing of it. So the processes are the ones that had stated the same *before* a confirmation of the engine. A
//!   process that has ended since, or was replaced, makes the standbys incomplete until the engine answers again.
//!
//! If one standby does not answer, for whatever reason, nothing is extended: it may be manager on the other side of a cut.

use super::Inner;
use super::standby::Statements;
use crate::clock::Moment;
use crate::consensus::ConsensusError;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// Interval at which the standbys are asked while the engine answers, to know their processes.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Runs until the manager is over.
pub(super) async fn confirm(manager: Arc<Inner>) {
    let over = manager.over();
    tokio::select! {
        biased;
        _ = over => {}
        () = by_engine(&manager) => {}
        () = by_standbys(&manager) => {}
    }
}

async fn by_engine(manager: &Inner) {
    let mut ticks = interval(manager.settings.confirm_interval());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let anchor = Moment::now();
        match manager.consensus.confirm(manager.epoch).await {
            Ok(()) => {
                manager.confirmed.send_replace(anchor);
                manager.extend(anchor);
            }
            Err(error @ ConsensusError::Superseded { .. }) => return manager.end(&error.to_string()),
            Err(error) => tracing::warn!(%error, "the manager is not confirmed: it makes no decision meanwhile"),
        }
    }
}

async fn by_standbys(manager: &Inner) {
    let mut ticks = interval(manager.settings.confirm_interval());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut known, mut candidate, mut looked) = (None::<Statements>, None::<(Statements, Moment)>, None::<Instant>);
    loop {
        ticks.tick().await;
        let confirmed = *manager.confirmed.borrow();
        let answers = confirmed.elapsed() < manager.settings.engine_silent_after();
        manager.note_engine(answers);
        let Some(standbys) = &manager.standbys else { continue };
        if let Some((statements, _)) = candidate.take_if(|(_, made)| !made.is_after(confirmed)) {
            known = Some(statements); // the engine has confirmed this manager since
        }
        if answers {
            if looked.is_some_and(|looked| looked.elapsed() < LOOK_EVERY) {
                continue;
            }
            looked = Some(Instant::now());
            match standbys.ask(manager).await {
                Ok(statements) => candidate = Some((statements, Moment::now())),
                Err(_) => (known, candidate) = (None, None), // it may be another process when it answers again
            }
            continue;
        }
        let anchor = Moment::now();
        let why = match (&known, standbys.ask(manager).await) {
            (Some(known), Ok(now)) if *known == now => {
                manager.extend(anchor);
                manager.standbys_confirm(Ok(()));
                continue;
            }
            (_, Err(why)) => why,
            (Some(_), Ok(_)) => "a standby is another process than before".into(),
            (None, Ok(_)) => "not all standbys answered before".into(),
        };
        manager.standbys_confirm(Err(why));
    }
}

impl Inner {
    /// Moves the anchor of leases on, unless this manager is over.
    fn extend(&self, to: Moment) {
        self.anchor.send_if_modified(|anchor| {
            let in_office = anchor.is_some();
            *anchor = anchor.map(|anchor| anchor.later(to));
            in_office
        });
    }

    /// Notes whether the engine answers.
    fn note_engine(&self, answers: bool) {
        let changed = self.engine_answers.send_if_modified(|known| std::mem::replace(known, answers) != answers);
        if changed && answers {
            tracing::info!("the consensus engine answers again: decisions resume");
        }
    }

    /// Logs whether all standbys confirm this manager while the engine does not answer, if this has changed.
    fn standbys_confirm(&self, result: Result<(), String>) {
        let changed = self.standbys_log.send_if_modified(|known| {
            let changed = known.as_ref() != Some(&result);
            *known = Some(result.clone());
            changed
        });
        match result {
            _ if !changed => {}
            Ok(()) => tracing::warn!(
                "the consensus engine does not answer; all standbys confirm this manager, so training goes on, and no \
                 decision is made"
            ),
            Err(why) => tracing::error!(
                %why,
                "neither the consensus engine nor all standbys confirm this manager: the hosts stop at the end of their \
                 leases"
            ),
        }
    }
}
