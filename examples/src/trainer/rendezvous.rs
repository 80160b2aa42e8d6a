//! How the ranks of one generation find each other.
//!
//! Rank 0 listens on a port that the system picks and publishes it in the file `generation-<g>.addr`. The others wait for
//! that file, connect and say who they are. Rank 0 takes in only ranks of its own job, generation and world size, each of
//! them once: leftovers of an earlier generation, be they files or processes, never meet a newer one.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::allreduce::Group;
use super::clock::pause;
use super::config::{Place, TrainerConfig};
use super::durable;
use super::error::TrainerError;
use super::wire::{Peer, receive_message, send_message, wait_readable};

/// How long rank 0 listens to one newcomer who has connected and says nothing. Others wait that long behind him.
const HELLO_WITHIN: Duration = Duration::from_secs(2);
/// How often the others look for the address of rank 0.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// What rank 0 publishes.
#[derive(Debug, Serialize, Deserialize)]
struct Published {
    /// Tells the address from that of an earlier job, should the directory have been used before.
    job: String,
    address: SocketAddr,
}

/// Rank 0's answer to a newcomer, whose own first message is its [`Place`].
#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Answer {
    Welcome,
    Refused(String),
}

/// Waits until all ranks of this generation are connected.
pub(super) fn meet(config: &TrainerConfig) -> Result<Group, TrainerError> {
    let place = &config.place;
    let deadline = Instant::now() + config.settings.rendezvous_within();
    let address_path = config.settings.rendezvous_dir.join(format!("generation-{}.addr", place.generation));
    let timed_out = |missing| TrainerError::RendezvousTimedOut {
        generation: place.generation,
        within_ms: config.settings.rendezvous_within_ms,
        missing,
    };
    if place.rank == 0 {
        durable::prepare(&config.settings.rendezvous_dir)?;
        let listener = listen_and_publish(place, &address_path)?;
        let peers = take_in_all(place, &listener, deadline)?.map_err(timed_out)?;
        Ok(Group::hub(place, peers))
    } else {
        let rank_0 = join(place, &address_path, deadline)?.map_err(timed_out)?;
        Ok(Group::spoke(place, rank_0))
    }
}

fn listen_and_publish(place: &Place, address_path: &Path) -> Result<TcpListener, TrainerError> {
    let listen = || -> io::Result<(TcpListener, SocketAddr)> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        // `accept` is called when somebody is there; should he be gone again by then, it must not wait for the next.
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    };
    let (listener, address) = listen().map_err(TrainerError::io("listen on 127.0.0.1"))?;
    serde_json::to_vec(&Published { job: place.job.clone(), address })
        .map_err(io::Error::from)
        .and_then(|json| durable::write(address_path, place.generation, &json))
        .map_err(TrainerError::io(format!("publish rank 0's address in {}", address_path.display())))?;
    Ok(listener)
}

/// Connections to all other ranks; or, at the deadline, who is missing.
fn take_in_all(
    place: &Place,
    listener: &TcpListener,
    deadline: Instant,
) -> Result<Result<Vec<Peer>, String>, TrainerError> {
    let mut peers: Vec<Peer> = Vec::new();
    let mut turned_away = 0_u64;
    while peers.len() + 1 < place.world_size as usize {
        if !wait_readable(listener.as_fd(), &peers, Some(deadline))? {
            let missing = (1..place.world_size).filter(|rank| peers.iter().all(|peer| peer.rank != *rank));
            let missing: Vec<String> = missing.map(|rank| rank.to_string()).collect();
            return Ok(Err(format!("rank {} did not come, {turned_away} others were turned away", missing.join(", "))));
        }
        // Whatever goes wrong here is the newcomer's: he is sent away or has gone, and the right one may still come.
        match listener.accept().and_then(|(stream, _)| take_in(place, &peers, stream)) {
            Ok(peer) => peers.push(peer),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => turned_away += 1,
        }
    }
    Ok(Ok(peers))
}

fn take_in(place: &Place, peers: &[Peer], stream: TcpStream) -> io::Result<Peer> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(HELLO_WITHIN))?;
    let theirs: Place = receive_message(&stream)?;
    if let Some(objection) = objection(place, peers, &theirs) {
        send_message(&stream, &Answer::Refused(objection.clone()))?;
        return Err(io::Error::other(objection));
    }
    send_message(&stream, &Answer::Welcome)?;
    stream.set_read_timeout(None)?;
    Ok(Peer { rank: theirs.rank, stream })
}

