//! All bounds of the store, with their defaults and consequences. [`Stats`](super::Stats) counts how often they are
//! reached.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The bounds of one store server. All byte counts measure data in the server's memory, or data that a request
/// would bring into it. Each field states what the server does at the bound; [`Bound::action`] returns the same.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Maximum length of a key, in bytes. The server closes a client that sends a longer one. Default: 8 KiB, as in
    /// torch's libuv server.
    pub key_bytes: usize,
    /// Maximum length of a value in a request, in bytes. The server closes a client that sends a longer one. Default:
    /// 8 MiB, as in torch's libuv server.
    pub value_bytes: usize,
    /// Maximum length to which `append` requests may grow a value, in bytes. The server closes a client whose `append`
    /// would exceed it; the value stays as it was. Default: 64 MiB.
    pub appended_bytes: usize,
    /// Maximum number of keys in one `check`, `wait` or `multi_get` request. The server closes a client that sends
    /// more. Default: 131,072, as in torch's libuv server.
    pub names: u64,
    /// Maximum length of a request, in bytes. The server closes a client that sends a longer one. For `multi_set` the
    /// maximum applies to each pair of key and value. Default: 32 MiB.
    pub request_bytes: usize,
    /// Maximum number of keys that one generation has at one time, including queues, and keys that have no value but
    /// for which clients wait. The server closes a client whose request would add another one. Default: 1,048,576.
    pub keys: usize,
    /// Maximum memory for keys, values, their index and the waits for keys, in bytes, for all generations together. The
    /// server closes a client whose request would exceed it. Default: 1 GiB.
    pub store_bytes: u64,
    /// Maximum number of clients that are connected at one time, to all generations together. At the maximum, a new
    /// connection replaces the oldest connection that has not identified itself as a client yet; if there is none, the
    /// server closes the new connection. Default: 65,536.
    pub clients: usize,
    /// Maximum number of clients from one remote host that are connected at one time, to all generations together. The
    /// server closes further connections from that host. Clients on the server's own host are not limited by it.
    /// Default: 16,384.
    pub clients_of_host: usize,
    /// Maximum number of connections at one time, to all generations together, that have not identified themselves as
    /// clients yet. If a new connection would exceed the maximum, the server closes the oldest of them. Default: 1,024.
    pub silent: usize,
    /// Time within which a connection has to identify itself as a client, in milliseconds. Then the server closes the
    /// connection. Default: 10,000.
    pub silent_ms: u64,
    /// Number of bytes of answers that a client has not read, above which the server carries out no further request of
    /// that client. The server continues once the client has read enough answers. Default: 256 KiB.
    pub unread_bytes: usize,
    /// Maximum memory for the answers that one client has not read, in bytes, without values that the answers share
    /// with the store. The server closes a client whose `multi_get` exceeds it. Default: 64 MiB.
    pub answer_bytes: usize,
    /// Maximum memory for received requests that are not carried out yet and for unread answers, in bytes, for all
    /// clients together. The server closes the client whose request or answers exceed it. Default: 1 GiB.
    pub buffer_bytes: u64,
    /// Maximum number of generations that the server serves at one time. At the maximum,
    /// [`serve`](super::Server::serve) returns [`Refusal::TooMany`](super::Refusal::TooMany). Default: 16.
    pub generations: usize,
    /// Maximum number of connections to the store's control socket at one time. The store closes further ones. Default:
    /// 16.
    pub controllers: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            key_bytes: 8 << 10,
            value_bytes: 8 << 20,
            appended_bytes: 64 << 20,
            names: 128 << 10,
            request_bytes: 32 << 20,
            keys: 1 << 20,
            store_bytes: 1 << 30,
            clients: 64 << 10,
            clients_of_host: 16 << 10,
            silent: 1 << 10,
            silent_ms: 10_000,
            unread_bytes: 256 << 10,
            answer_bytes: 64 << 20,
            buffer_bytes: 1 << 30,
            generations: 16,
            controllers: 16,
        }
    }
}

/// Error for a limit of the store whose value is below the minimum with which a server works. The message states the
/// limit, its value and the minimum.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store's limit {name} is {given}, but must be at least {least}{because}")]
pub struct LimitsError {
    name: &'static str,
    given: u64,
    least: u64,
    because: &'static str,
}

