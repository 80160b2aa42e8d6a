//! Parser of torch's `TCPStore` protocol: splits received bytes into requests.
//!
//! This module reads and writes no socket and stores no values. A request is one byte for its [`Query`], followed by
//! its fields; a string is its length (`u64`, little endian) and its bytes, a list is its count and its strings. The
//! only sign of an invalid request is a closed connection.
//!
//! A request may arrive in any number of parts. [`Decoder`] remembers its position, so that a client that sends a byte
//! at a time costs no more than one that sends everything at once.

use super::limits::{Bound, Limits};
use serde::{Deserialize, Serialize};

/// The field of a client's first request by which it identifies itself.
pub(super) const MAGIC: u32 = 0x3C85_F7CE;
/// The answer to a `wait` whose keys are present.
pub(super) const STOP_WAITING: u8 = 0;
/// The answer to a `wait` that was cancelled.
pub(super) const WAIT_CANCELED: u8 = 1;
/// The answers to a `check`.
pub(super) const READY: u8 = 0;
/// See [`READY`].
pub(super) const NOT_READY: u8 = 1;

/// Type of a client's request to the store. The type's number is the first byte of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Query {
    /// Identifies the sender as a client. It is the first request on every connection, and has no answer.
    Validate = 0,
    /// Sets the value of a key. The store sends no answer.
    Set = 1,
    /// Sets the value of a key if the key has the expected value, or if the key is missing and the expected value is
    /// empty. Returns the value that the key then has; for a missing key that was not set, the expected value.
    CompareSet = 2,
    /// Returns the value of a key; an empty value if the key is missing.
    Get = 3,
    /// Adds a number to the value of a key, which the store keeps as decimal text, and returns the sum. A missing key
    /// counts as 0.
    Add = 4,
    /// Returns true if all keys in the request are present. A key is present if it has a value or a queue with values.
    Check = 5,
    /// Waits for keys: the store answers once all keys in the request are present.
    Wait = 6,
    /// Returns the number of keys of the client's generation that have a value.
    NumKeys = 7,
    /// Removes the value of a key, and returns the number of values removed, 0 or 1.
    DeleteKey = 8,
    /// Appends bytes to the value of a key; a missing key is set. The store sends no answer.
    Append = 9,
    /// Returns the values of several keys.
    MultiGet = 10,
    /// Sets the values of several keys. The store sends no answer.
    MultiSet = 11,
    /// Cancels the client's wait for keys; the store confirms it.
    CancelWait = 12,
    /// Tests the connection: the store answers with the four bytes that the request contains.
    Ping = 13,
    /// Appends a value to the end of the queue of a key. The store sends no answer.
    QueuePush = 14,
    /// Removes the oldest value from the queue of a key, and returns it after the number of values that the queue had.
    QueuePop = 15,
    /// Returns the number of values in the queue of a key.
    QueueLen = 16,
}

impl Query {
    /// Returns true if its sender may continue without an answer.
    pub(super) const fn is_unanswered(self) -> bool {
        matches!(self, Query::Validate | Query::Set | Query::Append | Query::MultiSet | Query::QueuePush)
    }

    /// All types of requests, in the order of their numbers.
    pub const ALL: [Query; 17] = [
        Query::Validate,
        Query::Set,
        Query::CompareSet,
        Query::Get,
        Query::Add,
        Query::Check,
        Query::Wait,
        Query::NumKeys,
        Query::DeleteKey,
        Query::Append,
        Query::MultiGet,
        Query::MultiSet,
        Query::CancelWait,
        Query::Ping,
        Query::QueuePush,
        Query::QueuePop,
        Query::QueueLen,
    ];

    const fn shape(self) -> Shape {
        match self {
            Query::Validate | Query::Ping => &[Field::Fixed(4)],
            Query::Set | Query::Append | Query::QueuePush => &[Field::Key, Field::Value],
            Query::CompareSet => &[Field::Key, Field::Value, Field::Value],
            Query::Get | Query::DeleteKey | Query::QueuePop | Query::QueueLen => &[Field::Key],
            Query::Add => &[Field::Key, Field::Fixed(8)],
            Query::Check | Query::Wait | Query::MultiGet => &[Field::Keys],
            Query::MultiSet => &[Field::Fixed(8)], // its pairs follow one by one
            Query::NumKeys | Query::CancelWait => &[],
        }
    }
}

/// One part of a request.
#[derive(Clone, Copy, Debug)]
enum Field {
    Fixed(usize),
    Key,
    Value,
    /// A list of keys: a count and that many keys.
    Keys,
}

type Shape = &'static [Field];

