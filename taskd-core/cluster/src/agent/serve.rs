//! Carries out the manager's calls on the agent's launcher.

use crate::wire::proto::{Answer, Call, answer};
use crate::wire::{
    BodyError, DirectiveArguments, PrepareArguments, StartArguments, StopArguments, decode, encode, method,
};
use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use taskd_runtime::job::{NodeId, Rank, WorkerSpec};
use taskd_runtime::launch::python::{COPY_TO_VARIABLE, SECRET_VARIABLE};
use taskd_runtime::launch::{LaunchError, Launcher, StartBatch};

/// What the agent itself does for a call.
pub(super) enum Special {
    /// The manager hands the job over: the ranks are kept for this time.
    Keep(Duration),
    /// The job has ended, with this result in one sentence.
    End(String),
    /// A later manager may answer at these addresses.
    Candidates(Vec<String>),
}

/// Carries out a call, and returns its answer. A method that the agent does not know gets an answer that states that.
/// `rendezvous` is called with the address of the agent on the host of the rendezvous service, before the launcher is.
pub(super) async fn serve(
    launcher: &dyn Launcher,
    call: &Call,
    rendezvous: impl Fn(Option<String>) + Send + Sync,
) -> (Answer, Option<Special>) {
    let mut special = None;
    let result = match &*call.method {
        method::START => match read::<StartArguments>(&call.arguments) {
            Ok(StartArguments { batch, rendezvous: at, secret, address, copies }) => {
                rendezvous(at);
                value(launcher.start(&with_settings(batch, secret.as_ref(), address.as_ref(), &copies)).await)
            }
            Err(error) => Err(error),
        },
        method::STOP => match read::<StopArguments>(&call.arguments) {
            Ok(StopArguments { procs, grace }) => value(launcher.stop(&procs, grace).await),
            Err(error) => Err(error),
        },
        method::LIST => value(launcher.list().await),
        method::WATCH => match read(&call.arguments) {
            Ok(from) => value(launcher.watch(from).await),
            Err(error) => Err(error),
        },
        method::ACKNOWLEDGE => match read::<Vec<_>>(&call.arguments) {
            Ok(exits) => value(launcher.acknowledge(&exits).await),
            Err(error) => Err(error),
        },
        method::SEND_DIRECTIVES => match read::<DirectiveArguments>(&call.arguments) {
            Ok(DirectiveArguments { id, batch, rendezvous: at }) => {
                rendezvous(at);
                value(launcher.send_directives(id, &batch).await)
            }
            Err(error) => Err(error),
        },
        method::PREPARE => match read::<PrepareArguments>(&call.arguments) {
            Ok(arguments) => {
                rendezvous(arguments.rendezvous.clone());
                let options = arguments.options();
                let PrepareArguments { batch, secret, address, copies, .. } = arguments;
                let batch = with_settings(batch, secret.as_ref(), address.as_ref(), &copies);
                value(launcher.prepare(&batch, &options).await)
            }
            Err(error) => Err(error),
        },
        method::DETACH => read(&call.arguments).and_then(|keep| {
            special = Some(Special::Keep(keep));
            value(Ok(()))
        }),
        method::JOB_END => read(&call.arguments).and_then(|result| {
            special = Some(Special::End(result));
            value(Ok(()))
        }),
        method::CANDIDATES => read(&call.arguments).and_then(|addresses| {
            special = Some(Special::Candidates(addresses));
            value(Ok(()))
        }),
        method::BEGIN_SHUTDOWN => read(&call.arguments).and_then(|grace| {
            launcher.begin_shutdown(grace);
            value(Ok(()))
        }),
        unknown => {
            let result = Some(answer::Result::UnknownMethod(unknown.to_owned()));
            return (Answer { call: call.id, result }, None);
        }
    };
    (answer(call, result), special)
}

/// Variable of a rank: the address at which ranks of other hosts reach it.
const HOST_VARIABLE: &str = "TASKD_HOST";

/// Gives the ranks of a batch their environment, unless the batch sets a variable itself.
fn with_settings(
    mut batch: StartBatch,
    secret: Option<&String>,
    address: Option<&String>,
    copies: &BTreeMap<Rank, Rank>,
) -> StartBatch {
    let (mut from, mut to): (Option<Arc<WorkerSpec>>, Option<Arc<WorkerSpec>>) = (None, None);
    for order in &mut batch.starts {
        let Some(rank) = order.proc.role.rank() else { continue };
        // Orders of one specification share it, before and after.
        if from.as_ref() != Some(&order.spec) {
            let mut spec = (*order.spec).clone();
            for (name, value) in [(SECRET_VARIABLE, secret), (HOST_VARIABLE, address)] {
                if let Some(value) = value {
                    spec.env.entry(name.into()).or_insert_with(|| value.clone());
                }
            }
            (from, to) = (Some(Arc::clone(&order.spec)), Some(Arc::new(spec)));
        }
        if let Some(spec) = &to {
            order.spec = Arc::clone(spec);
        }
        if let Some(holder) = copies.get(&rank) {
            let env = &mut Arc::make_mut(&mut order.spec).env;
            env.entry(COPY_TO_VARIABLE.into()).or_insert_with(|| holder.0.to_string());
        }
    }
    batch
}

/// Returns the answer to a call of an epoch that is over.
pub(super) fn superseded(call: &Call, epoch: u64) -> Answer {
    let text = format!("epoch {} is over: this host obeys the manager of epoch {epoch}", call.epoch);
    answer(call, Err(LaunchError::Superseded(text)))
}

/// Returns the answer to a call for which this host has no lease.
pub(super) fn without_lease(call: &Call, host: &NodeId) -> Answer {
    let text = format!("{host} has no lease: it starts no process until a manager that is confirmed grants one");
    answer(call, Err(LaunchError::Unreachable(text)))
}

/// Returns the answer to a call for which the agent has no room.
pub(super) fn too_many(call: &Call) -> Answer {
    answer(call, Err(LaunchError::Unreachable("the agent carries out as many calls as it can: try again".into())))
}

fn answer(call: &Call, result: Result<Bytes, LaunchError>) -> Answer {
    let result = match result {
        Ok(value) => answer::Result::Value(value),
        Err(error) => answer::Result::Error(encode(&error).unwrap_or_default()),
    };
    Answer { call: call.id, result: Some(result) }
}

pub(super) fn read<T: DeserializeOwned>(arguments: &[u8]) -> Result<T, LaunchError> {
    decode(arguments).map_err(|error| refused("the manager's call cannot be read", &error))
}

fn value<T: Serialize>(result: Result<T, LaunchError>) -> Result<Bytes, LaunchError> {
    encode(&result?).map_err(|error| refused("the agent's answer cannot be sent", &error))
}

fn refused(what: &str, why: &BodyError) -> LaunchError {
    LaunchError::Refused(format!("{what}: {why}"))
}