fn objection(ours: &Place, peers: &[Peer], theirs: &Place) -> Option<String> {
    let Place { job, generation, world_size, .. } = ours;
    if (job, generation, world_size) != (&theirs.job, &theirs.generation, &theirs.world_size) {
        return Some(format!("it is in generation {generation} of job {job:?}, with {world_size} ranks"));
    }
    let known = theirs.rank == ours.rank || peers.iter().any(|peer| peer.rank == theirs.rank);
    (known || theirs.rank >= *world_size).then(|| format!("it cannot take in a rank {} now", theirs.rank))
}

/// A connection to rank 0; or, at the deadline, what was missing.
fn join(place: &Place, address_path: &Path, deadline: Instant) -> Result<Result<Peer, String>, TrainerError> {
    loop {
        // The file is read again each time: it may be the leftover of an earlier run, to be replaced at any moment.
        let missing = match connect(place, address_path) {
            Ok(stream) => return introduce(place, stream, deadline).map(Ok),
            Err(missing) => missing,
        };
        if Instant::now() >= deadline {
            return Ok(Err(missing));
        }
        pause(LOOK_EVERY);
    }
}

fn connect(place: &Place, address_path: &Path) -> Result<TcpStream, String> {
    let published = fs::read(address_path).and_then(|json| Ok(serde_json::from_slice::<Published>(&json)?));
    let Published { job, address } =
        published.map_err(|error| format!("cannot read rank 0's address in {}: {error}", address_path.display()))?;
    if job != place.job {
        return Err(format!("the address in {} is that of job {job:?}", address_path.display()));
    }
    TcpStream::connect(address).map_err(|error| format!("cannot connect to rank 0 at {address}: {error}"))
}

