//! Finds the manager: dials its possible addresses, one after the other, until one of them welcomes this agent.

use super::{AgentError, RETRY, Shared};
use crate::dial::root_cause;
use crate::security::SecurityError;
use crate::session::Link;
use crate::wire::proto::manager_client::ManagerClient;
use crate::wire::proto::{Hello, ToAgent, ToManager, Welcome, to_agent, to_manager};
use crate::wire::{BODY_BYTES_MAX, MANAGER_METADATA, MESSAGE_BYTES_MORE, VERSION_MIN, encode};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use taskd_runtime::job::NodeId;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Code, Status, Streaming};

/// Maximum number of addresses of managers that others have named and that are still to be dialled.
const HINTS_MAX: usize = 16;
/// Number of moments at which the hosts of a job begin something, each at one of them.
const MOMENTS: u32 = 1024;
/// Part of a lease that is the longest time between two attempts while the lease runs: one eighth.
const LEASE_PART: u32 = 8;
/// Parts of the time limit of a connection after which the next address is dialled, too: one fifth while the lease runs,
/// which is 200 ms by default, and half of it before, since nothing is lost by then. Managers of many agents get more time.
const NEXT_PARTS: (u32, u32) = (5, 2);

/// A connection over which a manager has welcomed this agent.
pub(super) struct Opened {
    pub(super) address: String,
    pub(super) welcome: Welcome,
    pub(super) sender: UnboundedSender<ToManager>,
    pub(super) incoming: Streaming<ToAgent>,
}

/// The session that a new connection is to continue: its id and its frames.
#[derive(Clone, Default)]
pub(super) struct Known(pub(super) Option<(u64, Arc<Link<ToManager>>)>);

/// Why an address gave no connection, or a connection has ended.
pub(super) enum End {
    /// It may go better next time; contains the reason.
    Retry(String),
    /// The peer is not the manager, and names its address.
    Elsewhere(String),
    /// The manager refuses this agent for good; contains the reason.
    Refused(String),
}

/// The addresses that are dialled, and what is known of them.
///
/// The next address is dialled as soon as one has refused, and after a fraction of a second without an answer, as RFC 8305
/// does: a host that is lost or stopped does not answer, and must not hide the next manager until its time limit. The first
/// welcome wins; the other connections are [kept](super::warm). To dial all at once would make the handshakes of thousands of agents
/// with processes that are not the manager compete with those that matter.
pub(super) struct Search {
    shared: Arc<Shared>,
    /// Address of the last manager. It is dialled first, since usually only the connection was lost; but last of all if that
    /// connection did not last: no majority may confirm that manager, so that another one is in office.
    last: Option<String>,
    /// Addresses of managers that others have named, to be dialled besides the listed ones.
    hints: Vec<String>,
    /// Number of attempts in a row that have failed, by address.
    failed: BTreeMap<String, u32>,
    /// Number of connections in a row that have ended soon.
    short: u32,
    admitted: bool,
    logged: String,
}

/// An address that is dialled. `repeats` is false for one that another process has named: it is dialled once.
#[derive(Clone)]
struct Place {
    address: String,
    repeats: bool,
}

/// An address with its answer.
struct Attempt {
    place: Place,
    answer: Result<Opened, End>,
}

impl Search {
    pub(super) fn new(shared: &Arc<Shared>) -> Search {
        let shared = Arc::clone(shared);
        let (failed, logged) = (BTreeMap::new(), String::new());
        Search { shared, last: None, hints: Vec::new(), failed, short: 0, admitted: false, logged }
    }

    /// The manager that served this agent is another one now: dials this address, too.
    pub(super) fn hint(&mut self, address: String) {
        self.shared.warm.manager_is(None);
        if self.hints.len() < HINTS_MAX {
            self.hints.push(address);
        }
    }

    /// Dials until a manager welcomes this agent.
    ///
    /// # Errors
    /// Returns [`AgentError::Refused`] if a manager refuses this agent before it was ever admitted.
    pub(super) async fn welcomed(&mut self, known: &Known) -> Result<Opened, AgentError> {
        let mut waiting = self.in_order();
        let (mut attempts, mut next_at) = (FuturesUnordered::new(), Instant::now());
        loop {
            let attempt = tokio::select! {
                biased;
                Some(attempt) = attempts.next() => attempt,
                () = sleep_until(next_at), if !waiting.is_empty() => {
                    next_at = Instant::now() + self.next_after();
                    attempts.extend(waiting.pop_front().map(|place| self.attempt(place, Duration::ZERO, known)));
                    continue;
                }
                else => return Err(AgentError::Refused("the agent has no address of a manager".into())), // `build` refuses that
            };
            let Attempt { place, answer } = attempt;
            let end = match answer {
                Ok(opened) => return Ok(self.opened(opened)),
                Err(end) => end,
            };
            next_at = Instant::now();
            match end {
                End::Refused(why) if !self.admitted => return Err(AgentError::Refused(why)),
                End::Elsewhere(manager) => {
                    next_at += self.next_after(); // the manager is known: it gets time to answer
                    let named = self.named(manager, &place.address, &mut waiting, attempts.len());
                    attempts.extend(named.map(|named| self.attempt(named, Duration::ZERO, known)));
                }
                End::Refused(why) | End::Retry(why) => self.log(&place.address, why),
            }
            if place.repeats {
                let pause = self.pause_for(&place.address);
                attempts.push(self.attempt(place, pause, known));
            }
        }
    }

