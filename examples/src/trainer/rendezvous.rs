//! The rendezvous of the ranks of one generation.
//!
//! Rank 0 listens at a port that the system chooses and publishes it in the file `generation-<g>.addr`. The others wait
//! for that file, connect and send their place. Rank 0 accepts only ranks of its own job, generation and world size,
//! each of them once: files and processes that are left of an earlier generation never meet a newer one.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::allreduce::Group;
use super::clock::pause;
use super::config::{Place, TrainerConfig};
use super::durable;
use super::error::TrainerError;
use super::wire::{Peer, receive_message, send_message, wait_readable};

/// How long rank 0 waits for the message of a peer that has connected. Other peers wait meanwhile.
const HELLO_WITHIN: Duration = Duration::from_secs(2);
/// The interval at which the other ranks look for the address of rank 0.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// What rank 0 publishes.
#[derive(Debug, Serialize, Deserialize)]
struct Published {
    /// Distinguishes the address from that of an earlier job that used the same directory.
    job: String,
    address: SocketAddr,
}

/// Rank 0's answer to a joining rank, whose own first message is its [`Place`].
#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Answer {
    Welcome,
    Refused(String),
}

/// Waits until all ranks of this generation are connected.
pub(super) fn meet(config: &TrainerConfig) -> Result<Group, TrainerError> {
    let rendezvous = Rendezvous::begin(config);
    if config.place.rank == 0 {
        durable::prepare(&config.settings.rendezvous_dir)?;
        let listener = rendezvous.listen_and_publish()?;
        Ok(Group::hub(&config.place, rendezvous.take_in_all(&listener)?))
    } else {
        Ok(Group::spoke(&config.place, rendezvous.join()?))
    }
}

/// The rendezvous of one rank.
struct Rendezvous<'a> {
    place: &'a Place,
    address_path: PathBuf,
    within: Duration,
    deadline: Instant,
}

impl<'a> Rendezvous<'a> {
    fn begin(config: &'a TrainerConfig) -> Self {
        let file = format!("generation-{}.addr", config.place.generation);
        let within = config.settings.rendezvous_within();
        Self {
            place: &config.place,
            address_path: config.settings.rendezvous_dir.join(file),
            within,
            deadline: Instant::now() + within,
        }
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.deadline
    }

    fn timed_out(&self, missing: String) -> TrainerError {
        TrainerError::RendezvousTimedOut { generation: self.place.generation, within: self.within, missing }
    }

    fn listen_and_publish(&self) -> Result<TcpListener, TrainerError> {
        let listen = || -> io::Result<(TcpListener, SocketAddr)> {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            // `accept` is called when a peer has connected; if that peer is gone by then, the call must not wait for
            // the next one.
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            Ok((listener, address))
        };
        let (listener, address) = listen().map_err(TrainerError::io("listen on 127.0.0.1"))?;

        let path = &self.address_path;
        serde_json::to_vec(&Published { job: self.place.job.clone(), address })
            .map_err(io::Error::from)
            .and_then(|json| durable::write(path, self.place.generation, &json))
            .map_err(TrainerError::io(format!("publish rank 0's address in {}", path.display())))?;
        Ok(listener)
    }