/// Reasons to close a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Violation {
    /// The first request on the connection was not that of a client.
    #[error("it is not a client of a store")]
    NotValidated,
    /// The client sent a request with this unknown number.
    #[error("it sent an unknown query ({0})")]
    UnknownQuery(u8),
    /// The client adds to a value that is not a number.
    #[error("it adds to a value that is not a number")]
    NotANumber,
    /// The client exceeded this bound.
    #[error("it exceeded {0}")]
    Bound(Bound),
}

/// One complete request. Its fields refer to the receive buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request<'a> {
    Validate,
    /// Sets a key to a value; also used for each pair of a `MultiSet`.
    Set {
        key: &'a [u8],
        value: &'a [u8],
    },
    CompareSet {
        key: &'a [u8],
        expected: &'a [u8],
        value: &'a [u8],
    },
    Get {
        key: &'a [u8],
    },
    Add {
        key: &'a [u8],
        number: i64,
    },
    Check {
        keys: Keys<'a>,
    },
    Wait {
        keys: Keys<'a>,
    },
    NumKeys,
    DeleteKey {
        key: &'a [u8],
    },
    Append {
        key: &'a [u8],
        value: &'a [u8],
    },
    MultiGet {
        keys: Keys<'a>,
    },
    /// The header of a `multi_set`; its pairs follow.
    MultiSet,
    CancelWait,
    Ping {
        nonce: [u8; 4],
    },
    QueuePush {
        key: &'a [u8],
        value: &'a [u8],
    },
    QueuePop {
        key: &'a [u8],
    },
    QueueLen {
        key: &'a [u8],
    },
}

/// The keys of a list, each preceded by its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Keys<'a> {
    rest: &'a [u8],
}

impl<'a> Keys<'a> {
    /// Creates the keys of a list without its count.
    #[cfg(test)]
    pub(super) const fn of(rest: &'a [u8]) -> Keys<'a> {
        Keys { rest }
    }
}

impl<'a> Iterator for Keys<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.rest.is_empty() { None } else { take_string(&mut self.rest) }
    }
}

/// Splits a client's data into requests.
#[derive(Debug)]
pub(super) struct Decoder {
    /// Number of bytes examined of the first request in the buffer, which is still incomplete.
    seen: usize,
    /// Length of the buffer, in bytes, from which the next call of the decoder can make progress.
    need: usize,
    /// Index of the next field of the request.
    field: u8,
    /// Number of keys in the request's list of keys that are still to come.
    keys_left: u64,
    /// Number of pairs of a `multi_set` that are still to come.
    pairs_left: u64,
    validated: bool,
}

impl Default for Decoder {
    fn default() -> Decoder {
        Decoder { seen: 0, need: 1, field: 0, keys_left: 0, pairs_left: 0, validated: false }
    }
}

/// The fields of a pair of a `multi_set`.
const PAIR: Shape = &[Field::Key, Field::Value];

impl Decoder {
    /// Returns true if the client has identified itself as one.
    pub(super) const fn is_validated(&self) -> bool {
        self.validated
    }

