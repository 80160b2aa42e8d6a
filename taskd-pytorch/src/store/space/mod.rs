//! The keys of one generation, the clients that wait for them, and the effect of each request.
//!
//! This module knows clients by number and reads no socket. It lists the clients whose wait has ended; the server
//! notifies them.

use super::limits::{Bound, Limits};
use super::outbox::Outbox;
use super::value::{ENTRY_BYTES, Ledger, Value};
use super::wire::{Keys, NOT_READY, READY, Request, STOP_WAITING, Violation, WAIT_CANCELED};
use number::{decimal, to_decimal};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use waiting::{WaitId, Waiting, Waits, shrink};

mod number;
mod waiting;

/// Cost of a wait for each of its keys, in bytes.
const WAIT_BYTES: usize = 48;

/// Identifies a client within its generation. Never reused.
pub(super) type ClientId = u64;

/// The content of one key. torch keeps values and queues separately, under the same names.
#[derive(Debug, Default)]
struct Entry {
    value: Option<Rc<Value>>,
    queue: VecDeque<Rc<Value>>,
    waiting: Waiting,
}

impl Entry {
    fn is_there(&self) -> bool {
        self.value.is_some() || !self.queue.is_empty()
    }
}

/// The keys of one generation.
#[derive(Debug)]
pub(super) struct Space {
    entries: BTreeMap<Rc<[u8]>, Entry>,
    /// Number of entries that have a value; other entries have only a queue, or clients that wait.
    keys: usize,
    waits: Waits,
    ledger: Ledger,
}

impl Drop for Space {
    fn drop(&mut self) {
        self.ledger.remove(WAIT_BYTES * self.waits.keys());
        for key in self.entries.keys() {
            self.ledger.remove(ENTRY_BYTES + key.len());
        }
    }
}

impl Space {
    pub(super) const fn new(ledger: Ledger) -> Space {
        Space { entries: BTreeMap::new(), keys: 0, waits: Waits::new(), ledger }
    }

    /// Returns the number of keys that have a value.
    pub(super) const fn keys(&self) -> usize {
        self.keys
    }

    /// Returns the number of waiting clients.
    pub(super) fn waits(&self) -> usize {
        self.waits.len()
    }

    /// Returns the clients whose wait has ended, in order, until they are taken: each has to be sent [`STOP_WAITING`].
    pub(super) fn woken(&mut self) -> &mut Vec<ClientId> {
        &mut self.waits.woken
    }

    /// Carries out a request of `client`, and adds any immediate answer to `answers`.
    ///
    /// # Errors
    /// The request cannot be carried out, and no part of it was; the client must be closed.
    pub(super) fn apply(
        &mut self,
        client: ClientId,
        request: Request<'_>,
        answers: &mut Outbox,
        limits: &Limits,
    ) -> Result<(), Violation> {
        match request {
            Request::Validate | Request::MultiSet => (),
            Request::Ping { nonce } => answers.put(&nonce),
            Request::Set { key, value } => self.set(key, value, limits)?,
            Request::CompareSet { key, expected, value } => self.compare_set(key, expected, value, answers, limits)?,
            Request::Get { key } => self.get(key, answers),
            Request::Add { key, number } => answers.put_number(self.add(key, number, limits)?),
            Request::Check { keys } => answers.put(&[if self.are_there(keys) { READY } else { NOT_READY }]),
            Request::Wait { keys } => self.wait(client, keys, answers, limits)?,
            Request::NumKeys => answers.put_number(signed(self.keys)),
            Request::DeleteKey { key } => answers.put_number(i64::from(self.delete(key))),
            Request::Append { key, value } => self.append(key, value, limits)?,
            Request::MultiGet { keys } => {
                for key in keys {
                    self.get(key, answers);
                    if answers.held() > limits.answer_bytes {
                        return Err(Violation::Bound(Bound::AnswerBytes));
                    }
                }
            }
            Request::CancelWait => {
                self.give_up(client);
                answers.put(&[WAIT_CANCELED]);
            }
            Request::QueuePush { key, value } => self.push(key, value, limits)?,
            Request::QueuePop { key } => self.pop(key, answers),
            Request::QueueLen { key } => {
                answers.put_number(self.entries.get(key).map_or(0, |entry| signed(entry.queue.len())));
            }
        }
        Ok(())
    }

