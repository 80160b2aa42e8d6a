//! Holds the job's decisions while the consensus engine does not answer.

use std::convert::Infallible;
use std::future::pending;
use taskd_core::runtime::RuntimeHandle;
use tokio::sync::watch;

/// Pauses the runtime while the engine does not answer: a recovery that begins then would use up its attempts, because no
/// world can be stored.
pub(crate) async fn while_unconfirmed(mut answers: watch::Receiver<bool>, runtime: RuntimeHandle) -> Infallible {
    let runtime = runtime.with_actor("consensus");
    loop {
        let answers_now = *answers.borrow_and_update();
        if !answers_now {
            let why = "the consensus engine does not answer: no decision can be stored";
            match runtime.pause(why).await {
                Ok(_) => println!("decisions     held: {why}"),
                Err(error) => tracing::debug!(%error, "the runtime is not paused"),
            }
            if answers.wait_for(|answers| *answers).await.is_err() {
                return pending().await; // the manager is over
            }
            match runtime.resume("the consensus engine answers again").await {
                Ok(_) => println!("decisions     resumed"),
                Err(error) => tracing::warn!(%error, "the runtime stays paused"),
            }
        }
        if answers.changed().await.is_err() {
            return pending().await;
        }
    }
}
