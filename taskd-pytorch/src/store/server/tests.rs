//! Generations: their isolation from each other, and their ends. Clients of every kind are in `tests/store`.

use super::*;
use std::io::{Read, Write};
use std::net::TcpStream;

/// The first message of every client.
const VALIDATE: [u8; 5] = [0, 0xce, 0xf7, 0x85, 0x3c];
const PATIENCE: Duration = Duration::from_secs(20);

fn listener() -> (TcpListener, std::net::SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn client(address: std::net::SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&VALIDATE).unwrap();
    stream
}

/// Turns the server until this condition holds.
fn until(server: &mut Server, holds: impl Fn(&Stats) -> bool) {
    for _ in 0..1000 {
        if holds(&server.stats()) {
            return;
        }
        server.turn(Some(Duration::from_millis(20))).unwrap();
    }
    panic!("it never came to it: {:?}", server.stats());
}

#[test]
fn each_generation_has_keys_clients_and_an_end_of_its_own() {
    let mut server = Server::new(Limits::default()).unwrap();
    let ((first, at_first), (second, at_second)) = (listener(), listener());
    let kept = first.try_clone().unwrap(); // as the launcher that passed it might
    server.serve(Generation(1), first).unwrap();
    server.serve(Generation(2), second).unwrap();
    let (mut old, mut new) = (client(at_first), client(at_second));
    for stream in [&mut old, &mut new] {
        stream.write_all(b"\x01\x01\0\0\0\0\0\0\0k\x01\0\0\0\0\0\0\0v").unwrap();
    }
    until(&mut server, |stats| stats.requested(super::super::Query::Set) == 2);
    let keys: Vec<(u64, u64)> = server.stats().generations.iter().map(|held| (held.clients, held.keys)).collect();
    assert_eq!(keys, [(1, 1), (1, 1)]);

    assert!(server.retire(Generation(1)));
    assert!(!server.retire(Generation(1)), "it is over already");
    assert_eq!(old.read(&mut [0; 1]).unwrap(), 0, "its clients are closed");
    assert!(TcpStream::connect(at_first).is_err(), "although its listener is open elsewhere: {kept:?}");
    new.write_all(&[7]).unwrap();
    until(&mut server, |stats| stats.requested(super::super::Query::NumKeys) == 1);
    let mut keys = [0; 8];
    new.read_exact(&mut keys).unwrap();
    assert_eq!(i64::from_le_bytes(keys), 1, "the other one goes on");
    let stats = server.stats();
    assert_eq!((stats.retired, stats.retired_clients, stats.clients, stats.left), (1, 1, 1, 0));
}

/// A launcher shares the listener. One that shuts it down must not make each turn return at once.
#[test]
fn a_listener_that_is_shut_down_elsewhere_wakes_the_server_no_more() {
    let mut server = Server::new(Limits::default()).unwrap();
    let (listener, _) = listener();
    let shared = listener.try_clone().unwrap();
    server.serve(Generation(1), listener).unwrap();
    rustix::net::shutdown(&shared, rustix::net::Shutdown::Both).unwrap();
    server.turn(Some(Duration::ZERO)).unwrap(); // it notices
    let began = std::time::Instant::now();
    server.turn(Some(Duration::from_millis(100))).unwrap();
    assert!(began.elapsed() >= Duration::from_millis(100), "{:?}", began.elapsed());
}

#[test]
fn generation_that_cannot_be_served_is_refused_with_a_reason() {
    let mut server = Server::new(Limits { generations: 2, ..Limits::default() }).unwrap();
    server.serve(Generation(3), listener().0).unwrap();
    let refused =
        |server: &mut Server, generation, listener| server.serve(Generation(generation), listener).unwrap_err();
    assert!(matches!(refused(&mut server, 3, listener().0), Refusal::AlreadyServed { .. }));
    server.serve(Generation(4), listener().0).unwrap();
    assert_eq!(refused(&mut server, 5, listener().0), Refusal::TooMany { limit: 2 });
    assert_eq!(server.stats().reached(Bound::Generations), 1);
    assert!(server.retire(Generation(4)));
    let over = Refusal::Retired { generation: Generation(4), newest: Generation(4) };
    assert_eq!(refused(&mut server, 4, listener().0), over);
    let (held, address) = listener();
    let stream = TcpStream::connect(address).unwrap();
    let not_listening = TcpListener::from(std::os::fd::OwnedFd::from(stream));
    assert!(refused(&mut server, 5, not_listening).to_string().contains("does not listen"));
    let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let datagrams = TcpListener::from(std::os::fd::OwnedFd::from(datagrams));
    assert!(refused(&mut server, 5, datagrams).to_string().contains("is not a TCP socket"));
    let file = TcpListener::from(std::os::fd::OwnedFd::from(File::open("/dev/null").unwrap()));
    assert!(refused(&mut server, 5, file).to_string().contains("is not a socket"));
    server.serve(Generation(5), held).unwrap();
    assert!(Server::new(Limits { keys: 0, ..Limits::default() }).is_err());
}