    /// Removes a client that is gone.
    pub(super) fn forget(&mut self, client: ClientId) {
        self.give_up(client);
    }

    fn get(&self, key: &[u8], answers: &mut Outbox) {
        match self.entries.get(key).and_then(|entry| entry.value.as_ref()) {
            Some(value) => answers.put_value(value),
            None => answers.put_bytes(&[]), // torch's clients wait before they ask
        }
    }

    fn set(&mut self, key: &[u8], bytes: &[u8], limits: &Limits) -> Result<(), Violation> {
        let known = self.entries.get(key);
        let before = known.and_then(|entry| entry.value.as_ref()).map_or(0, |value| Value::cost(value.bytes().len()));
        self.room_for(Value::cost(bytes.len()).saturating_sub(before), limits)?;
        let Space { entries, ledger, keys, .. } = self;
        if let Some(entry) = entries.get_mut(key) {
            match entry.value.as_mut().map(|value| Rc::get_mut(value)) {
                Some(Some(value)) => value.replace(bytes),
                had => {
                    *keys += usize::from(had.is_none());
                    entry.value = Some(Rc::new(Value::new(bytes, ledger)));
                }
            }
            if !entry.waiting.is_empty() {
                self.wake_all(key);
            }
            return Ok(());
        }
        let value = Some(Rc::new(Value::new(bytes, ledger)));
        self.insert(key, Entry { value, ..Entry::default() }, limits)?;
        self.keys += 1;
        Ok(())
    }

    fn compare_set(
        &mut self,
        key: &[u8],
        expected: &[u8],
        value: &[u8],
        answers: &mut Outbox,
        limits: &Limits,
    ) -> Result<(), Violation> {
        let now = self.entries.get(key).and_then(|entry| entry.value.as_ref());
        match now {
            Some(now) if now.bytes() != expected => answers.put_value(now),
            None if !expected.is_empty() => answers.put_bytes(expected), // as torch, though it has no value
            _ => {
                self.set(key, value, limits)?;
                answers.put_bytes(value);
            }
        }
        Ok(())
    }

    fn add(&mut self, key: &[u8], number: i64, limits: &Limits) -> Result<i64, Violation> {
        let now = self.entries.get(key).and_then(|entry| entry.value.as_ref());
        let now = now.map_or(Some(0), |value| decimal(value.bytes())).ok_or(Violation::NotANumber)?;
        let sum = now.wrapping_add(number);
        let mut text = [0; 20];
        self.set(key, to_decimal(sum, &mut text), limits)?;
        Ok(sum)
    }