fn introduce(place: &Place, stream: TcpStream, deadline: Instant) -> Result<Peer, TrainerError> {
    let exchange = || -> io::Result<Answer> {
        stream.set_nodelay(true)?;
        send_message(&stream, place)?;
        // A timeout of zero would be an error of its own.
        let remaining = deadline.saturating_duration_since(Instant::now()).max(LOOK_EVERY);
        stream.set_read_timeout(Some(remaining))?;
        let answer = receive_message(&stream)?;
        stream.set_read_timeout(None)?;
        Ok(answer)
    };
    match exchange() {
        Ok(Answer::Welcome) => Ok(Peer { rank: 0, stream }),
        Ok(Answer::Refused(reason)) => Err(TrainerError::Refused { reason }),
        Err(source) => Err(TrainerError::PeerLost { rank: 0, source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trainer::config::TrainerSettings;
    use std::io::Write;
    use std::thread;

    fn config(dir: &Path, rank: u32, within_ms: u64) -> TrainerConfig {
        let mut settings = TrainerSettings::in_dir(dir);
        settings.rendezvous_within_ms = within_ms;
        // Each test is a job of its own.
        let job = dir.display().to_string();
        TrainerConfig { place: Place { job, generation: 3, rank, world_size: 3 }, settings }
    }

    /// Rank 0 of the world above, waiting; and its address.
    fn host(dir: &Path) -> (thread::JoinHandle<Result<Group, TrainerError>>, SocketAddr) {
        let config = config(dir, 0, 30_000);
        let address_path = config.settings.rendezvous_dir.join("generation-3.addr");
        let host = thread::spawn(move || meet(&config));
        loop {
            if let Ok(json) = fs::read(&address_path) {
                return (host, serde_json::from_slice::<Published>(&json).unwrap().address);
            }
            assert!(!host.is_finished(), "rank 0 ended before it had published its address");
            thread::yield_now();
        }
    }

    fn join_all(
        dir: &Path,
        ranks: impl IntoIterator<Item = u32>,
    ) -> Vec<thread::JoinHandle<Result<Group, TrainerError>>> {
        let join = |rank| {
            let config = config(dir, rank, 30_000);
            thread::spawn(move || meet(&config))
        };
        ranks.into_iter().map(join).collect()
    }

    #[test]
    fn those_of_another_job_generation_or_world_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (host, address) = host(dir.path());
        let right = config(dir.path(), 1, 30_000).place;
        let strangers = [
            Place { generation: 2, ..right.clone() },
            Place { job: "another".into(), ..right.clone() },
            Place { world_size: 4, ..right.clone() },
            Place { rank: 0, ..right.clone() },
            Place { rank: 3, ..right },
        ];
        for stranger in strangers {
            let stream = TcpStream::connect(address).unwrap();
            send_message(&stream, &stranger).unwrap();
            let answer: Answer = receive_message(&stream).unwrap();
            assert!(matches!(answer, Answer::Refused(_)), "{stranger:?} was taken in");
        }
        // Somebody who does not speak the language is turned away, too, and one who goes at once harms nobody.
        TcpStream::connect(address).unwrap().write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        drop(TcpStream::connect(address).unwrap());

        let others = join_all(dir.path(), [2, 1]);
        assert!(host.join().unwrap().is_ok());
        assert!(others.into_iter().all(|rank| rank.join().unwrap().is_ok()));
    }

    #[test]
    fn a_rank_comes_in_only_once() {
        let dir = tempfile::tempdir().unwrap();
        let (host, _) = host(dir.path());
        // Rank 0 answers each at once. The one that is in stays until rank 2 has come.
        let twins: Vec<_> = join_all(dir.path(), [1, 1]).into_iter().map(|twin| twin.join().unwrap()).collect();
        assert_eq!(twins.iter().filter(|twin| twin.is_ok()).count(), 1, "{twins:?}");
        assert!(twins.iter().any(|twin| matches!(twin, Err(TrainerError::Refused { .. }))), "{twins:?}");

        let rank_2 = join_all(dir.path(), [2]);
        assert!(host.join().unwrap().is_ok());
        assert!(rank_2.into_iter().all(|rank| rank.join().unwrap().is_ok()));
    }

    #[test]
    fn the_address_of_an_earlier_run_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let same_job = config(dir.path(), 0, 1).place.job;
        let someone = TcpListener::bind("127.0.0.1:0").unwrap();
        let leftovers = [
            // Somebody who is there, but not for us; and a reserved port, where nobody listens any more.
            Published { job: "an earlier one".into(), address: someone.local_addr().unwrap() },
            Published { job: same_job, address: "127.0.0.1:1".parse().unwrap() },
        ];
        for leftover in leftovers {
            let directory = dir.path().join("rendezvous");
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("generation-3.addr"), serde_json::to_vec(&leftover).unwrap()).unwrap();
            let everybody = join_all(dir.path(), [1, 2, 0]);
            assert!(everybody.into_iter().all(|rank| rank.join().unwrap().is_ok()));
        }
    }

    #[test]
    fn who_does_not_come_is_named_when_the_time_is_up() {
        let dir = tempfile::tempdir().unwrap();
        let ours = config(dir.path(), 0, 1).place;
        let listener = listen_and_publish(&ours, &dir.path().join("address")).unwrap();
        let rank_2 = connect(&ours, &dir.path().join("address")).unwrap();
        send_message(&rank_2, &Place { rank: 2, ..ours.clone() }).unwrap();
        // The time is up from the start, but rank 2 is there already.
        let missing = take_in_all(&ours, &listener, Instant::now()).unwrap().unwrap_err();
        assert_eq!(missing, "rank 1 did not come, 0 others were turned away");

        let error = meet(&config(dir.path(), 1, 50)).unwrap_err().to_string();
        assert!(error.contains("50 ms") && error.contains("generation-3.addr"), "{error}");
    }

    #[test]
    fn a_newcomer_who_dies_is_noticed_before_all_have_met() {
        let dir = tempfile::tempdir().unwrap();
        let (host, address) = host(dir.path());
        let stream = TcpStream::connect(address).unwrap();
        send_message(&stream, &config(dir.path(), 2, 30_000).place).unwrap();
        assert_eq!(receive_message::<Answer>(&stream).unwrap(), Answer::Welcome);
        drop(stream);
        let lost = host.join().unwrap();
        assert!(matches!(lost, Err(TrainerError::PeerLost { rank: 2, .. })), "{lost:?}");
    }
}
