//! One side of a session: its window, and the connection that carries its frames now.

use super::window::{Taken, Window, WindowBounds};
use crate::checks::Checks;
use crate::wire::proto::{Confirm, Frame, frame::Body};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;

/// Number of frames after which the peer gets a confirmation of its own, if no other message carries one.
const CONFIRM_AFTER: u32 = 64;

/// Reason why a session has ended, in one sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct LinkEnd(pub(crate) String);

/// One side of a session. `M` is the message in which this side sends a frame.
#[derive(Debug)]
pub(crate) struct Link<M> {
    inner: Mutex<Inner<M>>,
    /// Wakes senders when the window has room again, or the session has ended.
    room: Notify,
    wrap: fn(Frame) -> M,
}

#[derive(Debug)]
struct Inner<M> {
    window: Window,
    /// The queue of the connection in use. Its length is bounded by the window.
    connection: Option<UnboundedSender<M>>,
    /// Number of the connection in use.
    number: u64,
    /// Number of frames taken since the peer last got a confirmation.
    taken_since: u32,
    ended: Option<LinkEnd>,
}

impl<M> Link<M> {
    pub(crate) fn new(bounds: WindowBounds, wrap: fn(Frame) -> M) -> Link<M> {
        let window = Window::new(bounds);
        let inner = Inner { window, connection: None, number: 0, taken_since: 0, ended: None };
        Link { inner: Mutex::new(inner), room: Notify::new(), wrap }
    }

    /// Sets the checks that are in force.
    pub(crate) fn with_checks(self, checks: Checks) -> Link<M> {
        self.lock().window.set_checks(checks);
        self
    }

    /// Sends a body over this and every later connection until the peer has it. Waits while the window is full.
    pub(crate) async fn send(&self, body: Body) -> Result<(), LinkEnd> {
        let length = body.encoded_len();
        loop {
            let room = self.room.notified(); // before the check: no wake-up is missed between check and wait
            {
                let mut inner = self.lock();
                if let Some(end) = &inner.ended {
                    return Err(end.clone());
                }
                if inner.window.has_room(length) {
                    self.push(&mut inner, body);
                    return Ok(());
                }
            }
            room.await;
        }
    }

    /// Sends a short body without waiting for room: there are at most as many as there are calls.
    pub(crate) fn send_now(&self, body: Body) {
        let mut inner = self.lock();
        if inner.ended.is_none() {
            self.push(&mut inner, body);
        }
    }

    fn push(&self, inner: &mut Inner<M>, body: Body) {
        let frame = inner.window.push(body);
        inner.taken_since = 0;
        if let Some(connection) = &inner.connection {
            let _ = connection.send((self.wrap)(frame)); // a connection that has ended: the next one sends it
        }
    }

    /// Uses a new connection from now on: first sends what the peer, which has taken `received` frames, does not have. Returns
    /// the number of the connection.
    pub(crate) fn attach(&self, connection: UnboundedSender<M>, received: u64) -> Result<u64, LinkEnd> {
        let mut inner = self.lock();
        if let Some(end) = &inner.ended {
            return Err(end.clone());
        }
        let lost = || LinkEnd("the two sides do not agree on the frames of their session".into());
        for frame in inner.window.resume(received).ok_or_else(lost)? {
            let _ = connection.send((self.wrap)(frame));
        }
        (inner.connection, inner.number, inner.taken_since) = (Some(connection), inner.number + 1, 0);
        self.room.notify_waiters();
        Ok(inner.number)
    }

    /// Stops using a connection that has ended, unless a later one is in use. Returns true if none is in use now.
    pub(crate) fn detach(&self, number: u64) -> bool {
        let mut inner = self.lock();
        if inner.number == number {
            inner.connection = None;
        }
        inner.connection.is_none()
    }

    /// Returns true if a connection is in use.
    pub(crate) fn is_attached(&self) -> bool {
        self.lock().connection.is_some()
    }

    /// Takes a frame that a connection has delivered. Returns its body if it is new.
    pub(crate) fn take(&self, frame: Frame) -> Result<Option<Body>, LinkEnd> {
        let mut inner = self.lock();
        let taken = inner.window.take(frame);
        self.room.notify_waiters();
        match taken {
            Taken::New(body) => {
                inner.taken_since += 1;
                if inner.taken_since >= CONFIRM_AFTER {
                    inner.taken_since = 0;
                    let frame =
                        Frame { number: 0, received: inner.window.taken(), body: Some(Body::Confirm(Confirm {})) };
                    if let Some(connection) = &inner.connection {
                        let _ = connection.send((self.wrap)(frame));
                    }
                }
                Ok(Some(body))
            }
            Taken::Nothing => Ok(None),
            Taken::Broken(why) => Err(LinkEnd(why.into())),
        }
    }

    /// Forgets the frames that the peer has confirmed outside of a frame.
    pub(crate) fn confirm(&self, received: u64) -> Result<(), LinkEnd> {
        let known = self.lock().window.confirm(received);
        self.room.notify_waiters();
        known.then_some(()).ok_or_else(|| LinkEnd("the peer confirms a frame that was never sent".into()))
    }

    /// Returns the number of the last frame taken from the peer.
    pub(crate) fn taken(&self) -> u64 {
        self.lock().window.taken()
    }

    /// Ends the session: nothing is sent any more, and its connection is closed.
    pub(crate) fn end(&self, why: impl Into<String>) {
        let mut inner = self.lock();
        inner.ended.get_or_insert_with(|| LinkEnd(why.into()));
        inner.connection = None;
        self.room.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, Inner<M>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner) // no foreign code runs while it is locked
    }
}
