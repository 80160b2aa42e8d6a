//! Numbers the frames of one direction of a session, keeps them until they are confirmed, and drops repeated ones: every
//! frame is taken exactly once, in order, over any number of connections.
//!
//! Pure: it sends and reads nothing.

use crate::checks::{Check, Checks};
use crate::wire::proto::{Frame, frame::Body};
use std::collections::VecDeque;

/// Bounds of the frames that wait for a confirmation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowBounds {
    pub(crate) frames_max: usize,
    /// Sum of the lengths of the bodies, in bytes. One longer body is still taken into an empty window.
    pub(crate) bytes_max: usize,
}

impl Default for WindowBounds {
    /// Returns 1,024 frames and 64 MiB.
    fn default() -> WindowBounds {
        WindowBounds { frames_max: 1024, bytes_max: 64 << 20 }
    }
}

/// Both directions of one session, as one side sees them.
#[derive(Debug)]
pub(crate) struct Window {
    bounds: WindowBounds,
    /// Number of the last frame that was sent.
    sent: u64,
    /// Number of the last frame that was taken from the peer.
    taken: u64,
    /// Frames that the peer has not confirmed, in order, each with its length.
    unconfirmed: VecDeque<(usize, Frame)>,
    bytes: usize,
    checks: Checks,
}

/// What became of a frame of the peer.
#[derive(Debug, PartialEq)]
pub(crate) enum Taken {
    /// The next frame: its body is to be handled.
    New(Body),
    /// A frame that was taken before, or that carries only a confirmation.
    Nothing,
    /// A frame was lost in between, or the frame has no known body: the session cannot continue.
    Broken(&'static str),
}

impl Window {
    pub(crate) fn new(bounds: WindowBounds) -> Window {
        Window { bounds, sent: 0, taken: 0, unconfirmed: VecDeque::new(), bytes: 0, checks: Checks::default() }
    }

    /// Sets the checks that are in force.
    pub(crate) fn set_checks(&mut self, checks: Checks) {
        self.checks = checks;
    }

    /// Returns the number of the last frame that was taken from the peer.
    pub(crate) const fn taken(&self) -> u64 {
        self.taken
    }

    /// Returns true if a body of this length has room.
    pub(crate) fn has_room(&self, length: usize) -> bool {
        self.unconfirmed.is_empty()
            || (self.unconfirmed.len() < self.bounds.frames_max && self.bytes + length <= self.bounds.bytes_max)
    }

    /// Numbers a body and keeps it until it is confirmed. Returns the frame to send.
    pub(crate) fn push(&mut self, body: Body) -> Frame {
        self.sent += 1;
        let length = body.encoded_len();
        let frame = Frame { number: self.sent, received: self.taken, body: Some(body) };
        self.bytes += length;
        self.unconfirmed.push_back((length, frame.clone()));
        frame
    }

    /// Takes a frame of the peer, with its confirmation.
    pub(crate) fn take(&mut self, frame: Frame) -> Taken {
        if !self.confirm(frame.received) {
            return Taken::Broken("the peer confirms a frame that was never sent");
        }
        match frame {
            Frame { body: Some(Body::Confirm(_)), .. } => Taken::Nothing,
            Frame { number, body: Some(body), .. } if number <= self.taken && !self.checks.has(Check::FrameOnce) => {
                Taken::New(body)
            }
            Frame { number, .. } if number <= self.taken => Taken::Nothing,
            Frame { number, .. } if number != self.taken + 1 => Taken::Broken("a frame of the peer is missing"),
            Frame { body: None, .. } => Taken::Broken("a frame of the peer has a body that is not known here"),
            Frame { body: Some(body), .. } => {
                self.taken += 1;
                Taken::New(body)
            }
        }
    }

    /// Forgets the frames that the peer has taken. Returns false if the peer confirms a frame that was never sent.
    pub(crate) fn confirm(&mut self, received: u64) -> bool {
        while let Some((length, _)) = self.unconfirmed.front().filter(|(_, frame)| frame.number <= received) {
            self.bytes -= length;
            self.unconfirmed.pop_front();
        }
        received <= self.sent
    }

    /// Returns the frames that the peer does not have, to send them over a new connection. `None` if the peer has lost frames
    /// that it had confirmed, or confirms others than were sent.
    pub(crate) fn resume(&mut self, received: u64) -> Option<Vec<Frame>> {
        let confirmed = self.sent - self.unconfirmed.len() as u64;
        if received < confirmed || !self.confirm(received) {
            return None;
        }
        let taken = self.taken;
        let again = self.unconfirmed.iter().map(|(_, frame)| Frame { received: taken, ..frame.clone() });
        Some(again.collect())
    }
}

#[cfg(test)]
mod tests;