    /// Logs why a connection has ended, and waits if it has not lasted: `lasted` is true for one that served for a while.
    pub(super) async fn ended(&mut self, address: &str, why: String, lasted: bool) {
        self.shared.warm.manager_is(None);
        self.log(address, why);
        self.short = if lasted { 0 } else { self.short.saturating_add(1) };
        if let Some(number) = self.short.checked_sub(1) {
            tokio::time::sleep(doubled(number, self.longest_pause())).await;
        }
    }

    /// Returns all addresses in the order in which they are dialled: those that others have named, that of the last manager,
    /// and the listed ones, from a place that depends on this host's name, so that the agents of a job do not all begin with
    /// the same one.
    fn in_order(&mut self) -> VecDeque<Place> {
        let mut listed = self.shared.managers.all();
        let first = name_hash(self.shared.host.0.as_str()).checked_rem(listed.len() as u64).unwrap_or_default();
        listed.rotate_left(usize::try_from(first).unwrap_or_default());
        let hints = std::mem::take(&mut self.hints);
        let named: Vec<Place> =
            hints.iter().map(|hint| Place { address: hint.clone(), repeats: listed.contains(hint) }).collect();
        listed.retain(|address| !hints.contains(address));
        let is_last = |address: &String| self.last.as_ref() == Some(address);
        listed.sort_by_key(|address| is_last(address) != (self.short == 0)); // stable: only the last manager moves
        named.into_iter().chain(listed.into_iter().map(|address| Place { address, repeats: true })).collect()
    }

    /// Returns the address that `by` has named as the manager's, if it is to be dialled now.
    fn named(&mut self, manager: String, by: &str, waiting: &mut VecDeque<Place>, dialled: usize) -> Option<Place> {
        if let Some(at) = waiting.iter().position(|place| place.address == manager) {
            return waiting.remove(at);
        }
        if manager == by {
            self.log(by, format!("{by} is not the manager and knows no other"));
            return None;
        }
        let is_new = !self.shared.managers.all().contains(&manager) && dialled < self.attempts_max();
        is_new.then_some(Place { address: manager, repeats: false })
    }

    /// Returns the time without an answer after which the next address is dialled, too.
    fn next_after(&self) -> Duration {
        let within = self.shared.settings.connect_within;
        let runs = self.shared.lease.borrow().is_in_force();
        if runs { self.longest_pause().min(within / NEXT_PARTS.0) } else { within / NEXT_PARTS.1 }
    }

    fn opened(&mut self, opened: Opened) -> Opened {
        self.admitted = true;
        self.shared.warm.manager_is(Some(&opened.address));
        self.last = Some(opened.address.clone());
        self.failed.clear();
        self.shared.connections.fetch_add(1, Ordering::Relaxed);
        opened
    }

    fn attempts_max(&self) -> usize {
        self.shared.managers.len() + HINTS_MAX
    }

    fn attempt(&self, place: Place, pause: Duration, known: &Known) -> impl Future<Output = Attempt> + Send + use<> {
        let (shared, known) = (Arc::clone(&self.shared), known.clone());
        async move {
            tokio::time::sleep(pause).await;
            let answer = open(&shared, &place.address, &known).await;
            Attempt { place, answer }
        }
    }

    /// Returns the time after which an address is tried again; it doubles with each failure.
    fn pause_for(&mut self, address: &str) -> Duration {
        let failed = self.failed.entry(address.to_owned()).or_default();
        let number = *failed;
        *failed = failed.saturating_add(1);
        doubled(number, self.longest_pause())
    }

    /// Returns the longest time between two attempts: a small part of the lease while one runs.
    fn longest_pause(&self) -> Duration {
        let runs = self.shared.lease.borrow().is_in_force();
        if runs { RETRY.1.min(self.shared.settings.lease / LEASE_PART) } else { RETRY.1 }
    }

    /// Logs why there is no connection, once for each reason.
    fn log(&mut self, address: &str, why: String) {
        self.shared.trouble.send_replace(Some(why.clone()));
        if why != self.logged {
            tracing::warn!(host = %self.shared.host, %address, %why, "the agent has no manager: it dials again");
            self.logged = why;
        }
    }
}

