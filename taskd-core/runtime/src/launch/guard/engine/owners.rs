//! Connections: the choice of the owner, its requests, the reports to it, and the consequences of its loss.

use super::super::A_CENTURY;
use super::{Engine, Life, myself, say};
use crate::job::ProcId;
use crate::launch::guard::GuardCounters;
use crate::launch::guard::conns::{Conn, OwnerRequest, Received};
use crate::launch::guard::exit_watch;
use crate::launch::guard::poll::Token;
use crate::launch::guard::procs::Key;
use crate::launch::guard::wire::{Answer, Call, FromGuard, PROTOCOL, Refusal, ToGuard};
use crate::launch::{LaunchError, OnOwnerLoss};
use rustix::process::Pid;
use std::io;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Maximum number of connections; beyond it the oldest connection without a request is closed.
const CONNS_MAX: usize = 16;
/// Maximum number of connections per process: one as owner, one to borrow the listener, and as many that are about to
/// close.
const CONNS_OF_PROCESS_MAX: usize = 4;
/// Number of reads from the connection of an owner whose process has ended, to get its last messages: more than a
/// socket holds.
const LAST_LOOKS: u32 = 64;
/// Time limit for a new connection to identify itself.
const HELLO_WITHIN: Duration = Duration::from_secs(5);

impl Engine {
    /// Accepts pending connections, a bounded number per turn.
    pub(super) fn accept(&mut self) {
        for _ in 0..CONNS_MAX {
            let Some(Ok((stream, _))) = self.listener.as_ref().map(std::os::unix::net::UnixListener::accept) else {
                return;
            };
            if self.try_accept(stream).is_err() {
                self.counters.connections_refused += 1;
            }
        }
    }

