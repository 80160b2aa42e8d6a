//! Waits for a change of a job's keys, with etcd's watch.

use super::keys::Keys;
use super::pool::{Pool, reason, unavailable};
use super::proto::etcdserverpb as pb;
use crate::consensus::ConsensusError;
use pb::watch_client::WatchClient;
use pb::watch_request::RequestUnion;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataValue;
use tonic::{Request, Streaming};

/// Requests that can wait in the stream to etcd: the watch, and the question for progress.
const REQUESTS: usize = 2;

/// Waits until one of the job's keys has changed at revision `from` or later. Also returns if this revision is
/// compacted away: the caller reads the keys again.
///
/// The stream is silent without changes. After half of the pool's time limit the endpoint is asked for its progress,
/// and one that does not answer this in the other half has failed. An endpoint without a leader ends the stream.
pub(super) async fn changed(pool: &Pool, keys: &Keys, from: i64) -> Result<(), ConsensusError> {
    let (at, uri, channel) = pool.preferred()?;
    let (requests, stream) = mpsc::channel(REQUESTS);
    let failed = |why: &str| {
        pool.failed(at);
        unavailable("watching the job's keys", uri, why)
    };
    let closed = |_| failed("the stream is closed");
    let (key, range_end) = keys.range.clone();
    let create = pb::WatchCreateRequest { key, range_end, start_revision: from };
    requests.try_send(request(RequestUnion::CreateRequest(create))).map_err(|_| failed("the stream is closed"))?;
    let mut call = Request::new(ReceiverStream::new(stream));
    call.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
    let mut client = WatchClient::new(channel);
    let half = pool.limit / 2;
    let silent = || failed(&format!("no answer within {half:?}"));
    let opened = timeout(half, client.watch(call)).await.map_err(|_| silent())?;
    let mut answers = opened.map_err(|status| failed(&reason(&status)))?.into_inner();
    loop {
        let answer = match timeout(half, next(&mut answers)).await {
            Ok(answer) => answer,
            Err(_) => {
                let progress = RequestUnion::ProgressRequest(pb::WatchProgressRequest {});
                requests.send(request(progress)).await.map_err(closed)?;
                timeout(half, next(&mut answers)).await.map_err(|_| silent())?
            }
        };
        let answer = answer.map_err(|why| failed(&why))?;
        if answer.compact_revision > 0 || answer.events.iter().any(|event| keys.has(event.kv.as_ref())) {
            return Ok(());
        }
        if answer.canceled {
            return Err(failed(&answer.cancel_reason));
        }
    }
}

fn request(union: RequestUnion) -> pb::WatchRequest {
    pb::WatchRequest { request_union: Some(union) }
}

async fn next(answers: &mut Streaming<pb::WatchResponse>) -> Result<pb::WatchResponse, String> {
    match answers.message().await {
        Ok(Some(answer)) => Ok(answer),
        Ok(None) => Err("the stream ended".into()),
        Err(status) => Err(reason(&status)),
    }
}
