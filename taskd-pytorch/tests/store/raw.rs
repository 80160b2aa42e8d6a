//! A client that sends what it is given, byte for byte.

use crate::service::PATIENCE;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

/// What every client sends first.
pub(crate) const VALIDATE: [u8; 5] = [0, 0xce, 0xf7, 0x85, 0x3c];

pub(crate) const SET: u8 = 1;
pub(crate) const GET: u8 = 3;
pub(crate) const WAIT: u8 = 6;
pub(crate) const NUM_KEYS: u8 = 7;
pub(crate) const MULTI_GET: u8 = 10;
const PING: u8 = 13;

pub(crate) struct Raw(pub(crate) TcpStream);

impl Raw {
    /// Connected, and nothing sent.
    pub(crate) fn silent(address: SocketAddr) -> Raw {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Raw(stream)
    }

    /// A client like others.
    pub(crate) fn client(address: SocketAddr) -> Raw {
        let mut client = Raw::silent(address);
        client.say(&VALIDATE);
        client
    }

    pub(crate) fn say(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    pub(crate) fn receive(&mut self, bytes: usize) -> Vec<u8> {
        let mut received = vec![0; bytes];
        self.0.read_exact(&mut received).unwrap();
        received
    }

    /// Whether the server has closed the connection: what it had sent before is thrown away.
    pub(crate) fn is_closed(&mut self) -> bool {
        let mut room = [0; 65536];
        loop {
            match self.0.read(&mut room) {
                Ok(0) => return true,
                Ok(_) => (),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return true,
                Err(error) => panic!("it is still open: {error}"),
            }
        }
    }

    pub(crate) fn set(&mut self, key: &str, value: &[u8]) {
        self.say(&[&[SET], &string(key.as_bytes())[..], &string(value)].concat());
    }

    pub(crate) fn get(&mut self, key: &str) -> Vec<u8> {
        self.say(&[&[GET], &string(key.as_bytes())[..]].concat());
        let length = u64::from_le_bytes(self.receive(8).try_into().unwrap());
        self.receive(usize::try_from(length).unwrap())
    }

    pub(crate) fn wait(&mut self, key: &str) {
        self.say(&[&[WAIT], &1u64.to_le_bytes()[..], &string(key.as_bytes())].concat());
    }

    /// It is served: nothing that was sent before is left undone.
    pub(crate) fn ping(&mut self) {
        self.say(&[PING, 1, 2, 3, 4]);
        assert_eq!(self.receive(4), [1, 2, 3, 4]);
    }
}

pub(crate) fn string(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes(), bytes].concat()
}