#[test]
fn reused_seat_gets_no_answers_of_the_previous_client() {
    let mut server = Server::new(Limits::default()).unwrap();
    let (listener, address) = listener();
    server.serve(Generation(1), listener).unwrap();
    for round in 1..=50 {
        // Both clients leave and connect in one turn of the server.
        let waiting = client(address);
        (&waiting).write_all(b"\x06\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0k").unwrap();
        until(&mut server, |stats| stats.requested(super::super::Query::Wait) == round);
        // In every other round the first client ends before the next one connects; otherwise the next one's key ends
        // its wait.
        let waiting = Some(waiting).filter(|_| round % 2 == 0);
        let mut next = client(address);
        next.write_all(b"\x01\x01\0\0\0\0\0\0\0k\0\0\0\0\0\0\0\0\x08\x01\0\0\0\0\0\0\0k").unwrap();
        drop(waiting);
        until(&mut server, |stats| {
            // A client counts as lost rather than left if the next one's key ended its wait before its close arrived.
            let gone = stats.left + stats.lost;
            gone == 2 * round - 1 && stats.requested(super::super::Query::DeleteKey) == round
        });
        let mut deleted = [0; 8];
        next.read_exact(&mut deleted).unwrap();
        assert_eq!(i64::from_le_bytes(deleted), 1);
        drop(next);
        until(&mut server, |stats| stats.clients == 0);
    }
    assert!(server.seats.len() <= 3, "places are used again: {}", server.seats.len());
    assert_eq!(server.stats().store_bytes, 0);
    assert_eq!(server.stats().buffer_bytes, 0);
}

#[test]
fn silent_connection_times_out_but_an_idle_client_does_not() {
    let mut server = Server::new(Limits { silent_ms: 50, ..Limits::default() }).unwrap();
    let (listener, address) = listener();
    server.serve(Generation(1), listener).unwrap();
    let (mut silent, mut halfway) = (TcpStream::connect(address).unwrap(), TcpStream::connect(address).unwrap());
    halfway.write_all(&VALIDATE[..3]).unwrap();
    let mut idle = client(address);
    until(&mut server, |stats| stats.clients == 3);
    until(&mut server, |stats| stats.clients == 1);
    for stream in [&mut silent, &mut halfway] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(stream.read(&mut [0; 1]).unwrap_or(0), 0, "it is closed");
    }
    assert_eq!(server.stats().reached(Bound::SilentMs), 2);
    idle.write_all(&[7]).unwrap();
    until(&mut server, |stats| stats.requested(super::super::Query::NumKeys) == 1);
}

#[test]
fn connections_that_show_nothing_take_no_clients_place() {
    let limits = Limits { silent: 5, clients: 8, ..Limits::default() };
    let mut server = Server::new(limits).unwrap();
    let (listener, address) = listener();
    server.serve(Generation(1), listener).unwrap();
    let flood: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
    until(&mut server, |stats| stats.accepted == 20);
    assert_eq!((server.stats().clients, server.stats().reached(Bound::Silent)), (5, 15), "the oldest are closed");
    let clients: Vec<TcpStream> = (0..8).map(|_| client(address)).collect();
    until(&mut server, |stats| stats.requested(super::super::Query::Validate) == 8);
    assert_eq!(server.stats().clients, 8, "{} that show nothing have made room for {}", flood.len(), clients.len());
    let _one_too_many = client(address);
    until(&mut server, |stats| stats.accepted == 29);
    assert_eq!(server.stats().clients, 8, "clients keep their places");
}
