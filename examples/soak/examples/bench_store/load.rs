//! The load: many clients of a store in one thread, which speak the protocol of torch's client, one request at a time
//! each.
//!
//! It is the same for every server.

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::net::{RecvFlags, SendFlags};
use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use taskd_examples::program::Failure;

const VALIDATE: u8 = 0;
const SET: u8 = 1;
const GET: u8 = 3;
const ADD: u8 = 4;
const WAIT: u8 = 6;
const DELETE_KEY: u8 = 8;
const PING: u8 = 13;
const MAGIC: [u8; 4] = 0x3C85_F7CEu32.to_le_bytes();

/// Bytes of a value: the size of an address that ranks publish.
const VALUE_BYTES: usize = 64;
/// Time limit of an answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// Clients of one server.
pub(crate) struct Clients {
    connected: Vec<Client>,
    epoll: OwnedFd,
    events: Vec<Event>,
}

struct Client {
    stream: TcpStream,
    /// Bytes of the answer that have not been received yet.
    missing: usize,
    /// Bytes of the answer that have been received.
    answer: Vec<u8>,
    stage: u8,
    asked: Instant,
}

/// What a client does next.
enum Next {
    /// It has sent a request whose answer has this many bytes.
    Answer(usize),
    Nothing,
}

/// Number of calls in a time, and latencies of the calls with an answer.
pub(crate) struct Operations {
    pub(crate) calls: u64,
    pub(crate) took: Duration,
    /// Sorted, in nanoseconds.
    pub(crate) latencies: Vec<u32>,
}

impl Operations {
    /// Returns the latency in microseconds that `permille` of a thousand calls did not exceed.
    pub(crate) fn permille_us(&self, permille: usize) -> f64 {
        let at = (self.latencies.len() * permille / 1000).min(self.latencies.len().saturating_sub(1));
        self.latencies.get(at).map_or(f64::NAN, |nanos| f64::from(*nanos) / 1000.0)
    }
}

