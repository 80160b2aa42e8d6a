//! Carries out the manager's calls on the agent's launcher, trace sources and records.

use super::{Shared, links, records};
use crate::wire::proto::{Answer, Call, answer};
use crate::wire::{
    BodyError, CollectArguments, DirectiveArguments, LinksArguments, NextArguments, PrepareArguments, StartArguments,
    StopArguments, decode, encode, method, unpack,
};
use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use taskd_runtime::job::{NodeId, Rank, WorkerSpec, World};
use taskd_runtime::launch::python::{COPY_TO_VARIABLE, SECRET_VARIABLE};
use taskd_runtime::launch::{LaunchError, StartBatch};

/// What the agent itself does for a call.
pub(super) enum Special {
    /// The manager hands the job over: the ranks are kept for this time.
    Keep(Duration),
    /// The job has ended, with this result in one sentence.
    End(String),
    /// The host cannot take part in the job, for this reason.
    Refuse(String),
    /// A later manager may answer at these addresses.
    Candidates(Vec<String>),
}

/// Carries out a call, and returns its answer. A method that the agent does not know gets an answer that states that.
/// The address of the agent on the host of the rendezvous service is used from now on, before the launcher is called.
pub(super) async fn serve(shared: &Shared, call: &Call) -> (Answer, Option<Special>) {
    let (launcher, mut special) = (&shared.launcher, None);
    let result = match &*call.method {
        method::START => start(shared, call).await,
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
        method::SEND_DIRECTIVES => send_directives(shared, call).await,
        method::PREPARE => prepare(shared, call).await,
        method::DETACH => read(&call.arguments).and_then(|keep| {
            special = Some(Special::Keep(keep));
            value(Ok(()))
        }),
        method::JOB_END => read(&call.arguments).and_then(|result| {
            special = Some(Special::End(result));
            value(Ok(()))
        }),
        method::REFUSE => read(&call.arguments).and_then(|why| {
            special = Some(Special::Refuse(why));
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
        other => match look(shared, call).await {
            Some(result) => result,
            None => {
                let result = Some(answer::Result::UnknownMethod(other.to_owned()));
                return (Answer { call: call.id, result }, None);
            }
        },
    };
    (answer(call, result), special)
}

/// Carries out a call that changes nothing on this host: to its sources, its links and its records. `None` for an unknown method.
async fn look(shared: &Shared, call: &Call) -> Option<Result<Bytes, LaunchError>> {
    let (sources, dir) = (&shared.sources, shared.records.as_deref());
    Some(match &*call.method {
        method::SOURCES_NEXT => match read::<NextArguments>(&call.arguments) {
            Ok(NextArguments { after }) => Ok(sources.next(after).await),
            Err(error) => Err(error),
        },
        method::SOURCES_COLLECT => match read::<CollectArguments>(&call.arguments) {
            Ok(CollectArguments { probe, about }) => value(Ok(sources.collect(&probe, about).await)),
            Err(error) => Err(error),
        },
        method::LINKS_CHECK => match read::<LinksArguments>(&call.arguments) {
            Ok(check) => value(links::check(&shared.access, check).await),
            Err(error) => Err(error),
        },
        method::RECORDS_LIST => match read(&call.arguments) {
            Ok(request) => value(records::list(dir, request).await),
            Err(error) => Err(error),
        },
        method::RECORDS_READ => match read(&call.arguments) {
            Ok(request) => value(records::read(dir, request).await),
            Err(error) => Err(error),
        },
        _ => return None,
    })
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

/// Returns the answer to a relayed call that was made long ago.
pub(super) fn forgotten(call: &Call) -> Answer {
    let text = "the call is older than all that this agent remembers: whether it was carried out is not known";
    answer(call, Err(LaunchError::Unreachable(text.into())))
}

fn answer(call: &Call, result: Result<Bytes, LaunchError>) -> Answer {
    let result = match result {
        Ok(value) => answer::Result::Value(value),
        Err(error) => answer::Result::Error(encode(&error).unwrap_or_default()),
    };
    Answer { call: call.id, result: Some(result) }
}

async fn start(shared: &Shared, call: &Call) -> Result<Bytes, LaunchError> {
    let StartArguments { mut batch, rendezvous, secret, address, copies } = read(&call.arguments)?;
    world(call, &mut batch.world)?;
    shared.rendezvous_is_at(rendezvous);
    value(shared.launcher.start(&with_settings(batch, secret.as_ref(), address.as_ref(), &copies)).await)
}

async fn send_directives(shared: &Shared, call: &Call) -> Result<Bytes, LaunchError> {
    let DirectiveArguments { id, mut batch, rendezvous } = read(&call.arguments)?;
    world(call, &mut batch.world)?;
    shared.rendezvous_is_at(rendezvous);
    value(shared.launcher.send_directives(id, &batch).await)
}

async fn prepare(shared: &Shared, call: &Call) -> Result<Bytes, LaunchError> {
    let arguments: PrepareArguments = read(&call.arguments)?;
    let options = arguments.options();
    let PrepareArguments { mut batch, rendezvous, secret, address, copies, .. } = arguments;
    world(call, &mut batch.world)?;
    shared.rendezvous_is_at(rendezvous);
    let batch = with_settings(batch, secret.as_ref(), address.as_ref(), &copies);
    value(shared.launcher.prepare(&batch, &options).await)
}

/// Puts the world that the calls of a broadcast share into the batch of this one.
fn world(call: &Call, world: &mut Arc<World>) -> Result<(), LaunchError> {
    if !call.shared.is_empty() {
        *world = Arc::new(unpack(&call.shared).map_err(|error| refused("the manager's world cannot be read", &error))?);
    }
    Ok(())
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
