//! Copies bytes between a TCP connection and a stream of chunks.

use crate::wire::proto::Chunk;
use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tonic::Streaming;

/// Maximum number of chunks that wait for the other agent; then the rank waits.
pub(super) const CHUNKS_MAX: usize = 16;
/// Most bytes of a chunk.
const CHUNK_BYTES: usize = 64 << 10;

/// Sends what a connection delivers, until either side ends.
pub(super) async fn to_stream(mut from: OwnedReadHalf, to: mpsc::Sender<Chunk>) {
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(CHUNK_BYTES);
        let read = tokio::select! {
            biased;
            () = to.closed() => return,
            read = from.read_buf(&mut buffer) => read,
        };
        if !matches!(read, Ok(1..)) {
            return; // the end of the stream ends the other connection
        }
        let data = buffer.split().freeze();
        if to.send(Chunk { job: String::new(), generation: 0, data }).await.is_err() {
            return;
        }
    }
}

/// Writes what a stream delivers, until either side ends; then nothing more is written to the connection.
pub(super) async fn from_stream(mut from: Streaming<Chunk>, mut to: OwnedWriteHalf) {
    while let Ok(Some(chunk)) = from.message().await {
        if to.write_all(&chunk.data).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await; // it may be closed already
}
