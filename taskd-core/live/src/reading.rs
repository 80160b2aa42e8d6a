//! Reads the run while a page wants it: one reading at a time, off the async threads, for a bounded share of the time.

use bytes::Bytes;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use taskd_analysis::document::Analysis;
use taskd_analysis::report::{LiveFigures, LiveStatus};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Shortest interval between two readings.
pub const EVERY_MIN: Duration = Duration::from_millis(500);
/// Interval between two readings unless another is chosen.
pub const EVERY_DEFAULT: Duration = Duration::from_secs(2);
/// Largest share of the time for which a run is read: one part in this many. After a long reading, the interval is longer.
pub const SHARE_MAX: u32 = 10;

/// Why a run could not be read.
pub type ReadError = Box<dyn std::error::Error + Send + Sync>;

/// Reads the current state of a run. Any closure that returns a document is one.
pub trait RunSource: Send + 'static {
    /// Reads and analyzes the run. It is called on a thread that may block.
    ///
    /// # Errors
    /// What failed, as a sentence: the page shows it beside the figures of the last reading that succeeded.
    fn read(&mut self) -> Result<Analysis, ReadError>;
}

impl<F: FnMut() -> Result<Analysis, ReadError> + Send + 'static> RunSource for F {
    fn read(&mut self) -> Result<Analysis, ReadError> {
        self()
    }
}

/// What the last reading that found other figures has found.
#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) revision: u64,
    pub(crate) analysis: Analysis,
    /// The events that bring the figures to a page.
    pub(crate) events: Bytes,
}

/// State after a reading.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    pub(crate) figures: Option<Arc<Figures>>,
    pub(crate) readings: u64,
    pub(crate) has_ended: bool,
    /// Start of the newest reading that succeeded.
    read_at: Option<Instant>,
    took: Duration,
    every: Duration,
    /// The error of the last reading, and the time of the first failure in a row.
    error: Option<(Arc<str>, Instant)>,
}