impl Clients {
    /// Connects `count` clients, which validate the connection and count themselves as torch's ranks do at their start;
    /// returns them with the time from the first connection to the last answer.
    pub(crate) fn join(address: SocketAddr, count: usize) -> Result<(Clients, Duration), Failure> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let mut clients = Clients { connected: Vec::with_capacity(count), epoll, events: Vec::with_capacity(256) };
        let begun = Instant::now();
        for number in 0..count {
            let mut stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            stream.write_all(&[&[VALIDATE], &MAGIC[..]].concat())?;
            stream.write_all(&[PING, 1, 2, 3, 4])?;
            epoll::add(&clients.epoll, &stream, EventData::new_u64(number as u64), EventFlags::IN)?;
            let client = Client { stream, missing: 4, answer: Vec::new(), stage: 0, asked: begun };
            clients.connected.push(client);
        }
        clients.run(count, |client, _| match client.stage {
            0 => {
                client.stage = 1;
                client.ask(&add("init/"), 8)
            }
            _ => Ok(Next::Nothing),
        })?;
        Ok((clients, begun.elapsed()))
    }

    /// Has every client repeat set, get (which is a wait and a get, as in torch's client) and add for the time
    /// `within`.
    pub(crate) fn operations(&mut self, within: Duration) -> Result<Operations, Failure> {
        let begun = Instant::now();
        let (mut calls, mut latencies) = (0, Vec::with_capacity(1 << 20));
        for number in 0..self.connected.len() {
            self.connected[number].stage = 0;
            self.connected[number].set_and_get(number)?;
        }
        self.run(self.connected.len(), |client, number| {
            let took = |client: &Client| u32::try_from(client.asked.elapsed().as_nanos()).unwrap_or(u32::MAX);
            match client.stage {
                0 => {
                    client.stage = 1;
                    client.ask(&get(&format!("/key{number}")), 8 + VALUE_BYTES)
                }
                1 => {
                    latencies.push(took(client));
                    calls += 2; // the preceding set has no answer
                    client.stage = 2;
                    client.asked = Instant::now();
                    client.ask(&add(&format!("/count{}", number % 8)), 8)
                }
                _ => {
                    latencies.push(took(client));
                    calls += 1;
                    client.stage = 0;
                    if begun.elapsed() >= within { Ok(Next::Nothing) } else { client.set_and_get(number) }
                }
            }
        })?;
        let took = begun.elapsed();
        latencies.sort_unstable();
        Ok(Operations { calls, took, latencies })
    }

    /// Has all clients meet `times` times: each adds to a count, the last one sets a key, all wait for it and get it.
    pub(crate) fn barriers(&mut self, times: u32) -> Result<Duration, Failure> {
        let all = i64::try_from(self.connected.len())?;
        let begun = Instant::now();
        for round in 0..times {
            let (count, go) = (format!("/barrier{round}"), format!("/go{round}"));
            for client in &mut self.connected {
                client.stage = 0;
                client.ask(&add(&count), 8)?;
            }
            self.run(self.connected.len(), |client, _| match client.stage {
                0 => {
                    client.stage = 1;
                    if client.answer[..] == all.to_le_bytes() {
                        client.send(&set(&go, b"1"))?;
                    }
                    client.ask(&wait(&go), 1)
                }
                1 => {
                    client.stage = 2;
                    client.ask(&get(&go), 8 + 1)
                }
                _ => Ok(Next::Nothing),
            })?;
        }
        let took = begun.elapsed();
        for round in 0..times {
            let first = self.connected.first_mut().ok_or("no clients")?;
            first.ask(&delete(&format!("/barrier{round}")), 8)?;
            self.run(1, |_, _| Ok(Next::Nothing))?;
            let first = self.connected.first_mut().ok_or("no clients")?;
            first.ask(&delete(&format!("/go{round}")), 8)?;
            self.run(1, |_, _| Ok(Next::Nothing))?;
        }
        Ok(took)
    }

    /// Passes every complete answer to `next`, until `busy` clients have returned [`Next::Nothing`].
    fn run(
        &mut self,
        mut busy: usize,
        mut next: impl FnMut(&mut Client, usize) -> io::Result<Next>,
    ) -> Result<(), Failure> {
        let within = rustix::event::Timespec { tv_sec: i64::try_from(ANSWER_WITHIN.as_secs())?, tv_nsec: 0 };
        let mut room = [0; 4096];
        while busy > 0 {
            self.events.clear();
            epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.events), Some(&within))?;
            if self.events.is_empty() {
                return Err(format!("{busy} clients have no answer after {ANSWER_WITHIN:?}").into());
            }
            for event in &self.events {
                let number = usize::try_from(event.data.u64())?;
                let client = &mut self.connected[number];
                let (_, bytes) = rustix::net::recv(&client.stream, &mut room, RecvFlags::DONTWAIT)?;
                if bytes == 0 || bytes > client.missing {
                    return Err(format!("{bytes} bytes received, {} expected", client.missing).into());
                }
                client.answer.extend_from_slice(&room[..bytes]);
                client.missing -= bytes;
                if client.missing == 0 {
                    if let Next::Answer(bytes) = next(client, number)? {
                        client.missing = bytes;
                    } else {
                        busy -= 1;
                    }
                    client.answer.clear();
                }
            }
        }
        Ok(())
    }
}

impl Client {
    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let sent = rustix::net::send(&self.stream, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
        if sent == bytes.len() { Ok(()) } else { Err(io::Error::other("the server does not read")) }
    }

    fn ask(&mut self, bytes: &[u8], answer: usize) -> io::Result<Next> {
        self.send(bytes)?;
        self.missing = answer;
        Ok(Next::Answer(answer))
    }

    fn set_and_get(&mut self, number: usize) -> io::Result<Next> {
        let key = format!("/key{number}");
        self.send(&set(&key, &[b'7'; VALUE_BYTES]))?;
        self.asked = Instant::now();
        self.ask(&wait(&key), 1)
    }
}

fn request(query: u8, parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = vec![query];
    parts.iter().for_each(|part| bytes.extend_from_slice(part));
    bytes
}

fn string(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes(), bytes].concat()
}

fn set(key: &str, value: &[u8]) -> Vec<u8> {
    request(SET, &[&string(key.as_bytes()), &string(value)])
}

fn get(key: &str) -> Vec<u8> {
    request(GET, &[&string(key.as_bytes())])
}

fn add(key: &str) -> Vec<u8> {
    request(ADD, &[&string(key.as_bytes()), &1i64.to_le_bytes()])
}

fn wait(key: &str) -> Vec<u8> {
    request(WAIT, &[&1u64.to_le_bytes(), &string(key.as_bytes())])
}

fn delete(key: &str) -> Vec<u8> {
    request(DELETE_KEY, &[&string(key.as_bytes())])
}
