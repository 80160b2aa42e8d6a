//! The guard's files in its run directory: restored when they were removed, so that the next supervisor finds this guard and starts no
//! second one.

use super::super::claim::{self, Claim};
use super::super::poll::Token;
use super::{Engine, Life, write_record};
use crate::launch::guard::wire::{FromGuard, Refusal};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// How often it is tried to put the files back, and after what time again.
const TRIES: u32 = 50;
const AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Files that are not there again yet.
#[derive(Debug, Default)]
pub(super) struct Restoring {
    tries: u32,
    pub(super) again_at: Option<Instant>,
}

/// The directory's claim, where there can be one.
pub(super) fn claimed(run_dir: &super::RunDir, identity: (u64, u64)) -> Result<Option<OwnedFd>, Refusal> {
    match claim::claim(identity) {
        Claim::Ours(claim) => Ok(Some(claim)),
        Claim::Taken => Err(Refusal::Occupied), // by a guard whose lock was removed
        Claim::Unknown(why) => {
            tracing::debug!("whether another guard has {} is known by its lock alone: {why}", run_dir.path().display());
            Ok(None)
        }
    }
}

/// An inotify descriptor that reports removals from the directory.
pub(super) fn watcher(run_dir: &super::RunDir) -> io::Result<OwnedFd> {
    let watcher = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    let what = WatchFlags::DELETE
        | WatchFlags::MOVED_FROM
        | WatchFlags::DELETE_SELF
        | WatchFlags::MOVE_SELF
        | WatchFlags::ONLYDIR;
    inotify::add_watch(&watcher, run_dir.path(), what)?;
    Ok(watcher)
}

impl Engine {
    /// Something was removed from the directory, or the directory itself was.
    pub(super) fn look_at_place(&mut self) {
        if let Some(watcher) = &self.watcher {
            let mut taken = [0; 4096];
            while rustix::io::read(watcher, &mut taken).is_ok_and(|n| n > 0) {}
        }
        let is_over = !matches!(self.life, Life::Serving | Life::Keeping { .. });
        if is_over || self.run_dir.has_files() && self.run_dir.is_locked_by(&self.lock) {
            self.restoring = Restoring::default();
            return; // something else was removed, by this guard or by others
        }
        match self.restore() {
            Ok(()) => {
                self.restoring = Restoring::default();
                self.notice("the guard's files in its run directory were removed, and are there again: leave them alone as long as the job runs");
            }
            Err(_) if self.restoring.tries < TRIES => {
                self.restoring.tries += 1; // a supervisor that looks for a guard here holds its lock for a moment
                self.restoring.again_at = Some(Instant::now() + AGAIN_AFTER);
            }
            Err(error) => {
                self.restoring.again_at = None;
                self.notice(&format!(
                    "the guard's files in {} were removed and cannot be put back ({error}): the job goes on, and no other supervisor can attach to it",
                    self.run_dir.path().display()
                ));
            }
        }
    }

    /// The same where it could not be done before.
    pub(super) fn look_at_place_again(&mut self, now: Instant) {
        if self.restoring.again_at.is_some_and(|at| at <= now) {
            self.look_at_place();
        }
    }

    fn restore(&mut self) -> io::Result<()> {
        self.run_dir.prepare()?; // the directory itself may be gone
        let taken = || io::Error::other("another guard has the directory by now");
        if !self.run_dir.is_locked_by(&self.lock) {
            self.lock = self.run_dir.try_lock()?.ok_or_else(taken)?;
        }
        let identity = self.run_dir.identity()?;
        if self.claimed != Some(identity) {
            match claim::claim(identity) {
                Claim::Ours(claim) => (self.claim, self.claimed) = (Some(claim), Some(identity)),
                Claim::Taken => return Err(taken()),
                Claim::Unknown(_) => (),
            }
            if let (Some(claim), Ok(watcher)) = (&self.claim, watcher(&self.run_dir)) {
                self.poll.add(claim, Token::Claim)?;
                self.poll.add(&watcher, Token::Place)?;
                self.watcher = Some(watcher);
            }
        }
        write_record(&self.run_dir, &self.config)?;
        if self.listener.is_some() && !self.run_dir.has_guard_socket() {
            let listener = self.run_dir.listen()?;
            self.poll.add(&listener, Token::Listener)?;
            self.listener = Some(listener); // the one before is closed, and so is not waited at any more
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