    fn try_accept(&mut self, stream: UnixStream) -> io::Result<()> {
        let peer = rustix::net::sockopt::socket_peercred(&stream)?;
        let ours = peer.uid == rustix::process::geteuid() || peer.uid.is_root();
        let pid = peer.pid.as_raw_nonzero().get().unsigned_abs();
        let of_process = self.conns.values().filter(|conn| conn.peer_pid == pid).count();
        if !ours || of_process >= CONNS_OF_PROCESS_MAX {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        if self.conns.len() >= CONNS_MAX {
            self.close_oldest_silent()?;
        }
        let conn = Conn::new(stream, pid, Instant::now())?;
        self.adopt(conn).map(drop)
    }

    /// Makes room: closes the connection that has been without a request for the longest time.
    fn close_oldest_silent(&mut self) -> io::Result<()> {
        let is_stranger = |key: &Key, conn: &Conn| self.owner != Some(*key) && conn.request.is_none() && !conn.leaving;
        let strangers = self.conns.iter().filter(|(key, conn)| is_stranger(key, conn));
        let oldest = strangers.min_by_key(|(_, conn)| conn.since).map(|(key, _)| *key);
        self.counters.connections_refused += 1;
        self.hang_up(oldest.ok_or(io::ErrorKind::PermissionDenied)?);
        Ok(())
    }

    pub(super) fn adopt(&mut self, conn: Conn) -> io::Result<Key> {
        let key = self.next_conn;
        self.next_conn += 1;
        self.poll.add(&conn, Token::Conn(key))?;
        self.conns.insert(key, conn);
        Ok(key)
    }

    /// Handles input, or room to write, on a connection. Returns true if there may be more input.
    pub(super) fn serve(&mut self, key: Key) -> bool {
        let Some(conn) = self.conns.get_mut(&key) else { return false };
        conn.flush();
        let received = conn.receive(&mut self.scratch);
        let mut alive = received != Received::End;
        while let Some(conn) = self.conns.get_mut(&key) {
            match conn.next::<ToGuard>() {
                Ok(Some(message)) => self.receive(key, message),
                Ok(None) => break,
                Err(error) => {
                    self.counters.connections_refused += 1;
                    self.note(&format!("a connection is closed: {error}"));
                    alive = false;
                    break;
                }
            }
        }
        if alive {
            self.flush(key)
        } else {
            self.hang_up(key)
        }
        alive && received == Received::Bytes
    }

    /// Handles the end of the owner's process, after its last messages.
    pub(super) fn owner_process_ended(&mut self) {
        if let Some(key) = self.owner {
            for _ in 0..LAST_LOOKS {
                if !self.serve(key) {
                    break;
                }
            }
        }
        self.lose_owner("its process has ended");
    }

    fn receive(&mut self, key: Key, message: ToGuard) {
        match message {
            ToGuard::Hello { protocol, takeover, on_owner_loss, job_name } => {
                let allowed = self.may_own(key, protocol, takeover).and_then(|()| self.is_its_job(job_name));
                match allowed {
                    Ok(()) => {
                        if let Some(conn) = self.conns.get_mut(&key) {
                            conn.request = Some(OwnerRequest { takeover, on_owner_loss });
                        }
                        self.welcome(key);
                        self.flush(key);
                    }
                    Err(refusal) => self.turn_away(key, refusal),
                };
            }
            ToGuard::Confirm => {
                let Some(request) = self.conns.get_mut(&key).and_then(|conn| conn.request.take()) else {
                    return self.turn_away(key, Refusal::Protocol(PROTOCOL));
                };
                match self.may_own(key, PROTOCOL, request.takeover) {
                    Ok(()) => {
                        self.config.on_owner_loss = request.on_owner_loss;
                        self.make_owner(key);
                    }
                    Err(refusal) => self.turn_away(key, refusal), // another process was faster
                }
            }
            ToGuard::Call { id, call } if self.owner == Some(key) => self.take_call(key, id, call),
            ToGuard::WindDown { grace } if self.owner == Some(key) => {
                self.note("the job is not supervised any more: all processes are stopped");
                self.withdraw_all_waiting();
                self.end_standbys();
                self.stop_all(grace);
            }
            ToGuard::Dropped { grace } if self.owner == Some(key) => {
                self.end_because("the guard's owner was dropped: all processes were stopped", true);
                self.end(grace, None);
            }
            ToGuard::Borrow { protocol: PROTOCOL } => {
                if let Some(conn) = self.conns.get_mut(&key) {
                    conn.lend(&self.door.listener);
                    conn.leaving = true;
                }
                self.flush(key);
            }
            ToGuard::WindDown { .. } | ToGuard::Dropped { .. } => (), // another process is the owner by now
            ToGuard::Call { .. } | ToGuard::Init(_) | ToGuard::Borrow { .. } => {
                self.turn_away(key, Refusal::Protocol(PROTOCOL))
            }
        }
    }

    fn may_own(&mut self, key: Key, protocol: u32, takeover: bool) -> Result<(), Refusal> {
        if protocol != PROTOCOL {
            return Err(Refusal::Protocol(PROTOCOL));
        }
        match self.life {
            Life::Ending { give_up_at, .. } => {
                return Err(Refusal::Ending { gone_within: give_up_at.saturating_duration_since(Instant::now()) });
            }
            Life::Over => return Err(Refusal::Ending { gone_within: Duration::ZERO }),
            Life::Serving | Life::Keeping { .. } => (),
        }
        match self.owner.filter(|owner| *owner != key).and_then(|owner| self.conns.get(&owner)) {
            Some(owner) if !takeover && !is_gone(owner) => Err(Refusal::Owned { by_pid: owner.peer_pid }),
            _ => Ok(()),
        }
    }

    fn is_its_job(&self, name: String) -> Result<(), Refusal> {
        let own = &self.config.job_name;
        if *own == name { Ok(()) } else { Err(Refusal::OtherJob { name: own.clone() }) }
    }

    fn turn_away(&mut self, key: Key, refusal: Refusal) {
        self.counters.connections_refused += 1;
        if let Some(conn) = self.conns.get_mut(&key) {
            say(conn, &FromGuard::Refused(refusal));
            conn.leaving = true;
        }
        self.flush(key);
    }

    /// Sends the job and the pid of this guard.
    pub(super) fn welcome(&mut self, key: Key) {
        if let Some(conn) = self.conns.get_mut(&key) {
            let job = self.config.job.clone();
            say(conn, &FromGuard::Welcome { protocol: PROTOCOL, job, guard_pid: std::process::id() });
        }
    }

    /// Makes this connection the owner's.
    pub(super) fn make_owner(&mut self, key: Key) {
        let by_pid = self.conns.get(&key).map_or(0, |conn| conn.peer_pid);
        if let Some(old) = self.owner.replace(key).filter(|old| *old != key) {
            if let Some(conn) = self.conns.get_mut(&old) {
                say(conn, &FromGuard::TakenOver { by_pid });
                conn.leaving = true;
            }
            self.flush(old);
        }
        self.note(&format!("process {by_pid} is the owner"));
        (self.life, self.sync_owed) = (Life::Serving, true);
        self.watch_process(by_pid);
        if let Some(conn) = self.conns.get_mut(&key) {
            conn.trust();
        }
        self.procs.report_all();
        self.report_standbys();
        self.notify_owner();
    }

    /// Watches the owner's process, since a child of it may hold the socket open after its death.
    fn watch_process(&mut self, pid: u32) {
        self.forget_owner_process();
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let watch = |pid| exit_watch::Other::watch(pid, &self.poll, Token::OwnerProcess, Instant::now());
        self.owner_process = pid.and_then(watch);
    }

    fn forget_owner_process(&mut self) {
        if let Some(process) = self.owner_process.take() {
            process.forget(&self.poll);
        }
    }

    /// Polls the owner's process if the kernel does not report its end.
    pub(super) fn look_at_owner(&mut self, now: Instant) {
        if self.owner_process.as_mut().is_some_and(|process| process.look(now)) {
            self.owner_process_ended();
        }
    }

    fn take_call(&mut self, key: Key, id: u64, call: Call) {
        self.enforce_fence();
        let answer = match call {
            Call::Start(batch) => return self.start_batch(key, id, batch),
            Call::Prepare { batch, in_loop } => {
                self.keep_standbys_for(&batch, in_loop, Instant::now());
                Ok(Answer::Done)
            }
            Call::Shutdown { grace } => {
                self.note("the owner ends the job"); // no later owner needs a record of the end
                return self.end(grace, Some((key, id)));
            }
            Call::Stop { procs, grace } => {
                self.stop(&procs, grace);
                Ok(Answer::Done)
            }
            Call::Acknowledge { procs } => {
                procs.iter().for_each(|id: &ProcId| self.procs.acknowledge(id));
                Ok(Answer::Done)
            }
            Call::Counters => {
                for text in self.ooms.unexplained(Instant::now()) {
                    self.notice(&text);
                }
                Ok(Answer::Counters(self.all_counters()))
            }
            Call::Detach { keep } => self.detach(keep),
            Call::Fence { at } => self.set_fence(key, at),
        };
        self.answer(key, id, answer);
    }

    fn detach(&mut self, keep: Duration) -> Result<Answer, LaunchError> {
        if self.signals.is_none() {
            let text = "there is no guard, so no rank can outlive this process: stop the job instead";
            return Err(LaunchError::Refused(text.into()));
        }
        self.note(&format!("the owner has detached; another owner can attach within {keep:?}"));
        self.owner = None;
        self.life = Life::Keeping { until: Instant::now() + keep.min(A_CENTURY) };
        Ok(Answer::Done)
    }

    fn all_counters(&self) -> GuardCounters {
        let logs = self.logs.counts();
        GuardCounters {
            output_bytes_dropped: logs.dropped_bytes,
            output_refused: logs.refused,
            logs_rotated: logs.rotated,
            standbys_waiting: self.standbys.ready() as u64,
            standbys_parked: self.standbys.parked() as u64,
            ..self.counters
        }
    }

    /// Reports to the owner, and logs, that the job runs without something.
    pub(super) fn notice(&mut self, text: &str) {
        self.note(text);
        if let Some((key, conn)) = self.owner.and_then(|key| Some((key, self.conns.get_mut(&key)?))) {
            say(conn, &FromGuard::Notice(text.to_owned()));
            self.flush(key);
        }
    }

    pub(super) fn answer(&mut self, key: Key, id: u64, answer: Result<Answer, LaunchError>) {
        if let Some(conn) = self.conns.get_mut(&key) {
            say(conn, &FromGuard::Answer { id, answer });
        }
        self.flush(key);
    }

    /// Sends pending reports to the owner, as many as its connection takes.
    pub(super) fn notify_owner(&mut self) {
        let Some((key, conn)) = self.owner.and_then(|key| Some((key, self.conns.get_mut(&key)?))) else { return };
        let mut is_sent = true;
        while conn.has_room() {
            let Some(news) = self.procs.next_news() else {
                if std::mem::take(&mut self.sync_owed) {
                    say(conn, &FromGuard::Synced);
                }
                break;
            };
            is_sent &= conn.send(&FromGuard::Proc(Box::new(news.clone()))).is_ok();
        }
        debug_assert!(is_sent, "the report of one process is far below the limit of a frame");
        self.flush(key);
    }

    pub(super) fn flush(&mut self, key: Key) {
        let Some(conn) = self.conns.get_mut(&key) else { return };
        conn.flush();
        if conn.leaving && conn.unsent() == 0 {
            return self.hang_up(key);
        }
        let wanted = conn.wanted();
        if wanted != conn.interest && self.poll.set(&*conn, Token::Conn(key), wanted).is_ok() {
            conn.interest = wanted;
        }
    }

    fn hang_up(&mut self, key: Key) {
        if let Some(conn) = self.conns.remove(&key) {
            self.poll.remove(&conn);
        }
        if self.owner == Some(key) {
            self.lose_owner("its connection has ended");
        }
    }

    /// Handles the loss of the owner, as configured.
    pub(super) fn lose_owner(&mut self, why: &str) {
        self.forget_owner_process();
        let Some(key) = self.owner.take() else { return };
        self.note(&format!("the owner is gone: {why}"));
        if let Some(conn) = self.conns.remove(&key) {
            self.poll.remove(&conn);
        }
        if matches!(self.life, Life::Serving) {
            match self.config.on_owner_loss {
                OnOwnerLoss::KillTree { grace } => {
                    let why = format!("{} lost its owner, and is configured to stop all processes then", myself());
                    self.end_because(&why, true);
                    self.end(grace, None);
                }
                OnOwnerLoss::Keep { at_most } => {
                    self.life = Life::Keeping { until: Instant::now() + at_most.min(A_CENTURY) };
                }
            }
        }
    }

    /// Closes connections that have not identified themselves in time.
    pub(super) fn drop_silent_strangers(&mut self, now: Instant) {
        let silent = |conn: &Conn| now.saturating_duration_since(conn.since) >= HELLO_WITHIN;
        let owner = self.owner;
        let keys: Vec<Key> =
            self.conns.iter().filter(|(key, conn)| owner != Some(**key) && silent(conn)).map(|(key, _)| *key).collect();
        for key in keys {
            self.counters.connections_refused += 1;
            self.hang_up(key);
        }
    }

    pub(super) fn strangers_deadline(&self) -> Option<Instant> {
        let strangers = self.conns.iter().filter(|(key, _)| self.owner != Some(**key));
        strangers.map(|(_, conn)| conn.since + HELLO_WITHIN).min()
    }
}

/// Returns true if the peer has closed the connection, even if the event of that was not handled yet.
fn is_gone(conn: &Conn) -> bool {
    let mut polled = [rustix::event::PollFd::new(conn, rustix::event::PollFlags::empty())];
    let at_once = rustix::event::Timespec::default();
    rustix::event::poll(&mut polled, Some(&at_once)).is_ok() && !polled[0].revents().is_empty()
}