    fn append(&mut self, key: &[u8], bytes: &[u8], limits: &Limits) -> Result<(), Violation> {
        let Some(now) = self.entries.get_mut(key).and_then(|entry| entry.value.as_mut()) else {
            return self.set(key, bytes, limits);
        };
        let length = now.bytes().len() + bytes.len();
        if length > limits.appended_bytes {
            return Err(Violation::Bound(Bound::AppendedBytes));
        }
        // A value that grows in place may need twice its length for a while; one that a client still reads is copied.
        if self.ledger.total() + Value::cost(length) as u64 > limits.store_bytes {
            return Err(Violation::Bound(Bound::StoreBytes));
        }
        if let Some(value) = Rc::get_mut(now) {
            value.extend(bytes);
        } else {
            let mut copy = Value::new(now.bytes(), &self.ledger);
            copy.extend(bytes);
            *now = Rc::new(copy);
        }
        self.wake_all(key);
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> bool {
        let Some(entry) = self.entries.get_mut(key) else { return false };
        let was_there = entry.value.take().is_some();
        self.keys -= usize::from(was_there);
        self.drop_if_unused(key);
        was_there
    }

    fn push(&mut self, key: &[u8], bytes: &[u8], limits: &Limits) -> Result<(), Violation> {
        self.room_for(Value::cost(bytes.len()), limits)?;
        let value = Rc::new(Value::new(bytes, &self.ledger));
        if let Some(entry) = self.entries.get_mut(key) {
            entry.queue.push_back(value);
            self.wake_one(key);
            return Ok(());
        }
        self.insert(key, Entry { queue: VecDeque::from([value]), ..Entry::default() }, limits)
    }

    /// Removes the oldest value of a queue, and answers with the queue's length before the request, and the value.
    fn pop(&mut self, key: &[u8], answers: &mut Outbox) {
        let queue = self.entries.get_mut(key).map(|entry| &mut entry.queue);
        answers.put_number(queue.as_ref().map_or(0, |queue| signed(queue.len())));
        if let Some(value) = queue.and_then(|queue| queue.pop_front().inspect(|_| shrink(queue))) {
            answers.put_value(&value);
            self.drop_if_unused(key);
        }
    }

    fn are_there(&self, mut keys: Keys<'_>) -> bool {
        keys.all(|key| self.entries.get(key).is_some_and(Entry::is_there))
    }

    fn wait(
        &mut self,
        client: ClientId,
        keys: Keys<'_>,
        answers: &mut Outbox,
        limits: &Limits,
    ) -> Result<(), Violation> {
        self.give_up(client); // a client has one wait at a time
        if self.are_there(keys) {
            answers.put(&[STOP_WAITING]);
            return Ok(());
        }
        let id = self.waits.begin(client);
        for key in keys {
            self.wait_for(id, key, limits).inspect_err(|_| self.give_up(client))?;
        }
        Ok(())
    }

    /// Adds one key to a client's wait, unless the key is present.
    fn wait_for(&mut self, id: WaitId, key: &[u8], limits: &Limits) -> Result<(), Violation> {
        if self.entries.get(key).is_some_and(Entry::is_there) {
            return Ok(());
        }
        self.room_for(WAIT_BYTES, limits)?;
        if !self.entries.contains_key(key) {
            self.room_for(WAIT_BYTES + ENTRY_BYTES + key.len(), limits)?; // for both, or for neither
            self.insert(key, Entry::default(), limits)?;
        }
        if let Some((known, _)) = self.entries.get_key_value(key) {
            let known = Rc::clone(known);
            self.waits.add(id, known);
            self.ledger.add(WAIT_BYTES);
        }
        if let Some(entry) = self.entries.get_mut(key) {
            entry.waiting.push(id);
        }
        Ok(())
    }

    /// Cancels the wait of a client, if it has one.
    fn give_up(&mut self, client: ClientId) {
        let Some((id, wait)) = self.waits.end_of(client) else { return };
        self.ledger.remove(WAIT_BYTES * wait.keys.len());
        for key in &wait.keys {
            if let Some(entry) = self.entries.get_mut(key) {
                entry.waiting.gave_up(id, &self.waits);
            }
            self.drop_if_unused(key);
        }
    }

    /// Counts the key as present in all waits for it, and ends those that miss no other key.
    fn wake_all(&mut self, key: &[u8]) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        for id in std::mem::take(&mut entry.waiting).into_ids() {
            if let Some(keys) = self.waits.met(id) {
                self.ledger.remove(WAIT_BYTES * keys);
            }
        }
    }

    /// Ends the oldest wait that needs only this key, to take the value that was added to the queue.
    fn wake_one(&mut self, key: &[u8]) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        while let Some(id) = entry.waiting.pop() {
            if let Some(keys) = self.waits.met(id) {
                self.ledger.remove(WAIT_BYTES * keys);
                break;
            }
        }
    }

    fn insert(&mut self, key: &[u8], entry: Entry, limits: &Limits) -> Result<(), Violation> {
        if self.entries.len() >= limits.keys {
            return Err(Violation::Bound(Bound::Keys));
        }
        self.room_for(ENTRY_BYTES + key.len(), limits)?;
        self.ledger.add(ENTRY_BYTES + key.len());
        self.entries.insert(key.into(), entry);
        Ok(())
    }

    fn drop_if_unused(&mut self, key: &[u8]) {
        if self.entries.get(key).is_some_and(|entry| !entry.is_there() && entry.waiting.is_empty()) {
            self.entries.remove(key);
            self.ledger.remove(ENTRY_BYTES + key.len());
        }
    }

    fn room_for(&self, bytes: usize, limits: &Limits) -> Result<(), Violation> {
        let fits = self.ledger.total() + bytes as u64 <= limits.store_bytes;
        if fits { Ok(()) } else { Err(Violation::Bound(Bound::StoreBytes)) }
    }
}

/// Converts a count to the signed number that the protocol has for counts.
fn signed(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
