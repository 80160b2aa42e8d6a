//! Claims the page for a rank behind a wrapper that does not exec it: the page then names the rank in place of the
//! started process.
//!
//! This module takes the page from no live process that uses it.

use super::page::{Fields, state};
use crate::proc_fs::{self, Stat};
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Number of attempts, and the pause between them, while another process is claiming the page.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(2);

/// Makes the page name this process, if the rules in [`page`](super::page) allow it.
pub(super) fn claim(path: &Path, page: &Fields) -> Option<()> {
    let own = (std::process::id(), Stat::read(rustix::process::getpid())?.start_time);
    let _locked = lock(path)?;
    let (named, started) = (page.named(), page.started());
    if started != own {
        let is_used =
            page.state.load(Ordering::Acquire) != state::NEVER_TAKEN || page.beat_at.load(Ordering::Acquire) != 0;
        let is_free = if named == started { !is_used } else { !proc_fs::is_running(named) };
        let guard = path.components().nth(2).and_then(|guard| guard.as_os_str().to_str()?.parse().ok());
        if !is_free || !proc_fs::lineage(own.0).any(|above| above == started || Some(above.0) == guard) {
            return None;
        }
        page.started_time.store(started.1, Ordering::Release);
        page.started_pid.store(started.0, Ordering::Release);
    }
    for cleared in [&page.step, &page.step_at, &page.beat_at] {
        cleared.store(0, Ordering::Release);
    }
    page.in_loop.store(0, Ordering::Release);
    page.start_time.store(own.1, Ordering::Release);
    page.pid.store(own.0, Ordering::Release);
    Some(())
}

/// Locks the page's file until the result is dropped.
fn lock(path: &Path) -> Option<OwnedFd> {
    let file = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).ok()?;
    for _ in 0..TRIES {
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            return Some(file);
        }
        std::thread::park_timeout(PAUSE);
    }
    None
}