impl State {
    /// Returns the status, without what was refused.
    pub(crate) fn status(&self) -> LiveStatus {
        LiveStatus {
            revision: self.figures.as_ref().map_or(0, |figures| figures.revision),
            has_ended: self.has_ended,
            age_ms: self.read_at.map(|at| milliseconds(at.elapsed())),
            took_ms: milliseconds(self.took),
            every_ms: milliseconds(self.every),
            readings: self.readings,
            error: self.error.as_ref().map(|(text, _)| text.to_string()),
            failing_ms: self.error.as_ref().map_or(0, |(_, since)| milliseconds(since.elapsed())),
            ..LiveStatus::default()
        }
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The state, and what asks for another reading.
#[derive(Debug, Default)]
pub(crate) struct Board {
    pub(crate) state: watch::Sender<State>,
    /// Number of pages that receive events.
    pub(crate) streams: watch::Sender<usize>,
    /// A request that came when the figures may be old.
    pub(crate) requested: Notify,
    /// True once the host program has reported the end of the run.
    pub(crate) ended: watch::Sender<bool>,
}

impl Board {
    async fn is_wanted(&self) {
        let mut streams = self.streams.subscribe();
        tokio::select! {
            _ = streams.wait_for(|count| *count > 0) => (),
            () = self.requested.notified() => (),
        }
    }

    async fn has_ended(&self) {
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await; // error: never, `self` has the sender
    }
}

/// Reads the run as long as the server lives. Returns after the last reading of a run that has ended.
pub(crate) async fn read_while_wanted(
    source: Box<dyn RunSource>,
    every: Duration,
    board: Arc<Board>,
    closing: CancellationToken,
) {
    let source = Arc::new(Mutex::new(source));
    let mut next = Instant::now();
    loop {
        let due = async {
            board.is_wanted().await;
            tokio::time::sleep_until(next).await;
        };
        tokio::select! {
            () = closing.cancelled() => return,
            () = board.has_ended() => (),
            () = due => (),
        }
        let is_last = *board.ended.borrow();
        let began = Instant::now();
        let known = board.state.borrow().figures.clone();
        let reading = Arc::clone(&source);
        let read = tokio::task::spawn_blocking(move || read_once(&reading, known)).await;
        let read = read.unwrap_or_else(|_| Err("reading the run ended unexpectedly: see the log".into()));
        let took = began.elapsed();
        let pause = interval(every, took);
        next = began + pause;
        board.state.send_modify(|state| {
            state.readings += 1;
            state.has_ended = is_last;
            state.took = took;
            state.every = pause;
            match read {
                Ok(figures) => {
                    state.figures = Some(figures);
                    state.read_at = Some(began);
                    state.error = None;
                }
                Err(error) => {
                    let since = state.error.as_ref().map_or(began, |(_, since)| *since);
                    state.error = Some((error.to_string().into(), since));
                }
            }
        });
        if is_last {
            return;
        }
    }
}

/// Returns the time from the start of a reading that took `took` to the next.
fn interval(every: Duration, took: Duration) -> Duration {
    every.max(took.saturating_mul(SHARE_MAX))
}

/// Reads the run, and prepares the figures for pages unless they are those that pages have.
fn read_once(source: &Mutex<Box<dyn RunSource>>, known: Option<Arc<Figures>>) -> Result<Arc<Figures>, ReadError> {
    // A reading that panicked leaves the source as it was: the next one reads everything again.
    let analysis = source.lock().unwrap_or_else(PoisonError::into_inner).read()?;
    if let Some(known) = known.as_ref().filter(|known| known.analysis == analysis) {
        return Ok(Arc::clone(known));
    }
    let revision = known.map_or(1, |known| known.revision + 1);
    let LiveFigures { analysis: rest, timeline } = LiveFigures::new(&analysis);
    let events = format!("event: timeline\ndata: {timeline}\n\nid: {revision}\nevent: analysis\ndata: {rest}\n\n");
    Ok(Arc::new(Figures { revision, analysis, events: events.into() }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Returns a board that is read from `source`, and its stop.
    fn start(source: impl FnMut() -> Result<Analysis, ReadError> + Send + 'static) -> (Arc<Board>, CancellationToken) {
        let (board, closing) = (Arc::new(Board::default()), CancellationToken::new());
        tokio::spawn(read_while_wanted(Box::new(source), EVERY_DEFAULT, Arc::clone(&board), closing.clone()));
        (board, closing)
    }

    #[tokio::test(start_paused = true)]
    async fn run_is_read_at_the_interval_and_only_while_it_is_wanted() {
        let count = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&count);
        let (board, _closing) = start(move || {
            let steps = vec![counted.fetch_add(1, Ordering::Relaxed) / 2];
            Ok(Analysis { steps, ..Analysis::default() })
        });
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert_eq!(count.load(Ordering::Relaxed), 0, "no page is open");
        board.streams.send_replace(1);
        tokio::time::sleep(Duration::from_millis(19_500)).await;
        let state = board.state.borrow().clone();
        assert_eq!(
            (state.readings, state.figures.map(|figures| figures.revision)),
            (10, Some(5)),
            "every 2 s from 0 on"
        );
        board.streams.send_replace(0);
        tokio::time::sleep(Duration::from_secs(3600)).await;
        let quiet = board.state.borrow().readings;
        assert!(quiet <= 11, "{quiet}");
        board.requested.notify_one();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(board.state.borrow().readings, quiet + 1, "a request asks for one reading");
    }

    #[tokio::test(start_paused = true)]
    async fn reading_that_panics_is_an_error_and_the_next_one_goes_on() {
        let mut number = 0;
        let (board, _closing) = start(move || {
            number += 1;
            assert!(number != 2, "the second reading");
            Ok(Analysis::default())
        });
        board.streams.send_replace(1);
        let mut state = board.state.subscribe();
        let failed = state.wait_for(|state| state.readings == 2).await.unwrap().status();
        let (error, age) = (failed.error.unwrap(), failed.age_ms.unwrap());
        assert!(error.starts_with("reading the run ended unexpectedly") && age >= 2000, "{error}, {age} ms");
        let next = state.wait_for(|state| state.readings == 3).await.unwrap().status();
        assert_eq!((next.error, next.failing_ms, next.revision), (None, 0, 1));
    }

    #[test]
    fn long_reading_is_followed_by_nine_times_its_length_of_rest() {
        assert_eq!(interval(EVERY_DEFAULT, Duration::from_millis(20)), EVERY_DEFAULT);
        assert_eq!(interval(EVERY_DEFAULT, Duration::from_secs(2)), Duration::from_secs(20));
    }
}
