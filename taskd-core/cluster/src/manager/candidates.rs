//! The addresses at which a later manager may answer, as agents get them: voters can change while the job runs.

use super::{Inner, Manager};
use crate::wire::{encode, method};
use std::sync::PoisonError;

impl Manager {
    /// Sends the addresses, `HOST:PORT`, of all processes that can become manager to all agents, also to those that come
    /// later. An agent that loses its manager dials them, besides those that it was started with.
    pub fn set_candidates(&self, addresses: Vec<String>) {
        self.inner.set_candidates(addresses);
    }
}

impl Inner {
    pub(super) fn set_candidates(&self, addresses: Vec<String>) {
        let is_new = {
            let mut known = self.candidates.lock().unwrap_or_else(PoisonError::into_inner);
            let is_new = *known != addresses;
            *known = addresses;
            is_new
        };
        if is_new {
            let sessions: Vec<_> = self.lock().values().map(|host| host.session()).collect();
            sessions.iter().for_each(|session| self.send_candidates(session));
        }
    }

    /// Sends the addresses over a session.
    pub(super) fn send_candidates(&self, session: &super::host::Session) {
        let known = self.candidates.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if !known.is_empty()
            && let Ok(arguments) = encode(&known)
        {
            session.calls.post(method::CANDIDATES, arguments);
        }
    }
}
