//! The collectives of the ranks of a generation.
//!
//! Rank 0 is the hub. It receives the other ranks' values in rank order, sums them in that order, and sends the result
//! back: the sum has the same bits whichever rank was first. (A ring would move less data through one process; at ten
//! kilobytes per step a hub is as fast and easier to read.) No collective has a time limit: a frozen rank makes the
//! other ranks wait, as in NCCL, HCCL or gloo. A dead one ends the collective at once.

use super::config::Place;
use super::error::TrainerError;
use super::wire::{Peer, receive};

/// The ranks of a generation after the rendezvous. Every rank must call the same collectives in the same order.
#[derive(Debug)]
pub(super) struct Group {
    world_size: u32,
    role: Role,
    /// A buffer for one message, kept so that not every step allocates one.
    buffer: Vec<u8>,
}

#[derive(Debug)]
enum Role {
    /// Rank 0's end: the connections to all other ranks, in rank order.
    Hub(Vec<Peer>),
    /// Any other rank's end: the connection to rank 0.
    Spoke([Peer; 1]),
}

impl Group {
    /// Creates rank 0's end from the connections to all other ranks.
    pub(super) fn hub(place: &Place, mut peers: Vec<Peer>) -> Self {
        peers.sort_by_key(|peer| peer.rank);
        Self { world_size: place.world_size, role: Role::Hub(peers), buffer: Vec::new() }
    }

    /// Creates another rank's end from its connection to rank 0.
    pub(super) fn spoke(place: &Place, rank_0: Peer) -> Self {
        Self { world_size: place.world_size, role: Role::Spoke([rank_0]), buffer: Vec::new() }
    }

    /// Replaces `values` on every rank by their mean over all ranks. They have the same length on every rank.
    pub(super) fn all_reduce_mean(&mut self, values: &mut [f32]) -> Result<(), TrainerError> {
        self.buffer.clear();
        self.buffer.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        match &mut self.role {
            Role::Hub(peers) => {
                for index in 0..peers.len() {
                    receive(peers, index, &mut self.buffer)?;
                    for (sum, value) in values.iter_mut().zip(decode(&self.buffer)) {
                        *sum += value;
                    }
                }
                for sum in values.iter_mut() {
                    *sum /= self.world_size as f32;
                }
                self.buffer.clear();
                self.buffer.extend(values.iter().flat_map(|value| value.to_le_bytes()));
                send_to_all(peers, &self.buffer)?;
            }
            Role::Spoke(hub) => {
                hub[0].send(&self.buffer)?;
                receive(hub, 0, &mut self.buffer)?;
                for (value, mean) in values.iter_mut().zip(decode(&self.buffer)) {
                    *value = mean;
                }
            }
        }
        Ok(())
    }

    /// Replaces `bytes` on every rank by rank 0's. They have the same length on every rank.
    pub(super) fn broadcast(&mut self, bytes: &mut [u8]) -> Result<(), TrainerError> {
        match &mut self.role {
            Role::Hub(peers) => send_to_all(peers, bytes),
            Role::Spoke(hub) => receive(hub, 0, bytes),
        }
    }

    /// Succeeds on every rank if all ranks have the same `digest`.
    ///
    /// This is the last collective: rank 0 answers only after it has received from every rank, so that no rank leaves
    /// while it is still listening.
    pub(super) fn agree(&mut self, digest: [u8; 32]) -> Result<(), TrainerError> {
        match &mut self.role {
            Role::Hub(peers) => {
                for index in 0..peers.len() {
                    let mut theirs = [0; 32];
                    receive(peers, index, &mut theirs)?;
                    if theirs != digest {
                        return Err(TrainerError::Diverged { rank: peers[index].rank });
                    }
                }
            }
            Role::Spoke(hub) => hub[0].send(&digest)?,
        }
        // The content does not matter: the message is sent only if all ranks agree.
        self.broadcast(&mut [0])
    }
}

fn send_to_all(peers: &mut [Peer], bytes: &[u8]) -> Result<(), TrainerError> {
    peers.iter_mut().try_for_each(|peer| peer.send(bytes))
}