    /// Returns the length, the query and the fields of the request at the beginning of `buffer`; `None` if it is not
    /// complete yet.
    ///
    /// After `None`, the next call must pass the same bytes and more; after a request, the bytes that follow it.
    ///
    /// # Errors
    /// The client must be closed.
    pub(super) fn next<'a>(
        &mut self,
        buffer: &'a [u8],
        limits: &Limits,
    ) -> Result<Option<(usize, Query, Request<'a>)>, Violation> {
        if buffer.len() < self.need {
            return Ok(None);
        }
        let (query, head, shape) = if self.pairs_left > 0 {
            (Query::MultiSet, 0, PAIR)
        } else {
            let query = self.query_of(buffer[0])?;
            (query, 1, query.shape())
        };
        self.seen = self.seen.max(head);
        while let Some(field) = shape.get(usize::from(self.field)) {
            if !self.pass(*field, buffer, limits)? {
                return Ok(None);
            }
            self.field += 1;
        }
        let length = self.seen;
        let request = if head == 0 {
            self.pairs_left -= 1;
            take_pair(&buffer[..length])
        } else {
            self.read(query, &buffer[head..length], limits)?
        };
        (self.seen, self.need, self.field) = (0, 1, 0);
        Ok(request.map(|request| (length, query, request)))
    }

    fn query_of(&self, byte: u8) -> Result<Query, Violation> {
        let query = Query::ALL.get(usize::from(byte)).copied();
        match query {
            Some(Query::Validate) if self.validated => Err(Violation::UnknownQuery(byte)), // as in torch's server
            Some(query) if self.validated || query == Query::Validate => Ok(query),
            _ if !self.validated => Err(Violation::NotValidated),
            _ => Err(Violation::UnknownQuery(byte)),
        }
    }

    /// Advances past a field of the request in the buffer; returns false if the field is not complete yet.
    fn pass(&mut self, field: Field, buffer: &[u8], limits: &Limits) -> Result<bool, Violation> {
        match field {
            Field::Fixed(bytes) => self.pass_bytes(bytes, buffer, limits),
            Field::Key => self.pass_string(limits.key_bytes, Bound::KeyBytes, buffer, limits),
            Field::Value => self.pass_string(limits.value_bytes, Bound::ValueBytes, buffer, limits),
            Field::Keys => {
                if self.seen == 1 {
                    let Some(count) = number_at(buffer, self.seen) else {
                        return self.pass_bytes(8, buffer, limits);
                    };
                    if count > limits.names {
                        return Err(Violation::Bound(Bound::Names));
                    }
                    (self.keys_left, self.seen) = (count, self.seen + 8);
                }
                while self.keys_left > 0 {
                    if !self.pass_string(limits.key_bytes, Bound::KeyBytes, buffer, limits)? {
                        return Ok(false);
                    }
                    self.keys_left -= 1;
                }
                Ok(true)
            }
        }
    }

    fn pass_string(
        &mut self,
        bytes_max: usize,
        bound: Bound,
        buffer: &[u8],
        limits: &Limits,
    ) -> Result<bool, Violation> {
        let Some(length) = number_at(buffer, self.seen) else {
            self.need = self.seen + 8;
            return Ok(false);
        };
        match usize::try_from(length) {
            Ok(length) if length <= bytes_max => self.pass_bytes(8 + length, buffer, limits),
            _ => Err(Violation::Bound(bound)),
        }
    }

    fn pass_bytes(&mut self, bytes: usize, buffer: &[u8], limits: &Limits) -> Result<bool, Violation> {
        let end = self.seen + bytes; // no overflow: `seen` bytes are in memory, and fields are bounded
        if end > limits.request_bytes {
            return Err(Violation::Bound(Bound::RequestBytes));
        }
        self.need = end;
        let is_there = buffer.len() >= end;
        if is_there {
            self.seen = end;
        }
        Ok(is_there)
    }

    /// Reads the fields of a request that is complete in `rest`.
    fn read<'a>(
        &mut self,
        query: Query,
        mut rest: &'a [u8],
        limits: &Limits,
    ) -> Result<Option<Request<'a>>, Violation> {
        let rest = &mut rest;
        if query == Query::Validate {
            if *rest != MAGIC.to_le_bytes() {
                return Err(Violation::NotValidated);
            }
            self.validated = true;
        }
        if query == Query::MultiSet {
            let count = number_at(rest, 0).unwrap_or(0);
            if count > limits.names {
                return Err(Violation::Bound(Bound::Names));
            }
            self.pairs_left = count;
        }
        Ok(take_request(query, rest))
    }
}

/// Returns the request in `rest`; `None` if it is incomplete, which [`Decoder::pass`] has ruled out.
fn take_request<'a>(query: Query, rest: &mut &'a [u8]) -> Option<Request<'a>> {
    Some(match query {
        Query::Validate => Request::Validate,
        Query::Set => Request::Set { key: take_string(rest)?, value: take_string(rest)? },
        Query::CompareSet => {
            Request::CompareSet { key: take_string(rest)?, expected: take_string(rest)?, value: take_string(rest)? }
        }
        Query::Get => Request::Get { key: take_string(rest)? },
        Query::Add => Request::Add { key: take_string(rest)?, number: i64::from_le_bytes(*rest.first_chunk()?) },
        Query::Check => Request::Check { keys: Keys { rest: rest.get(8..)? } },
        Query::Wait => Request::Wait { keys: Keys { rest: rest.get(8..)? } },
        Query::NumKeys => Request::NumKeys,
        Query::DeleteKey => Request::DeleteKey { key: take_string(rest)? },
        Query::Append => Request::Append { key: take_string(rest)?, value: take_string(rest)? },
        Query::MultiGet => Request::MultiGet { keys: Keys { rest: rest.get(8..)? } },
        Query::MultiSet => Request::MultiSet,
        Query::CancelWait => Request::CancelWait,
        Query::Ping => Request::Ping { nonce: *rest.first_chunk()? },
        Query::QueuePush => Request::QueuePush { key: take_string(rest)?, value: take_string(rest)? },
        Query::QueuePop => Request::QueuePop { key: take_string(rest)? },
        Query::QueueLen => Request::QueueLen { key: take_string(rest)? },
    })
}

fn take_pair(mut rest: &[u8]) -> Option<Request<'_>> {
    Some(Request::Set { key: take_string(&mut rest)?, value: take_string(&mut rest)? })
}

fn number_at(buffer: &[u8], at: usize) -> Option<u64> {
    buffer.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

fn take_string<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(number_at(rest, 0)?).ok()?;
    let (string, after) = rest.get(8..)?.split_at_checked(length)?;
    *rest = after;
    Some(string)
}

#[cfg(test)]
mod tests;