/// Returns the shortest pause, doubled `number` times, but not more than `longest`.
fn doubled(number: u32, longest: Duration) -> Duration {
    RETRY.0.saturating_mul(1_u32.checked_shl(number).unwrap_or(u32::MAX)).min(longest)
}

/// Returns a part of `span` that differs between the hosts of a job.
pub(super) fn moment_of(host: &NodeId, span: Duration) -> Duration {
    span * u32::try_from(name_hash(host.0.as_str()) % u64::from(MOMENTS)).unwrap_or_default() / MOMENTS
}

/// Returns a number that depends on all characters of a name, the same in every process: FNV-1a.
fn name_hash(name: &str) -> u64 {
    let add = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    name.bytes().fold(0xcbf2_9ce4_8422_2325, add)
}

/// Presents this agent to a process, over a new connection unless one is open.
async fn open(shared: &Arc<Shared>, address: &str, known: &Known) -> Result<Opened, End> {
    let settings = &shared.settings;
    // An open connection may be a dead one, which only time shows: its process has then as long as a new connection.
    let (channel, within) = match shared.warm.get(address) {
        Some(channel) => (channel, settings.connect_within),
        None => {
            let channel = shared.access.dial(address, settings.connect_within).await.map_err(End::Retry)?;
            shared.warm.keep(address, channel.clone()); // also if another process turns out to be the manager
            (channel, settings.hello_within)
        }
    };
    let (sender, receiver) = unbounded_channel();
    let hello = hello(shared, known).map_err(End::Refused)?;
    let _ = sender.send(ToManager { message: Some(to_manager::Message::Hello(hello)) });
    let refused = |status: Status| {
        if std::error::Error::source(&status).is_some() {
            shared.warm.lost(address); // it is not the process that has answered
        }
        refusal(address, &status)
    };
    let request = shared.access.request(UnboundedReceiverStream::new(receiver)).map_err(refused)?;
    let limit = BODY_BYTES_MAX + MESSAGE_BYTES_MORE;
    let mut client = ManagerClient::new(channel).max_decoding_message_size(limit).max_encoding_message_size(limit);
    let opened = timeout(within, async {
        let mut incoming = client.session(request).await?.into_inner();
        let first = incoming.message().await?;
        Ok::<_, Status>((incoming, first))
    });
    let lost = |why| {
        shared.warm.lost(address);
        End::Retry(why)
    };
    let (incoming, first) = match opened.await {
        Ok(opened) => opened.map_err(refused)?,
        Err(_) => return Err(lost(format!("{address} opens no session within {within:?}"))),
    };
    match first.and_then(|first| first.message) {
        Some(to_agent::Message::Welcome(welcome)) => {
            Ok(Opened { address: address.to_owned(), welcome, sender, incoming })
        }
        _ => Err(lost(format!("{address} does not answer as a manager of taskd"))),
    }
}

fn hello(shared: &Shared, known: &Known) -> Result<Hello, String> {
    let launcher = encode(&shared.launcher.info()).map_err(|error| format!("the launcher's description: {error}"))?;
    let sources = shared.sources.infos().iter().map(encode).collect::<Result<_, _>>();
    let sources = sources.map_err(|error| format!("the description of a trace source: {error}"))?;
    let (session, received) = known.0.as_ref().map_or((0, 0), |(id, link)| (*id, link.taken()));
    Ok(Hello {
        version_min: VERSION_MIN.min(shared.version_max),
        version_max: shared.version_max,
        job: shared.job.clone(),
        host: shared.host.0.to_string(),
        instance: shared.instance.to_string(),
        epoch: shared.epoch.load(Ordering::SeqCst),
        session,
        received,
        launcher,
        sources,
        labels: shared.labels.clone().into_iter().collect(),
        unix_nanos: shared.clocks().calendar_nanos,
        peer_address: shared.peer_address.clone(),
    })
}

/// Returns what the agent does after a manager has refused it.
pub(super) fn refusal(address: &str, status: &Status) -> End {
    let text = || match status.message() {
        _ if let Some(cause) = SecurityError::cause_of(status) => cause.to_string(),
        "" => format!("{address} refuses this agent: {}", root_cause(status)),
        text => format!("{address} refuses this agent: {text}"),
    };
    match status.code() {
        Code::InvalidArgument | Code::Unauthenticated | Code::PermissionDenied | Code::Unimplemented => {
            End::Refused(text())
        }
        _ => match status.metadata().get(MANAGER_METADATA).and_then(|address| address.to_str().ok()) {
            Some(manager) if !manager.is_empty() => End::Elsewhere(manager.to_owned()),
            _ => End::Retry(text()),
        },
    }
}