impl Limits {
    /// Checks that a server can work with these limits.
    ///
    /// # Errors
    /// Returns [`LimitsError`] for the first limit that is too small.
    pub fn check(&self) -> Result<(), LimitsError> {
        let bytes = |n: usize| n as u64;
        let compare_set = bytes(self.key_bytes).saturating_add(bytes(self.value_bytes).saturating_mul(2));
        let least = [
            ("key_bytes", bytes(self.key_bytes), 16, ""),
            ("value_bytes", bytes(self.value_bytes), 32, ""),
            ("appended_bytes", bytes(self.appended_bytes), bytes(self.value_bytes), ", the longest value"),
            ("names", self.names, 1, ""),
            (
                "request_bytes",
                bytes(self.request_bytes),
                compare_set.saturating_add(32),
                ", for a compare_set of the longest values",
            ),
            ("keys", bytes(self.keys), 1, ""),
            ("store_bytes", self.store_bytes, bytes(self.appended_bytes), ", the longest appended value"),
            ("clients", bytes(self.clients), 1, ""),
            ("clients_of_host", bytes(self.clients_of_host), 1, ""),
            ("silent", bytes(self.silent), 1, ""),
            ("silent_ms", self.silent_ms, 1, ""),
            ("unread_bytes", bytes(self.unread_bytes), 1, ""),
            ("answer_bytes", bytes(self.answer_bytes), bytes(self.unread_bytes), ", the most unread bytes"),
            ("buffer_bytes", self.buffer_bytes, bytes(self.answer_bytes), ", the answers of one client"),
            ("generations", bytes(self.generations), 1, ""),
            ("controllers", bytes(self.controllers), 1, ""),
        ];
        match least.into_iter().find(|(_, given, least, _)| given < least) {
            Some((name, given, least, because)) => Err(LimitsError { name, given, least, because }),
            None => Ok(()),
        }
    }
}

/// Error for a text that does not set a limit of the store: the text is not `NAME=NUMBER`, the name is unknown, or the
/// number is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a limit of the store: write NAME=NUMBER, with a name of store::Limits")]
pub struct ParseLimitError(String);

impl Limits {
    /// Sets one limit from the text `NAME=NUMBER`, such as `key_bytes=1024`, which is also the form of the argument of
    /// `taskd-store --limit`. `NAME` is the name of a field of [`Limits`].
    ///
    /// # Errors
    /// Returns [`ParseLimitError`] if there is no such field, or its value is not an unsigned number.
    pub fn set(&mut self, text: &str) -> Result<(), ParseLimitError> {
        let wrong = || ParseLimitError(text.to_owned());
        let (name, number) = text.split_once('=').ok_or_else(wrong)?;
        let number: u64 = number.parse().map_err(|_| wrong())?;
        let bytes = usize::try_from(number).map_err(|_| wrong())?;
        match name {
            "key_bytes" => self.key_bytes = bytes,
            "value_bytes" => self.value_bytes = bytes,
            "appended_bytes" => self.appended_bytes = bytes,
            "names" => self.names = number,
            "request_bytes" => self.request_bytes = bytes,
            "keys" => self.keys = bytes,
            "store_bytes" => self.store_bytes = number,
            "clients" => self.clients = bytes,
            "clients_of_host" => self.clients_of_host = bytes,
            "silent" => self.silent = bytes,
            "silent_ms" => self.silent_ms = number,
            "unread_bytes" => self.unread_bytes = bytes,
            "answer_bytes" => self.answer_bytes = bytes,
            "buffer_bytes" => self.buffer_bytes = number,
            "generations" => self.generations = bytes,
            "controllers" => self.controllers = bytes,
            _ => return Err(wrong()),
        }
        Ok(())
    }
}

/// A bound of the store: one of its limits, or the operating system's limit of open files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Bound {
    /// The maximum length of a key: [`Limits::key_bytes`].
    KeyBytes,
    /// The maximum length of a value in one request: [`Limits::value_bytes`].
    ValueBytes,
    /// The maximum length of a value that `append` grows: [`Limits::appended_bytes`].
    AppendedBytes,
    /// The maximum number of keys in one request: [`Limits::names`].
    Names,
    /// The maximum length of a request: [`Limits::request_bytes`].
    RequestBytes,
    /// The maximum number of keys of one generation: [`Limits::keys`].
    Keys,
    /// The maximum memory for keys and values: [`Limits::store_bytes`].
    StoreBytes,
    /// The maximum number of connected clients: [`Limits::clients`].
    Clients,
    /// The maximum number of connected clients from one remote host: [`Limits::clients_of_host`].
    ClientsOfHost,
    /// The maximum number of connections that have not identified themselves as clients: [`Limits::silent`].
    Silent,
    /// The time for a connection to identify itself as a client: [`Limits::silent_ms`].
    SilentMs,
    /// The maximum number of bytes of answers that a client has not read: [`Limits::unread_bytes`].
    UnreadBytes,
    /// The maximum memory for one client's unread answers: [`Limits::answer_bytes`].
    AnswerBytes,
    /// The maximum memory for waiting requests and unread answers of all clients: [`Limits::buffer_bytes`].
    BufferBytes,
    /// The maximum number of generations at one time: [`Limits::generations`].
    Generations,
    /// The maximum number of connections to the control socket at one time: [`Limits::controllers`].
    Controllers,
    /// The operating system's limit of open files, of this process (`RLIMIT_NOFILE`) or of the machine.
    OpenFiles,
}

