//! Serves clients that are ready: carries out what they sent, and sends their answers.

use super::super::client::{self, Client};
use super::super::limits::Bound;
use super::super::poller::Ready;
use super::super::space::ClientId;
use super::super::wire::{Query, STOP_WAITING, Violation};
use super::Server;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv};

/// Capacity of an empty input buffer that a client may keep.
const KEPT_BYTES: usize = 1024;

/// Reasons to close a client.
enum Closing {
    Left,
    Lost,
    Violated(Violation),
}

impl Server {
    pub(super) fn client_ready(&mut self, ready: Ready) {
        let Some(at) = self.seat_of(ready.token) else { return };
        let done = self.read_and_write(at, ready);
        // Before the client is closed: what was set before a violation stays set, and clients that waited for it are
        // notified.
        self.wake(at);
        match done {
            Ok(()) => return self.settle(at),
            Err(Closing::Left) => self.counts.sums.left += 1,
            Err(Closing::Lost) => self.counts.sums.lost += 1,
            Err(Closing::Violated(violation)) => self.counts.violated(violation),
        }
        self.close(at);
    }

    fn read_and_write(&mut self, at: u32, ready: Ready) -> Result<(), Closing> {
        let Some(client) = self.seats.get_mut(at as usize).and_then(|seat| seat.client.as_mut()) else { return Ok(()) };
        if ready.output || (client.is_paused && ready.broken) {
            self.counts.sums.bytes_out += client.flush().map_err(|_| Closing::Lost)?;
            return if client.is_paused { self.carry_out(at, 0) } else { Ok(()) };
        }
        match recv(&client.socket, self.room.as_mut_slice(), RecvFlags::DONTWAIT) {
            Ok((_, 0)) => Err(Closing::Left),
            Ok((_, bytes)) => {
                self.counts.sums.bytes_in += bytes as u64;
                self.carry_out(at, bytes)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(_) => Err(Closing::Lost),
        }
    }

    /// Carries out all complete requests of the client in slot `at`: those in the kept input, and those in the data
    /// just received.
    fn carry_out(&mut self, at: u32, received: usize) -> Result<(), Closing> {
        let Server { seats, hosts, room, answers, silent, limits, counts, .. } = self;
        let Some(client) = seats.get_mut(at as usize).and_then(|seat| seat.client.as_mut()) else { return Ok(()) };
        let Some(host) = hosts.get_mut(client.host).and_then(Option::as_mut) else { return Ok(()) };
        let Client { socket, id, decoder, input, outbox, is_paused, .. } = client;
        let is_kept = !input.is_empty();
        if is_kept {
            input.extend_from_slice(&room[..received]);
        }
        let all: &[u8] = if is_kept { input } else { &room[..received] };
        let (mut used, mut last) = (0, None);
        let out = outbox.as_deref_mut().unwrap_or(answers);
        let done = loop {
            *is_paused = out.unread() > limits.unread_bytes;
            let next = if *is_paused { Ok(None) } else { decoder.next(&all[used..], limits) };
            match next {
                Ok(Some((length, query, request))) => {
                    if let Err(violation) = host.space.apply(*id, request, out, limits) {
                        break Err(Closing::Violated(violation));
                    }
                    counts.requests[query as usize] += 1;
                    (used, last) = (used + length, Some(query));
                }
                Err(violation) => break Err(Closing::Violated(violation)),
                Ok(None) => match client::send(socket, out) {
                    Err(_) => break Err(Closing::Lost),
                    Ok(sent) => {
                        counts.sums.bytes_out += sent;
                        if !*is_paused || out.unread() > limits.unread_bytes {
                            break Ok(());
                        }
                    }
                },
            }
        };
        if last.is_some_and(Query::is_unanswered) && !*is_paused {
            silent.push(*id); // its next request is on its way
        }
        if done.is_err() {
            counts.sums.bytes_out += client::send(socket, out).unwrap_or(0); // answers to earlier requests
            out.clear();
        } else if *is_paused {
            counts.reached(Bound::UnreadBytes);
        }
        if is_kept {
            input.drain(..used);
        } else {
            input.extend_from_slice(&room[used..received]);
        }
        if input.is_empty() && input.capacity() > KEPT_BYTES {
            *input = Vec::new();
        }
        if outbox.is_none() && !answers.is_empty() {
            *outbox = Some(Box::new(std::mem::take(answers)));
        } else if outbox.as_ref().is_some_and(|outbox| outbox.is_empty()) {
            *outbox = None;
        }
        done
    }

    /// Notifies the clients whose wait has ended because of the requests of the client in slot `by`.
    fn wake(&mut self, by: u32) {
        let host = self.seats.get(by as usize).and_then(|seat| seat.client.as_ref()).map(|client| client.host);
        let Some(Some(host)) = host.and_then(|host| self.hosts.get_mut(host)) else { return };
        if host.space.woken().is_empty() {
            return;
        }
        std::mem::swap(&mut self.woken, host.space.woken());
        let mut woken = std::mem::take(&mut self.woken);
        for id in woken.drain(..) {
            self.stop_waiting(id, by);
        }
        self.woken = woken;
    }

    fn stop_waiting(&mut self, id: ClientId, by: u32) {
        let Some(at) = self.seat_of(id) else { return };
        let Some(client) = self.seats.get_mut(at as usize).and_then(|seat| seat.client.as_mut()) else { return };
        self.counts.sums.woken += 1;
        if client.outbox.is_none() {
            match rustix::net::send(&client.socket, &[STOP_WAITING], SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(sent) => {
                    self.counts.sums.bytes_out += sent as u64;
                    return;
                }
                Err(Errno::AGAIN | Errno::INTR) => client.outbox = Some(Box::default()),
                Err(_) if at == by => return, // the caller finds out
                Err(_) => {
                    self.counts.sums.lost += 1;
                    return self.close(at);
                }
            }
        }
        if let Some(outbox) = &mut client.outbox {
            outbox.put(&[STOP_WAITING]);
        }
        if at != by {
            self.settle(at);
        }
    }

    /// Updates the accounts after any change to the client in slot `at`: the memory that it holds, and the events that
    /// it waits for.
    fn settle(&mut self, at: u32) {
        let Some(client) = self.seats.get_mut(at as usize).and_then(|seat| seat.client.as_mut()) else { return };
        let (holds, wants) = (client.holds(), client.wants());
        let has_grown = holds > client.held;
        self.buffer_bytes = self.buffer_bytes - client.held + holds;
        client.held = holds;
        if has_grown && self.buffer_bytes > self.limits.buffer_bytes {
            self.counts.reached(Bound::BufferBytes);
            return self.close(at);
        }
        if wants == client.interest {
            return;
        }
        client.interest = wants;
        if self.poller.change(&client.socket, client.id, wants).is_err() {
            self.counts.sums.lost += 1;
            self.close(at);
        }
    }
}
