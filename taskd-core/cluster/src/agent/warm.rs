//! Connections to processes that can become manager, opened before they are needed. Without them, the handshakes of
//! thousands of agents at the moment at which a manager is lost last longer than their leases.

use super::Shared;
use super::search::moment_of;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::time::sleep;
use tonic::transport::Channel;

/// Maximum number of connections that are opened in advance: to five voters without the manager.
const WARM_MAX: usize = 4;
/// Time over which the agents of a job spread these connections, as a multiple of the time limit of one.
const WITHIN: u32 = 4;

/// The connections, and the manager.
#[derive(Debug, Default)]
pub(super) struct Warm(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Address of the manager that serves this agent: the session has that connection.
    manager: Option<String>,
    open: BTreeMap<String, Channel>,
}

impl Warm {
    /// Returns the connection to an address, if one is open.
    pub(super) fn get(&self, address: &str) -> Option<Channel> {
        self.lock().open.get(address).cloned()
    }

    /// Keeps a connection to a process that is not the manager. There is one for each address at most.
    pub(super) fn keep(&self, address: &str, channel: Channel) {
        let mut state = self.lock();
        if state.manager.as_deref() != Some(address) {
            state.open.insert(address.to_owned(), channel);
        }
    }

    /// The connection to an address has failed.
    pub(super) fn lost(&self, address: &str) {
        self.lock().open.remove(address);
    }

    /// The process at this address serves the agent from now on, or none does.
    pub(super) fn manager_is(&self, manager: Option<&str>) {
        let mut state = self.lock();
        state.manager = manager.map(str::to_owned);
        if let Some(manager) = manager {
            state.open.remove(manager);
        }
    }

    /// Returns the addresses to which there should be connections. None while no manager serves this agent: the search for
    /// one opens its own.
    fn missing(&self, listed: &[String]) -> Vec<String> {
        let mut state = self.lock();
        state.open.retain(|address, _| listed.contains(address));
        let Some(manager) = &state.manager else { return Vec::new() };
        let room = WARM_MAX.saturating_sub(state.open.len());
        let missing = listed.iter().filter(|address| *address != manager && !state.open.contains_key(*address));
        missing.take(room).cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner) // no foreign code runs while it is locked
    }
}

/// Opens the missing connections again and again.
pub(super) async fn keep_open(shared: &Shared) {
    let within = shared.settings.connect_within;
    let period = within * WITHIN;
    sleep(moment_of(&shared.host, period)).await;
    loop {
        for address in shared.warm.missing(&shared.managers.all()) {
            // A failure needs no report: the process is down now, and the search for a manager reports what it meets.
            if let Ok(channel) = shared.access.dial(&address, within).await {
                shared.warm.keep(&address, channel);
            }
        }
        sleep(period).await;
    }
}
