//! The agent's connections: dials managers in turn, opens or continues its session, and serves it until the connection is
//! lost.

use super::running::Running;
use super::{AgentError, RETRY, Shared};
use crate::clock::Moment;
use crate::clock_offset::{Reading, own_nanos};
use crate::dial::root_cause;
use crate::security::SecurityError;
use crate::session::{Link, WindowBounds};
use crate::wire::proto::manager_client::ManagerClient;
use crate::wire::proto::{Frame, Hello, LeaseRequest, ToAgent, ToManager, Welcome, frame::Body, to_agent, to_manager};
use crate::wire::{BODY_BYTES_MAX, MANAGER_METADATA, MESSAGE_BYTES_MORE, VERSION, VERSION_MIN, encode};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Code, Status, Streaming};

/// Maximum number of addresses of managers that others have named and that are still to be dialled.
const HINTS_MAX: usize = 16;

/// A session with a manager, which outlives its connections.
struct Session {
    id: u64,
    epoch: u64,
    link: Arc<Link<ToManager>>,
    running: Running,
}

/// Why a connection has ended.
enum End {
    /// It may go better next time; contains the reason.
    Retry(String),
    /// The peer is not the manager, and names its address.
    Elsewhere(String),
    /// The manager refuses this agent for good; contains the reason.
    Refused(String),
}

/// Serves managers until one refuses this agent before it was ever admitted.
pub(super) async fn serve_managers(shared: &Arc<Shared>) -> Result<(), AgentError> {
    let (mut session, mut hints, mut pause) = (None, VecDeque::new(), RETRY.0);
    let (mut admitted, mut logged) = (false, String::new());
    let mut addresses = shared.managers.iter().cycle();
    loop {
        let address = hints.pop_front().or_else(|| addresses.next().cloned()).unwrap_or_default();
        let (before, end) = (Instant::now(), connect(shared, &address, &mut session).await);
        admitted |= session.is_some();
        let why = match end {
            End::Elsewhere(manager) => {
                if hints.len() < HINTS_MAX && manager != address {
                    hints.push_front(manager);
                    continue;
                }
                format!("{address} is not the manager and knows no other")
            }
            End::Refused(why) if !admitted => return Err(AgentError::Refused(why)),
            End::Refused(why) | End::Retry(why) => why,
        };
        if why != logged {
            tracing::warn!(host = %shared.host, %address, %why, "the agent has no manager: it dials again");
            logged = why;
        }
        pause = if before.elapsed() > RETRY.1 { RETRY.0 } else { (pause * 2).min(RETRY.1) };
        // Several addresses are dialled one after the other without a pause.
        if hints.is_empty() {
            tokio::time::sleep(pause / u32::try_from(shared.managers.len()).unwrap_or(1)).await;
        }
    }
}

/// Opens a connection and serves it to its end.
async fn connect(shared: &Arc<Shared>, address: &str, session: &mut Option<Session>) -> End {
    let settings = &shared.settings;
    let channel = match shared.access.dial(address, settings.connect_within).await {
        Ok(channel) => channel,
        Err(why) => return End::Retry(why),
    };
    let (sender, receiver) = unbounded_channel();
    let hello = match hello(shared, session.as_ref()) {
        Ok(hello) => ToManager { message: Some(to_manager::Message::Hello(hello)) },
        Err(why) => return End::Refused(why),
    };
    let _ = sender.send(hello);
    let request = match shared.access.request(UnboundedReceiverStream::new(receiver)) {
        Ok(request) => request,
        Err(status) => return refusal(address, &status),
    };
    let limit = BODY_BYTES_MAX + MESSAGE_BYTES_MORE;
    let mut client = ManagerClient::new(channel).max_decoding_message_size(limit).max_encoding_message_size(limit);
    let opened = timeout(settings.hello_within, async {
        let mut incoming = client.session(request).await?.into_inner();
        let first = incoming.message().await?;
        Ok::<_, Status>((incoming, first))
    });
    let (incoming, first) = match opened.await {
        Ok(Ok(opened)) => opened,
        Ok(Err(status)) => return refusal(address, &status),
        Err(_) => return End::Retry(format!("{address} opens no session within {:?}", settings.hello_within)),
    };
    match first.and_then(|first| first.message) {
        Some(to_agent::Message::Welcome(welcome)) => serve(shared, &welcome, sender, incoming, session).await,
        _ => End::Retry(format!("{address} does not answer as a manager of taskd")),
    }
}

fn hello(shared: &Shared, session: Option<&Session>) -> Result<Hello, String> {
    let launcher = encode(&shared.launcher.info()).map_err(|error| format!("the launcher's description: {error}"))?;
    let sources = shared.sources.infos().iter().map(encode).collect::<Result<_, _>>();
    let sources = sources.map_err(|error| format!("the description of a trace source: {error}"))?;
    Ok(Hello {
        version_min: VERSION_MIN,
        version_max: VERSION,
        job: shared.job.clone(),
        host: shared.host.0.to_string(),
        instance: shared.instance.to_string(),
        epoch: shared.epoch.load(Ordering::SeqCst),
        session: session.map_or(0, |session| session.id),
        received: session.map_or(0, |session| session.link.taken()),
        launcher,
        sources,
        labels: shared.labels.clone().into_iter().collect(),
        unix_nanos: shared.clocks().calendar_nanos,
        peer_address: shared.peer_address.clone(),
    })
}

