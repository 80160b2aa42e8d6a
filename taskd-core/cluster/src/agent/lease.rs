//! The lease of a host: how long its ranks may run without another grant. When it ends, the host stops its ranks.
//!
//! The rule is pure ([`Lease`]); [`enforce`] waits and stops.

use super::Shared;
use crate::clock::Moment;
use crate::wire::proto::LeaseGrant;
use std::time::Duration;
use taskd_runtime::job::ProcId;
use taskd_runtime::launch::{Phase, ProcStatus};

/// When the ranks of a host must stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lease {
    /// End of the lease; `None` before the first grant and after the host has stopped its ranks.
    until: Option<Moment>,
    /// Epoch of the manager that handed the job over: it extends no lease any more.
    handed_over: Option<u64>,
}

impl Lease {
    /// Takes a grant of a manager that was requested at `sent`. Returns true if the lease became longer.
    pub(super) fn grant(&mut self, grant: &LeaseGrant, sent: Moment, lease: Duration) -> bool {
        if self.handed_over.is_some_and(|epoch| grant.epoch <= epoch) {
            return false;
        }
        // The anchor is at least as old as stated, seen from the moment at which the agent sent its request.
        let age = Duration::from_nanos(grant.anchor_age_nanos);
        let Some(until) = sent.plus(lease).and_then(|until| until.minus(age)) else { return false };
        // Another manager's grant replaces the time for which its predecessor kept the ranks.
        let replaces = self.handed_over.take().is_some();
        let known = self.until.filter(|_| !replaces);
        let until = known.map_or(until, |known| known.later(until));
        if self.until == Some(until) {
            return false;
        }
        self.until = Some(until);
        true
    }

    /// Returns true if the host may run ranks.
    pub(super) fn is_in_force(&self) -> bool {
        self.until.is_some_and(|until| !until.is_over())
    }

    /// Keeps the ranks until `until` for a later manager, as the manager of `epoch` ordered.
    pub(super) fn hand_over(&mut self, epoch: u64, until: Moment) {
        *self = Lease { until: Some(until), handed_over: Some(epoch) };
    }
}

impl Shared {
    /// Changes the lease of this host, and passes its end to the fence. `change` returns true if the lease has changed.
    pub(super) fn change_lease(&self, change: impl FnOnce(&mut Lease) -> bool) {
        self.lease.send_if_modified(|lease| {
            let has_changed = change(lease);
            // A lease that has ended leaves its last deadline in force: no process starts before the next grant.
            if let (true, Some(fence), Some(until)) = (has_changed, &self.fence, lease.until) {
                fence.set_deadline(Some(until.since_boot()));
            }
            has_changed
        });
    }
}

/// Stops the ranks of this host whenever its lease ends.
pub(super) async fn enforce(shared: &Shared) {
    let mut lease = shared.lease.subscribe();
    loop {
        let until = lease.borrow_and_update().until;
        let ended = async {
            match until {
                Some(until) => until.reached().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            changed = lease.changed() => if changed.is_err() { return },
            () = ended => {
                let mut has_ended = false;
                shared.change_lease(|lease| {
                    has_ended = lease.until == until;
                    lease.until = lease.until.filter(|_| !has_ended);
                    has_ended
                });
                if has_ended {
                    fence(shared).await;
                }
            }
        }
    }
}

/// Stops all ranks of this host by force.
async fn fence(shared: &Shared) {
    let host = &shared.host;
    let (running, stopped) = match shared.launcher.list().await {
        Ok(listing) => running_and_stopped(listing.procs),
        Err(error) => {
            tracing::error!(%host, %error, "the lease of this host has ended, and its processes cannot be listed: they stop");
            return shared.launcher.begin_shutdown(Duration::ZERO);
        }
    };
    let number = running.len() + stopped;
    if number == 0 {
        return;
    }
    tracing::error!(
        %host,
        "no manager that a majority of the job confirms has reached this host in time: its {number} processes stop now, \
         because other hosts may replace them"
    );
    shared.fenced.send_modify(|fenced| *fenced += 1);
    if let Err(error) = shared.launcher.stop(&running, Duration::ZERO).await {
        tracing::error!(%host, %error, "the processes of this host could not be stopped: its guard stops them");
        shared.launcher.begin_shutdown(Duration::ZERO);
    }
}

/// Returns the processes that run, and the number of those that the guard has already stopped because the lease has ended.
fn running_and_stopped(procs: Vec<ProcStatus>) -> (Vec<ProcId>, usize) {
    let is_fenced = |status: &ProcStatus| match &status.phase {
        Phase::Exited(exit) => exit.error.as_ref().is_some_and(|error| error.is_fence()),
        _ => false,
    };
    let stopped = procs.iter().filter(|status| is_fenced(status)).count();
    (procs.into_iter().filter(|status| !status.phase.is_exited()).map(|status| status.proc).collect(), stopped)
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskd_runtime::job::{ErrorReport, Exit, Termination};

    const LEASE: Duration = Duration::from_secs(2);

    fn grant(epoch: u64, age_ms: u64) -> LeaseGrant {
        LeaseGrant { epoch, anchor_age_nanos: age_ms.saturating_mul(1_000_000), ..LeaseGrant::default() }
    }

    fn is_about(found: Option<Moment>, expected: Moment) -> bool {
        found.is_some_and(|found| found.steady() == expected.steady())
    }

    #[test]
    fn processes_that_the_guard_has_stopped_first_are_reported_too() {
        let killed = || Exit::new(Termination::Signal { number: 9, core_dumped: false });
        let fenced = killed().with_error(Box::new(ErrorReport::fenced("its host has no lease")));
        let phases = [Phase::Running, Phase::Exited(Box::new(killed())), Phase::Exited(Box::new(fenced))];
        let procs = (0..).zip(phases).map(|(rank, phase)| ProcStatus::new(ProcId::rank(rank, 1), "1", phase)).collect();
        assert_eq!(running_and_stopped(procs), (vec![ProcId::rank(0, 1)], 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_grant_counts_from_its_anchor() {
        let (mut lease, now) = (Lease::default(), Moment::now());
        assert!(lease.grant(&grant(1, 500), now, LEASE));
        let until = now.plus(Duration::from_millis(1500)).expect("it is soon");
        assert!(is_about(lease.until, until) && lease.is_in_force());
        assert!(!lease.grant(&grant(1, 700), now, LEASE), "an older anchor shortens nothing");
        assert!(lease.grant(&grant(1, 0), now, LEASE));
        assert!(!lease.grant(&grant(1, u64::MAX), now, LEASE), "an absurd age grants nothing");
        tokio::time::advance(LEASE).await;
        assert!(!lease.is_in_force());
    }

    #[tokio::test(start_paused = true)]
    async fn a_manager_that_handed_over_extends_nothing() {
        let (mut lease, now) = (Lease::default(), Moment::now());
        let after = |seconds| now.plus(Duration::from_secs(seconds)).expect("it is soon");
        lease.grant(&grant(3, 0), now, LEASE);
        lease.hand_over(3, after(60));
        assert!(!lease.grant(&grant(3, 0), after(100), LEASE));
        assert!(is_about(lease.until, after(60)));
        assert!(lease.grant(&grant(4, 0), now, LEASE), "its successor's grant counts");
        assert!(is_about(lease.until, after(2)));
    }
}
