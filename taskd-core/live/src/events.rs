//! The events that one page receives: figures that it does not have, and the status of the reading.

use crate::reading::{Board, State};
use crate::routes::Served;
use bytes::Bytes;
use futures::Stream;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Longest time without an event: a page that receives none for several times as long shows that the connection is lost.
pub(crate) const STATUS_EVERY: Duration = Duration::from_secs(5);

/// The place of one page among those that receive events.
struct Place(Arc<Served>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.board.streams.send_modify(|count| *count -= 1);
    }
}

/// Takes a place and returns the events for a page that shows a revision; `None` if all places are taken.
pub(crate) fn follow(
    served: &Arc<Served>,
    shown: u64,
) -> Option<impl Stream<Item = Result<Bytes, Infallible>> + use<>> {
    let most = served.limits.streams_max;
    let taken = served.board.streams.send_if_modified(|count| {
        let is_free = *count < most;
        *count += usize::from(is_free);
        is_free
    });
    let place = taken.then(|| Place(Arc::clone(served)))?;
    let (state, closing) = (served.board.state.subscribe(), served.closing.clone());
    let reader = Reader { place, state, closing, shown, owes_status: true };
    Some(futures::stream::unfold(reader, |mut reader| async { Some((Ok(reader.next().await?), reader)) }))
}

/// What one page has received.
struct Reader {
    place: Place,
    state: watch::Receiver<State>,
    closing: CancellationToken,
    shown: u64,
    owes_status: bool,
}

impl Reader {
    /// Returns the next events; `None` when the server ends. A page that reads slowly receives the newest figures only.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            let state = self.state.borrow_and_update().clone();
            if let Some(figures) = state.figures.as_ref().filter(|figures| figures.revision != self.shown) {
                self.shown = figures.revision;
                self.owes_status = true;
                return Some(figures.events.clone());
            }
            if std::mem::take(&mut self.owes_status) {
                let status = serde_json::to_string(&self.place.0.status_of(&state)).unwrap_or_default();
                return Some(format!("event: status\ndata: {status}\n\n").into());
            }
            tokio::select! {
                () = self.closing.cancelled() => return None,
                changed = self.state.changed() => changed.ok()?,
                () = tokio::time::sleep(STATUS_EVERY) => (),
            }
            self.owes_status = true;
        }
    }
}

/// Waits for the first reading, if there was none, for at most `limit`.
pub(crate) async fn first_reading(board: &Board, limit: Duration) {
    let mut state = board.state.subscribe();
    let _ = tokio::time::timeout(limit, state.wait_for(|state| state.readings > 0)).await; // late: the page shows it
}