fn decode(bytes: &[u8]) -> impl Iterator<Item = f32> {
    let (values, _) = bytes.as_chunks();
    values.iter().map(|value| f32::from_le_bytes(*value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::thread;

    fn place(rank: u32, world_size: u32) -> Place {
        Place { job: "test".into(), generation: 0, rank, world_size }
    }

    fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (ours, listener.accept().unwrap().0)
    }

    /// Returns all ranks of a group in this process, hub first.
    fn group(world_size: u32) -> Vec<Group> {
        let (mut peers, mut groups) = (Vec::new(), Vec::new());
        // The order of joining must not matter.
        for rank in (1..world_size).rev() {
            let (of_hub, of_spoke) = connection();
            peers.push(Peer { rank, stream: of_hub });
            groups.insert(0, Group::spoke(&place(rank, world_size), Peer { rank: 0, stream: of_spoke }));
        }
        groups.insert(0, Group::hub(&place(0, world_size), peers));
        groups
    }

    /// Runs `work` on every rank at once and returns the results.
    fn on_all<T: Send>(groups: &mut [Group], work: impl Fn(usize, &mut Group) -> T + Sync) -> Vec<T> {
        let work = &work;
        thread::scope(|scope| {
            let ranks: Vec<_> =
                groups.iter_mut().enumerate().map(|(rank, group)| scope.spawn(move || work(rank, group))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    #[test]
    fn the_mean_is_summed_in_the_order_of_the_ranks() {
        // In f32 these sum to 1.0 from the left; in other orders to 0.0 or 2.0.
        const VALUES: [f32; 4] = [1e8, 1.0, -1e8, 1.0];
        let means = on_all(&mut group(4), |rank, group| {
            let mut values = vec![VALUES[rank], rank as f32];
            group.all_reduce_mean(&mut values).unwrap();
            values
        });
        assert_eq!(means, vec![vec![0.25, 1.5]; 4]);
    }

    #[test]
    fn a_broadcast_gives_all_ranks_the_bytes_of_rank_0() {
        let received = on_all(&mut group(3), |rank, group| {
            let mut bytes = [u8::try_from(rank).unwrap() + 7; 5];
            group.broadcast(&mut bytes).unwrap();
            bytes
        });
        assert_eq!(received, [[7; 5]; 3]);
    }

    #[test]
    fn agreement_names_the_rank_that_differs_and_fails_on_all_ranks() {
        let agreed = on_all(&mut group(3), |_, group| group.agree([1; 32]).is_ok());
        assert_eq!(agreed, [true; 3]);

        let mut groups = group(3);
        let hub = groups.remove(0);
        let spokes = thread::spawn(move || on_all(&mut groups, |index, group| group.agree([[1; 32], [2; 32]][index])));
        // The hub's sockets close when it is dropped, as they do when its process ends.
        let verdict = { hub }.agree([1; 32]);
        assert!(matches!(verdict, Err(TrainerError::Diverged { rank: 2 })), "{verdict:?}");
        assert!(spokes.join().unwrap().iter().all(Result::is_err));
    }

    #[test]
    fn the_death_of_one_is_seen_while_waiting_for_another() {
        let mut groups = group(4);
        // Ranks 1 and 2 are silent, as if frozen, and rank 3 dies while rank 0 waits for rank 1.
        let rank_3 = groups.pop().unwrap();
        let mut hub = groups.remove(0);
        let waiting = thread::spawn(move || hub.all_reduce_mean(&mut [0.0]));
        drop(rank_3);
        let lost = waiting.join().unwrap();
        assert!(matches!(lost, Err(TrainerError::PeerLost { rank: 3, .. })), "{lost:?}");
    }

    #[test]
    fn a_spoke_sees_the_death_of_the_hub() {
        let mut groups = group(2);
        let mut spoke = groups.pop().unwrap();
        drop(groups);
        let lost = spoke.all_reduce_mean(&mut [0.0]);
        assert!(matches!(lost, Err(TrainerError::PeerLost { rank: 0, .. })), "{lost:?}");
    }

    #[test]
    fn all_reduce_in_a_world_of_one_returns_its_own_values() {
        let mut alone = Group::hub(&place(0, 1), Vec::new());
        let mut values = [3.0];
        alone.all_reduce_mean(&mut values).unwrap();
        alone.agree([0; 32]).unwrap();
        assert_eq!(values, [3.0]);
    }
}
