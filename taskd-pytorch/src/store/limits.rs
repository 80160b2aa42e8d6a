//! Every bound of the store, with its default, and what happens there.
//!
//! It counts nothing itself: [`Stats`](super::Stats) does.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The bounds of one server. All byte counts are of what is held in memory, or would have to be.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Longest key, in bytes: 8 KiB, as with torch's libuv server.
    pub key_bytes: usize,
    /// Longest value in one request, in bytes: 8 MiB, as with torch's libuv server.
    pub value_bytes: usize,
    /// Longest value that `append` may grow, in bytes: 64 MiB.
    pub appended_bytes: usize,
    /// Most names in one request: 131,072, as with torch's libuv server.
    pub names: u64,
    /// Longest request, in bytes: 32 MiB. (`multi_set` has no such bound: its pairs are taken one by one.)
    pub request_bytes: usize,
    /// Most keys of one generation, those that are only waited for and queues included: 1,048,576.
    pub keys: usize,
    /// Most bytes of keys, values and what the server needs to find them, over all generations: 1 GiB.
    pub store_bytes: u64,
    /// Most clients, over all generations: 65,536.
    pub clients: usize,
    /// Most clients of one other host, over all generations: 16,384.
    pub clients_of_host: usize,
    /// Most connections that have not shown yet that they are of a client: 1,024. For a new one the oldest is closed.
    pub silent: usize,
    /// How long a connection may take to show it, in milliseconds: 10,000.
    pub silent_ms: u64,
    /// A client with so many bytes of answers that it has not read is not listened to until it has read them: 256 KiB.
    pub unread_bytes: usize,
    /// Most bytes of memory that one client's unread answers may take: 64 MiB.
    pub answer_bytes: usize,
    /// Most bytes of unfinished requests and unread answers, over all clients: 1 GiB.
    pub buffer_bytes: u64,
    /// Most generations at one time: 16.
    pub generations: usize,
    /// Most control connections at one time: 16.
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

/// Bounds that no server can keep.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store's limit {name} is {given}, and must be {least} at least{because}")]
pub struct LimitsError {
    name: &'static str,
    given: u64,
    least: u64,
    because: &'static str,
}

impl Limits {
    /// Whether a server can keep them.
    ///
    /// # Errors
    /// The first that is too small, and how much it must be.
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
            ("answer_bytes", bytes(self.answer_bytes), bytes(self.unread_bytes), ", what may be unread"),
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

/// A limit that was to be set by its name, and could not be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no limit of the store: give one as NAME=NUMBER, with a name of store::Limits")]
pub struct NotALimit(String);

impl Limits {
    /// Sets one by its name, as `key_bytes=1024`: what the program `taskd-store` is told with `--limit`.
    ///
    /// # Errors
    /// There is no such limit, or what follows is no number.
    pub fn set(&mut self, text: &str) -> Result<(), NotALimit> {
        let wrong = || NotALimit(text.to_owned());
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

/// What was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Bound {
    /// [`Limits::key_bytes`]
    KeyBytes,
    /// [`Limits::value_bytes`]
    ValueBytes,
    /// [`Limits::appended_bytes`]
    AppendedBytes,
    /// [`Limits::names`]
    Names,
    /// [`Limits::request_bytes`]
    RequestBytes,
    /// [`Limits::keys`]
    Keys,
    /// [`Limits::store_bytes`]
    StoreBytes,
    /// [`Limits::clients`]
    Clients,
    /// [`Limits::clients_of_host`]
    ClientsOfHost,
    /// [`Limits::silent`]
    Silent,
    /// [`Limits::silent_ms`]
    SilentMs,
    /// [`Limits::unread_bytes`]
    UnreadBytes,
    /// [`Limits::answer_bytes`]
    AnswerBytes,
    /// [`Limits::buffer_bytes`]
    BufferBytes,
    /// [`Limits::generations`]
    Generations,
    /// [`Limits::controllers`]
    Controllers,
    /// The system's own: open files of this process (`RLIMIT_NOFILE`) or of the machine.
    OpenFiles,
}

/// What happens at a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AtBound {
    /// The client whose request would go beyond is closed; nothing of that request is done. What it set before stays.
    CloseClient,
    /// Whoever would be one too many is closed as soon as it connects; the others notice nothing.
    RefuseConnection,
    /// A connection that has shown nothing yet is closed.
    CloseSilent,
    /// The client's requests wait, in the system's buffers and then in its own, until it has read its answers.
    PauseClient,
    /// The call is refused with its reason.
    RefuseCall,
}

impl fmt::Display for AtBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AtBound::CloseClient => "the client is closed",
            AtBound::RefuseConnection => "further connections are closed",
            AtBound::CloseSilent => "connections that have sent nothing are closed",
            AtBound::PauseClient => "the client is not listened to until it has read",
            AtBound::RefuseCall => "the call is refused",
        })
    }
}

impl Bound {
    /// What happens there.
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
        let said = limits.check().unwrap_err().to_string();
        assert_eq!(
            said,
            "the store's limit request_bytes is 1000, and must be 16785440 at least, for a compare_set of the longest values"
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