/// What the store does when one of its bounds is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AtBound {
    /// The store closes the client whose request would exceed the bound, and carries out no part of that request. Keys
    /// that the client set before stay. There are two exceptions: at [`Bound::BufferBytes`] the request may have been
    /// carried out, and of a `multi_set` the pairs before the one that exceeds the bound have been set.
    CloseClient,
    /// The store closes a new connection beyond the bound at once. Clients that are connected already are not affected.
    /// At [`Bound::Clients`] and [`Bound::OpenFiles`] the store closes a connection that has not identified itself as a
    /// client instead, if there is one.
    RefuseConnection,
    /// The store closes the oldest connection that has not identified itself as a client.
    CloseSilent,
    /// The store carries out no further request of the client until the client has read enough of its answers. Until
    /// then the requests wait in the socket buffers of the store's host, then of the client's.
    PauseClient,
    /// The store refuses the call to serve a further generation, and returns the reason.
    RefuseCall,
}

impl fmt::Display for AtBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AtBound::CloseClient => "the client is closed",
            AtBound::RefuseConnection => "further connections are closed",
            AtBound::CloseSilent => "connections that have sent nothing are closed",
            AtBound::PauseClient => "the client's requests wait until it has read its answers",
            AtBound::RefuseCall => "the call is refused",
        })
    }
}

impl Bound {
    /// Returns what the store does when this bound is reached.
    #[must_use]
    pub const fn action(self) -> AtBound {
        match self {
            Bound::KeyBytes
            | Bound::ValueBytes
            | Bound::AppendedBytes
            | Bound::Names
            | Bound::RequestBytes
            | Bound::Keys
            | Bound::StoreBytes
            | Bound::AnswerBytes
            | Bound::BufferBytes => AtBound::CloseClient,
            Bound::Clients | Bound::ClientsOfHost | Bound::Controllers | Bound::OpenFiles => AtBound::RefuseConnection,
            Bound::Silent | Bound::SilentMs => AtBound::CloseSilent,
            Bound::UnreadBytes => AtBound::PauseClient,
            Bound::Generations => AtBound::RefuseCall,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Bound::KeyBytes => "the longest key",
            Bound::ValueBytes => "the longest value",
            Bound::AppendedBytes => "the longest appended value",
            Bound::Names => "the most names in one request",
            Bound::RequestBytes => "the longest request",
            Bound::Keys => "the most keys",
            Bound::StoreBytes => "the most bytes in the store",
            Bound::Clients => "the most clients",
            Bound::ClientsOfHost => "the most clients of one other host",
            Bound::Silent => "the most connections that have sent nothing",
            Bound::SilentMs => "the time in which a connection has to send something",
            Bound::UnreadBytes => "the most unread bytes of a client",
            Bound::AnswerBytes => "the most memory for a client's answers",
            Bound::BufferBytes => "the most memory for all clients' requests and answers",
            Bound::Generations => "the most generations",
            Bound::Controllers => "the most control connections",
            Bound::OpenFiles => "the system's open files",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_can_be_kept() {
        assert_eq!(Limits::default().check(), Ok(()));
    }

    #[test]
    fn a_bound_that_cannot_be_kept_is_named_with_what_it_must_be() {
        let limits = Limits { request_bytes: 1000, ..Limits::default() };
        let message = limits.check().unwrap_err().to_string();
        assert_eq!(
            message,
            "the store's limit request_bytes is 1000, but must be at least 16785440, for a compare_set of the longest values"
        );
        let mut limits = Limits::default();
        limits.set("keys=7").unwrap();
        assert_eq!(limits.keys, 7);
        for wrong in ["keys", "keys=", "keys=-1", "kays=1", "keys=1 "] {
            assert!(limits.set(wrong).unwrap_err().to_string().contains("NAME=NUMBER"), "{wrong}");
        }
        assert!(Limits { clients: 0, ..Limits::default() }.check().is_err());
    }
}
