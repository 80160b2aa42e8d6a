//! Watches the processes of the ranks: on which host each is, and until when it was seen alive.

use super::steps::process_of;
use crate::hosts::{Hosts, is_alive, network_of};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use taskd_examples::recover::now;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

/// Time between two looks at the processes: the resolution of [`Life::last_alive`].
const EVERY: Duration = Duration::from_millis(20);

/// When a process was seen.
#[derive(Clone, Debug, PartialEq)]
pub struct Life {
    /// Host on which it runs or ran; `None` if it had ended before its first look.
    pub host: Option<String>,
    /// Last time at which it was seen alive, in seconds of the monotonic clock.
    pub last_alive: f64,
    /// True if it was seen to have ended.
    pub ended: bool,
}

/// The ranks' processes, by process id.
pub type Lives = BTreeMap<i32, Life>;

/// Watches until it is dropped.
#[derive(Debug)]
pub(super) struct Observer {
    lives: Arc<Mutex<Lives>>,
    task: JoinHandle<()>,
}

impl Observer {
    /// Begins to watch the processes that have step files in a directory.
    pub(super) fn start(dir: PathBuf, hosts: &Hosts) -> Observer {
        let networks = hosts.all().iter().map(|host| (host.network().to_owned(), host.name().to_owned())).collect();
        let lives: Arc<Mutex<Lives>> = Arc::default();
        let task = tokio::spawn(watch(Arc::clone(&lives), dir, networks));
        Observer { lives, task }
    }

    pub(super) fn lives(&self) -> Lives {
        lock(&self.lives).clone()
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn watch(lives: Arc<Mutex<Lives>>, dir: PathBuf, networks: BTreeMap<String, String>) {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        look(&mut lock(&lives), &dir, &networks);
    }
}

fn look(lives: &mut Lives, dir: &Path, networks: &BTreeMap<String, String>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let Some((_, pid)) = entry.file_name().to_str().and_then(process_of) else { continue };
        lives.entry(pid).or_insert_with(|| {
            let host = network_of(pid).and_then(|network| networks.get(&network).cloned());
            Life { host, last_alive: now(), ended: false }
        });
    }
    for (pid, life) in lives.iter_mut().filter(|(_, life)| !life.ended) {
        let time = now(); // before the look: a process that ends between them was alive at this time
        if is_alive(*pid) {
            life.last_alive = time;
        } else {
            life.ended = true;
        }
    }
}

fn lock(lives: &Mutex<Lives>) -> MutexGuard<'_, Lives> {
    lives.lock().unwrap_or_else(PoisonError::into_inner) // no foreign code runs while it is locked
}
