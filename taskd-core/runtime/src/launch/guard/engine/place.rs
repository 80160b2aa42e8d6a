//! The guard's files in its run directory: restored after a removal, so that the next supervisor finds this guard and
//! does not start a second one.

use super::super::claim::{self, Claim};
use super::super::poll::{Poll, Token};
use super::{Engine, Life, RunDir, write_record};
use crate::launch::guard::wire::{FromGuard, Refusal};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Number of attempts to restore the files, and the interval between them.
const TRIES: u32 = 50;
const AGAIN_AFTER: Duration = Duration::from_millis(100);
/// Pause before connections to the guard's abstract socket are accepted again, after a turn in which there were too
/// many.
const FLOOD_PAUSE: Duration = Duration::from_millis(20);

/// The guard's possession of its run directory.
#[derive(Debug)]
pub(super) struct Place {
    lock: File,
    /// Device and inode of the run directory.
    identity: (u64, u64),
    /// Socket that excludes a second guard even if the lock file is removed.
    claim: Option<OwnedFd>,
    /// Descriptor that reports removals from the run directory; only if the guard is a separate process.
    watcher: Option<OwnedFd>,
    is_watched: bool,
    tries: u32,
    /// Time of the next attempt to restore files.
    pub(super) again_at: Option<Instant>,
    /// Time until which connections to the abstract socket stay in the backlog, after too many of them.
    pub(super) flooded_until: Option<Instant>,
    /// Missing safeguards, in sentences that were not logged yet.
    lacks: Vec<String>,
}

impl Place {
    /// Takes possession of the directory, and watches it if the guard is a separate process.
    pub(super) fn take(run_dir: &RunDir, is_watched: bool) -> Result<Place, Refusal> {
        let at =
            |what: &str, error: io::Error| Refusal::Failed(format!("{what} in {}: {error}", run_dir.path().display()));
        run_dir.prepare().map_err(|e| at("cannot write", e))?;
        let lock = run_dir.try_lock().map_err(|e| at("cannot lock guard.lock", e))?.ok_or(Refusal::Occupied)?;
        let identity = run_dir.identity().map_err(|e| at("cannot read the inode", e))?;
        let (claim, watcher, lacks) = (None, None, Vec::new());
        let mut place =
            Place { lock, identity, claim, watcher, is_watched, tries: 0, again_at: None, flooded_until: None, lacks };
        place.claim(run_dir, identity).map_err(|_| Refusal::Occupied)?; // by a guard whose lock was removed
        Ok(place)
    }

    /// Claims the run directory with this device and inode, and watches it. Fails if another guard has claimed it.
    fn claim(&mut self, run_dir: &RunDir, identity: (u64, u64)) -> io::Result<()> {
        self.claim = match claim::claim(identity) {
            Claim::Ours(claim) => Some(claim),
            Claim::Taken => return Err(taken()),
            Claim::Unknown(why) => {
                self.lacks.push(format!("only guard.lock keeps a second guard out of the run directory: {why}"));
                None
            }
        };
        self.identity = identity;
        if self.is_watched {
            let watcher = watcher(run_dir).inspect_err(|error| {
                self.lacks
                    .push(format!("the guard's files are not restored if they are removed (no inotify: {error})"));
            });
            self.watcher = watcher.ok();
        }
        Ok(())
    }

    pub(super) fn add_to(&self, poll: &Poll) -> io::Result<()> {
        for (source, token) in [(&self.claim, Token::Claim), (&self.watcher, Token::Place)] {
            if let Some(source) = source {
                poll.add(source, token)?;
            }
        }
        Ok(())
    }

    /// Closes connections from other guards that tested whether this one exists. Returns false if there may be more.
    fn dismiss(&self) -> bool {
        self.claim.as_ref().is_none_or(claim::dismiss)
    }

    fn is_whole(&self, run_dir: &RunDir) -> bool {
        run_dir.has_files() && run_dir.is_locked_by(&self.lock)
    }

    fn is_settled(&mut self) {
        (self.tries, self.again_at) = (0, None);
    }
}