/// Returns what the agent does after a manager has refused it.
fn refusal(address: &str, status: &Status) -> End {
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

/// Serves a session over one connection, until that is lost.
async fn serve(
    shared: &Arc<Shared>,
    welcome: &Welcome,
    sender: UnboundedSender<ToManager>,
    mut incoming: Streaming<ToAgent>,
    session: &mut Option<Session>,
) -> End {
    let known = shared.epoch.fetch_max(welcome.epoch, Ordering::SeqCst);
    if welcome.epoch < known {
        return End::Retry(format!("the manager's epoch {} is over: this host has seen epoch {known}", welcome.epoch));
    }
    let (session, number) = match begin(welcome, sender.clone(), session) {
        Ok(begun) => begun,
        Err(why) => return End::Retry(why),
    };
    let lease = Duration::from_millis(welcome.lease_ms);
    let mut requests = interval(Duration::from_millis(welcome.lease_interval_ms.max(1)));
    requests.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut heard = Instant::now();
    let mut granted = Granted::default();
    let end = loop {
        let message = tokio::select! {
            biased;
            message = incoming.message() => message,
            _ = requests.tick() => {
                let request = request(shared, session, granted);
                let _ = sender.send(ToManager { message: Some(to_manager::Message::Lease(request)) });
                continue;
            }
            () = sleep_until(heard + shared.settings.silent_after) => {
                break End::Retry(format!("the manager has been silent for {:?}", shared.settings.silent_after));
            }
        };
        heard = Instant::now();
        let handled = match message {
            Err(status) => break refusal("the manager", &status),
            Ok(None) => break End::Retry("the manager has closed the connection".into()),
            Ok(Some(ToAgent { message: Some(to_agent::Message::Lease(grant)) })) => {
                granted = Granted { manager_nanos: grant.manager_nanos, at: own_nanos(&shared.begun) };
                // A grant may have waited for the end of a suspension of this machine.
                let age = shared.begun.elapsed().checked_sub(Duration::from_nanos(grant.sent));
                if let Some(sent) = age.and_then(|age| Moment::now().minus(age))
                    && grant.epoch == session.epoch
                {
                    shared.change_lease(|known| known.grant(&grant, sent, lease));
                }
                session.link.confirm(grant.received)
            }
            Ok(Some(ToAgent { message: Some(to_agent::Message::Frame(frame)) })) => handle(shared, session, frame),
            Ok(Some(ToAgent { message: Some(to_agent::Message::Welcome(_)) | None })) => Ok(()), // of a later version
        };
        if let Err(end) = handled {
            break End::Retry(end.to_string());
        }
    };
    session.link.detach(number);
    end
}

/// The last grant of a connection, by the clocks of both sides, in nanoseconds; 0 before the first.
#[derive(Clone, Copy, Debug, Default)]
struct Granted {
    manager_nanos: u64,
    at: u64,
}

fn request(shared: &Shared, session: &Session, granted: Granted) -> LeaseRequest {
    let Reading { own_nanos, calendar_nanos, .. } = shared.clocks();
    LeaseRequest {
        sent: own_nanos,
        received: session.link.taken(),
        unix_nanos: calendar_nanos,
        granted: granted.manager_nanos,
        granted_at: granted.at,
    }
}

/// Continues the session that the manager names, or begins it. Returns it with the number of its new connection.
fn begin<'a>(
    welcome: &Welcome,
    sender: UnboundedSender<ToManager>,
    session: &'a mut Option<Session>,
) -> Result<(&'a mut Session, u64), String> {
    session.take_if(|known| (known.id, known.epoch) != (welcome.session, welcome.epoch));
    let session = session.get_or_insert_with(|| {
        let link = Arc::new(Link::new(WindowBounds::default(), |frame| ToManager {
            message: Some(to_manager::Message::Frame(frame)),
        }));
        Session { id: welcome.session, epoch: welcome.epoch, running: Running::new(Arc::clone(&link)), link }
    });
    let number = session.link.attach(sender, welcome.received).map_err(|end| end.to_string())?;
    Ok((session, number))
}

fn handle(shared: &Arc<Shared>, session: &mut Session, frame: Frame) -> Result<(), crate::session::LinkEnd> {
    match session.link.take(frame)? {
        Some(Body::Call(call)) => session.running.begin(shared, call),
        Some(Body::Cancel(cancel)) => session.running.cancel(cancel.call),
        Some(Body::Answer(_) | Body::Confirm(_)) | None => {}
    }
    Ok(())
}