    /// Returns the connections to all other ranks.
    fn take_in_all(&self, listener: &TcpListener) -> Result<Vec<Peer>, TrainerError> {
        let mut peers: Vec<Peer> = Vec::new();
        let mut turned_away = 0_u64;
        while peers.len() + 1 < self.place.world_size as usize {
            let a_peer_is_there = wait_readable(listener.as_fd(), &peers, Some(self.deadline))?;
            // Refused peers do not extend the time limit, however many they are.
            if !a_peer_is_there || (turned_away > 0 && self.is_over()) {
                let missing = (1..self.place.world_size).filter(|rank| peers.iter().all(|peer| peer.rank != *rank));
                let missing: Vec<String> = missing.map(|rank| rank.to_string()).collect();
                let missing = missing.join(", ");
                return Err(
                    self.timed_out(format!("rank {missing} did not connect, {turned_away} others were refused"))
                );
            }
            match listener.accept() {
                Ok((joining, _)) => match self.take_in(&peers, joining) {
                    Ok(peer) => peers.push(peer),
                    // A peer that does not belong here, or one that has left already. The expected one may still come.
                    Err(_) => turned_away += 1,
                },
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionAborted) => {}
                Err(error) => return Err(TrainerError::io("accept connections of other ranks")(error)),
            }
        }
        Ok(peers)
    }

    fn take_in(&self, peers: &[Peer], joining: TcpStream) -> io::Result<Peer> {
        joining.set_nodelay(true)?;
        joining.set_read_timeout(Some(HELLO_WITHIN))?;
        let theirs: Place = receive_message(&joining)?;
        if let Some(objection) = self.objection(peers, &theirs) {
            send_message(&joining, &Answer::Refused(objection.clone()))?;
            return Err(io::Error::other(objection));
        }
        send_message(&joining, &Answer::Welcome)?;
        joining.set_read_timeout(None)?;
        Ok(Peer { rank: theirs.rank, stream: joining })
    }

    /// Returns the reason why rank 0 refuses a peer that claims to be `theirs`, if it does.
    fn objection(&self, peers: &[Peer], theirs: &Place) -> Option<String> {
        let Place { job, generation, rank, world_size } = self.place;
        if (job, generation, world_size) != (&theirs.job, &theirs.generation, &theirs.world_size) {
            return Some(format!("rank 0 is in generation {generation} of job {job:?}, with {world_size} ranks"));
        }
        let known = theirs.rank == *rank || peers.iter().any(|peer| peer.rank == theirs.rank);
        (known || theirs.rank >= *world_size).then(|| format!("a rank {} cannot join now", theirs.rank))
    }

    /// Connects to rank 0.
    fn join(&self) -> Result<Peer, TrainerError> {
        loop {
            // The file is read again each time: it may be left of an earlier run, and be replaced at any moment.
            match self.connect() {
                Ok(stream) => return self.introduce(stream),
                Err(missing) if self.is_over() => return Err(self.timed_out(missing)),
                Err(_) => pause(LOOK_EVERY),
            }
        }
    }

    /// Connects to the address that is published now; the error is what is missing for that.
    fn connect(&self) -> Result<TcpStream, String> {
        let path = self.address_path.display();
        let published = fs::read(&self.address_path).and_then(|json| Ok(serde_json::from_slice::<Published>(&json)?));
        let Published { job, address } =
            published.map_err(|error| format!("cannot read rank 0's address in {path}: {error}"))?;
        if job != self.place.job {
            return Err(format!("the address in {path} is that of job {job:?}"));
        }
        TcpStream::connect(address).map_err(|error| format!("cannot connect to rank 0 at {address}: {error}"))
    }

    fn introduce(&self, rank_0: TcpStream) -> Result<Peer, TrainerError> {
        let exchange = || -> io::Result<Answer> {
            rank_0.set_nodelay(true)?;
            send_message(&rank_0, self.place)?;
            // A timeout of zero would be rejected.
            let remaining = self.deadline.saturating_duration_since(Instant::now()).max(LOOK_EVERY);
            rank_0.set_read_timeout(Some(remaining))?;
            let answer = receive_message(&rank_0)?;
            rank_0.set_read_timeout(None)?;
            Ok(answer)
        };
        match exchange() {
            Ok(Answer::Welcome) => Ok(Peer { rank: 0, stream: rank_0 }),
            Ok(Answer::Refused(reason)) => Err(TrainerError::Refused { reason }),
            Err(source) => Err(TrainerError::PeerLost { rank: 0, source }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trainer::config::TrainerSettings;
    use std::io::Write;
    use std::path::Path;
    use std::thread;

    fn config(dir: &Path, rank: u32, within_ms: u64) -> TrainerConfig {
        let mut settings = TrainerSettings::in_dir(dir);
        settings.rendezvous_within_ms = within_ms;
        // Each test is a job of its own.
        let job = dir.display().to_string();
        TrainerConfig { place: Place { job, generation: 3, rank, world_size: 3 }, settings }
    }

    /// Starts rank 0 of the world above, which waits; returns its thread and its address.
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
    fn ranks_of_another_job_generation_or_world_are_refused() {
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
        // A peer of another protocol is refused, too, and one that leaves at once has no effect.
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
        // Rank 0 answers each at once. The accepted one waits until rank 2 has joined.
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
            // A process that listens, but not for this job; and a reserved port at which no process listens any more.
            Published { job: "an earlier one".into(), address: someone.local_addr().unwrap() },
            Published { job: same_job, address: "127.0.0.1:1".parse().unwrap() },
        ];
        for leftover in leftovers {
            let directory = dir.path().join("rendezvous");
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("generation-3.addr"), serde_json::to_vec(&leftover).unwrap()).unwrap();
            let threads = join_all(dir.path(), [1, 2, 0]);
            // No rank leaves before all have met.
            let all_ranks: Vec<_> = threads.into_iter().map(|rank| rank.join().unwrap()).collect();
            assert!(all_ranks.iter().all(Result::is_ok), "{all_ranks:?}");
        }
    }

    #[test]
    fn a_missing_rank_is_named_when_the_rendezvous_times_out() {
        let dir = tempfile::tempdir().unwrap();
        let config_0 = config(dir.path(), 0, 30_000);
        fs::create_dir(&config_0.settings.rendezvous_dir).unwrap();
        let mut rank_0 = Rendezvous::begin(&config_0);
        let listener = rank_0.listen_and_publish().unwrap();
        let rank_2 = rank_0.connect().unwrap();
        send_message(&rank_2, &Place { rank: 2, ..config_0.place.clone() }).unwrap();
        // The time limit has passed from the start, but rank 2 is there already.
        rank_0.deadline = Instant::now();
        let error = rank_0.take_in_all(&listener).unwrap_err().to_string();
        assert!(error.ends_with("rank 1 did not connect, 0 others were refused"), "{error}");

        fs::remove_file(&rank_0.address_path).unwrap();
        let error = meet(&config(dir.path(), 1, 50)).unwrap_err().to_string();
        assert!(error.contains("50ms") && error.contains("generation-3.addr"), "{error}");
    }

    #[test]
    fn the_death_of_a_rank_is_noticed_before_the_rendezvous_completes() {
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