fn taken() -> io::Error {
    io::Error::other("another guard has taken the directory")
}

/// Makes an inotify descriptor that reports removals from the run directory.
fn watcher(run_dir: &RunDir) -> io::Result<OwnedFd> {
    let watcher = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    let removals = WatchFlags::DELETE | WatchFlags::MOVED_FROM | WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF;
    inotify::add_watch(&watcher, run_dir.path(), removals | WatchFlags::ONLYDIR)?;
    Ok(watcher)
}

impl Engine {
    /// Logs the missing safeguards of the run directory.
    pub(super) fn note_what_the_place_lacks(&mut self) {
        for text in std::mem::take(&mut self.place.lacks) {
            self.note(&text);
        }
    }

    /// Restores the guard's files after a removal from the directory, or of the directory itself.
    pub(super) fn look_at_place(&mut self) {
        if let Some(watcher) = &self.place.watcher {
            let mut taken = [0; 4096];
            while rustix::io::read(watcher, &mut taken).is_ok_and(|n| n > 0) {}
        }
        let is_over = !matches!(self.life, Life::Serving | Life::Keeping { .. });
        if is_over || self.place.is_whole(&self.run_dir) {
            return self.place.is_settled(); // another file was removed, by this guard or by another process
        }
        let restored = self.restore();
        self.note_what_the_place_lacks();
        match restored {
            Ok(()) => {
                self.place.is_settled();
                self.notice("the guard's files in its run directory were removed, and are restored: do not remove them while the job runs");
            }
            Err(_) if self.place.tries < TRIES => {
                self.place.tries += 1; // a supervisor that tests for a guard here holds its lock for a moment
                self.place.again_at = Some(Instant::now() + AGAIN_AFTER);
            }
            Err(error) => {
                self.place.again_at = None;
                self.notice(&format!(
                    "the guard's files in {} were removed and cannot be restored ({error}): the job continues, and no other supervisor can attach to it",
                    self.run_dir.path().display()
                ));
            }
        }
    }

    /// Handles connections to the guard's abstract socket.
    pub(super) fn look_at_claim(&mut self) {
        if self.place.dismiss() {
            return;
        }
        self.counters.connections_refused += claim::IN_A_ROW as u64;
        if let Some(claim) = &self.place.claim {
            self.poll.remove(claim);
            self.place.flooded_until = Some(Instant::now() + FLOOD_PAUSE);
        }
    }

    /// Accepts connections to the abstract socket again, after the pause.
    pub(super) fn look_at_claim_again(&mut self, now: Instant) {
        if self.place.flooded_until.is_some_and(|until| until <= now) {
            self.place.flooded_until = None;
            self.place.claim.iter().for_each(|claim| _ = self.poll.add(claim, Token::Claim)); // one may be pending
        }
    }

    /// Tries again to restore files that could not be restored before.
    pub(super) fn look_at_place_again(&mut self, now: Instant) {
        if self.place.again_at.is_some_and(|at| at <= now) {
            self.look_at_place();
        }
    }

    fn restore(&mut self) -> io::Result<()> {
        self.run_dir.prepare()?; // the directory itself may be gone
        if !self.run_dir.is_locked_by(&self.place.lock) {
            self.place.lock = self.run_dir.try_lock()?.ok_or_else(taken)?;
        }
        let identity = self.run_dir.identity()?;
        if self.place.identity != identity {
            self.place.claim(&self.run_dir, identity)?;
            self.place.add_to(&self.poll)?;
        }
        write_record(&self.run_dir, &self.config, &self.cgroups)?;
        if self.listener.is_some() && !self.run_dir.has_guard_socket() {
            let listener = self.run_dir.listen()?;
            self.poll.add(&listener, Token::Listener)?;
            self.listener = Some(listener); // the previous one is closed, which removes it from the poll
        }
        if !self.run_dir.has_worker_socket() {
            self.door = self.run_dir.listen_for_workers()?;
            if let Some(conn) = self.owner.and_then(|key| self.conns.get_mut(&key)) {
                super::say(conn, &FromGuard::DoorIsNew);
            }
        }
        Ok(())
    }
}
