//! What keeps the number of voters up: a voter that lost its store is admitted again, and silent voters are found.

use super::links::Method;
use super::messages::HelloAnswer;
use super::{Embedded, Membership, VoterAddress};
use crate::consensus::ConsensusError;
use futures::future::join_all;
use std::convert::Infallible;
use tokio::time::sleep;

impl Embedded {
    /// Requests admission whenever this voter is outside of the job's votes, as it is after a reboot of its host. For a
    /// host that has no voter, because it never had one or was replaced, it waits until a leader admits it.
    pub async fn keep_admitted(&self) -> Infallible {
        let mut logged = String::new();
        loop {
            sleep(self.inner.config.settings.silence()).await;
            if self.status().membership != Membership::Outside {
                continue;
            }
            match self.request_admission(None).await {
                Ok(()) => tracing::info!(voter = %self.inner.config.own, "this voter is admitted"),
                Err(ConsensusError::Refused(why)) => tracing::debug!(%why, "this host has no voter"),
                Err(error) if error.to_string() != logged => {
                    logged = error.to_string();
                    tracing::info!(why = %logged, "this voter is not admitted yet: it asks again");
                }
                Err(_) => {}
            }
        }
    }

    /// Returns the voters that do not answer now under their identifiers. A voter that was started again on its host after
    /// a loss of its store is not among them: it requests admission itself.
    pub async fn silent_voters(&self) -> Vec<(u64, VoterAddress)> {
        let voters = self.status().voters.into_iter().filter(|(voter, _)| *voter != self.inner.voter);
        let asked = voters.map(|(voter, place)| async move {
            let limit = self.inner.config.settings.rpc_limit();
            let hello = self.inner.links.call::<_, HelloAnswer>((&place.address, 0), Method::Hello, &(), limit).await;
            hello.map_or(true, |hello| hello.place != place).then_some((voter, place))
        });
        join_all(asked).await.into_iter().flatten().collect()
    }
}
