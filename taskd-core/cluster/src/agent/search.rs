//! Finds the manager: dials addresses in turn until one of them welcomes this agent.

use super::{AgentError, RETRY, Shared};
use crate::dial::root_cause;
use crate::security::SecurityError;
use crate::session::Link;
use crate::wire::proto::manager_client::ManagerClient;
use crate::wire::proto::{Hello, ToAgent, ToManager, Welcome, to_agent, to_manager};
use crate::wire::{BODY_BYTES_MAX, MANAGER_METADATA, MESSAGE_BYTES_MORE, VERSION, VERSION_MIN, encode};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::time::timeout;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Code, Status, Streaming};

/// Maximum number of addresses of managers that others have named and that are still to be dialled.
const HINTS_MAX: usize = 16;

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
pub(super) struct Search {
    shared: Arc<Shared>,
    /// Number of addresses dialled so far.
    dialled: usize,
    hints: VecDeque<String>,
    pause: Duration,
    admitted: bool,
    logged: String,
}

impl Search {
    pub(super) fn new(shared: &Arc<Shared>) -> Search {
        let shared = Arc::clone(shared);
        Search { shared, dialled: 0, hints: VecDeque::new(), pause: RETRY.0, admitted: false, logged: String::new() }
    }

    /// Dials this address before the others.
    pub(super) fn first(&mut self, address: &str) {
        if self.hints.len() < HINTS_MAX {
            self.hints.push_front(address.to_owned());
        }
    }

    /// Dials until a manager welcomes this agent.
    ///
    /// # Errors
    /// Returns [`AgentError::Refused`] if a manager refuses this agent before it was ever admitted.
    pub(super) async fn welcomed(&mut self, known: &Known) -> Result<Opened, AgentError> {
        loop {
            let address = self.hints.pop_front().unwrap_or_else(|| self.next_address());
            match open(&self.shared, &address, known).await {
                Ok(opened) => {
                    self.admitted = true;
                    self.shared.connections.fetch_add(1, Ordering::Relaxed);
                    return Ok(opened);
                }
                Err(End::Refused(why)) if !self.admitted => return Err(AgentError::Refused(why)),
                Err(End::Elsewhere(manager)) if self.hints.len() < HINTS_MAX && manager != address => {
                    self.hints.push_front(manager);
                }
                Err(End::Elsewhere(_)) => {
                    self.pause(&address, format!("{address} is not the manager and knows no other"), false).await;
                }
                Err(End::Refused(why) | End::Retry(why)) => self.pause(&address, why, false).await,
            }
        }
    }

    /// Logs why there is no connection, once for each reason, and waits before the next address is dialled. `lasted` is true
    /// after a connection that has served for some time.
    pub(super) async fn pause(&mut self, address: &str, why: String, lasted: bool) {
        self.shared.trouble.send_replace(Some(why.clone()));
        if why != self.logged {
            tracing::warn!(host = %self.shared.host, %address, %why, "the agent has no manager: it dials again");
            self.logged = why;
        }
        self.pause = if lasted { RETRY.0 } else { (self.pause * 2).min(RETRY.1) };
        // Several addresses are dialled one after the other without a pause.
        if self.hints.is_empty() {
            tokio::time::sleep(self.pause / u32::try_from(self.shared.managers.len()).unwrap_or(1).max(1)).await;
        }
    }

    fn next_address(&mut self) -> String {
        let next = self.shared.managers.at(self.dialled);
        self.dialled = self.dialled.wrapping_add(1);
        next
    }
}

/// Opens a connection, and presents this agent.
async fn open(shared: &Arc<Shared>, address: &str, known: &Known) -> Result<Opened, End> {
    let settings = &shared.settings;
    let channel = shared.access.dial(address, settings.connect_within).await.map_err(End::Retry)?;
    let (sender, receiver) = unbounded_channel();
    let hello = hello(shared, known).map_err(End::Refused)?;
    let _ = sender.send(ToManager { message: Some(to_manager::Message::Hello(hello)) });
    let request = shared.access.request(UnboundedReceiverStream::new(receiver));
    let request = request.map_err(|status| refusal(address, &status))?;
    let limit = BODY_BYTES_MAX + MESSAGE_BYTES_MORE;
    let mut client = ManagerClient::new(channel).max_decoding_message_size(limit).max_encoding_message_size(limit);
    let opened = timeout(settings.hello_within, async {
        let mut incoming = client.session(request).await?.into_inner();
        let first = incoming.message().await?;
        Ok::<_, Status>((incoming, first))
    });
    let (incoming, first) = match opened.await {
        Ok(opened) => opened.map_err(|status| refusal(address, &status))?,
        Err(_) => return Err(End::Retry(format!("{address} opens no session within {:?}", settings.hello_within))),
    };
    match first.and_then(|first| first.message) {
        Some(to_agent::Message::Welcome(welcome)) => {
            Ok(Opened { address: address.to_owned(), welcome, sender, incoming })
        }
        _ => Err(End::Retry(format!("{address} does not answer as a manager of taskd"))),
    }
}

fn hello(shared: &Shared, known: &Known) -> Result<Hello, String> {
    let launcher = encode(&shared.launcher.info()).map_err(|error| format!("the launcher's description: {error}"))?;
    let (session, received) = known.0.as_ref().map_or((0, 0), |(id, link)| (*id, link.taken()));
    Ok(Hello {
        version_min: VERSION_MIN,
        version_max: VERSION,
        job: shared.job.clone(),
        host: shared.host.0.to_string(),
        instance: shared.instance.to_string(),
        epoch: shared.epoch.load(Ordering::SeqCst),
        session,
        received,
        launcher,
        sources: Vec::new(),
        labels: shared.labels.clone().into_iter().collect(),
        unix_nanos: unix_nanos(),
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

/// Returns the calendar time, in nanoseconds since 1970. The manager shows the offset of the agent's clock; no rule depends on it.
#[allow(clippy::disallowed_methods, reason = "the edge of the program")]
pub(super) fn unix_nanos() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
