//! The agent's connections: opens or continues its session with the manager, and serves it while they last.

use super::running::Running;
use super::search::{End, Known, Opened, Search, moment_of, refusal};
use super::{AgentError, Leaving, RETRY, Shared};
use crate::checks::Check;
use crate::clock::Moment;
use crate::clock_offset::{Reading, own_nanos};
use crate::relay::{Deliveries, Delivery};
use crate::session::{Link, LinkEnd, WindowBounds};
use crate::wire::proto::{
    Frame, LeaseGrant, LeaseRequest, Leave, ToAgent, ToManager, Welcome, frame::Body, to_agent, to_manager,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use subtle::ConstantTimeEq;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tonic::Status;

/// A session with a manager, which outlives its connections.
struct Session {
    id: u64,
    epoch: u64,
    link: Arc<Link<ToManager>>,
    running: Running,
    /// Secret that relayed calls of this session present; empty if there are none.
    relay_key: String,
}

/// What follows a connection.
enum Next {
    /// It has ended; contains the reason.
    Ended(End),
    /// A new one takes its place.
    Replaced(Box<Opened>),
    /// The host has left the job, and the manager knows.
    Left,
}

/// Serves managers until one refuses this agent before it was ever admitted.
pub(super) async fn serve_managers(shared: &Arc<Shared>) -> Result<(), AgentError> {
    let (mut session, mut search, mut replacement) = (None, Search::new(shared), None);
    let mut relayed = shared.forwarder.as_ref().map(|forwarder| forwarder.relays().take_deliveries());
    tokio::time::sleep(moment_of(&shared.host, shared.settings.spread())).await;
    loop {
        let opened = match replacement.take() {
            Some(opened) => opened,
            None => search.welcomed(&known(session.as_ref())).await?,
        };
        let (before, address) = (Instant::now(), opened.address.clone());
        match serve(shared, opened, &mut session, (&mut search, &mut relayed)).await? {
            Next::Replaced(opened) => replacement = Some(*opened),
            Next::Left => return Ok(()),
            Next::Ended(End::Elsewhere(manager)) => search.hint(manager),
            Next::Ended(End::Refused(why) | End::Retry(why)) => {
                search.ended(&address, why, before.elapsed() > RETRY.1).await;
            }
        }
    }
}

fn known(session: Option<&Session>) -> Known {
    Known(session.map(|session| (session.id, Arc::clone(&session.link))))
}

/// Serves a session over one connection, until that is lost or replaced.
///
/// A silent connection is kept until a new one is welcomed: a loaded machine is slow, not lost. Meanwhile it only
/// extends the lease: the new connection repeats all frames that were not taken before it was opened.
async fn serve(
    shared: &Arc<Shared>,
    opened: Opened,
    session: &mut Option<Session>,
    (search, relayed): (&mut Search, &mut Option<Deliveries>),
) -> Result<Next, AgentError> {
    let Opened { address, welcome, sender, mut incoming } = opened;
    let retry = |why| Ok(Next::Ended(End::Retry(why)));
    let seen = shared.epoch.fetch_max(welcome.epoch, Ordering::SeqCst);
    if welcome.epoch < seen && shared.settings.checks.has(Check::Epoch) {
        return retry(format!("the manager's epoch {} is over: this host has seen epoch {seen}", welcome.epoch));
    }
    let (session, number) = match begin(shared, &welcome, sender.clone(), session) {
        Ok(begun) => begun,
        Err(why) => return retry(why),
    };
    shared.trouble.send_replace(None);
    let known = known(Some(&*session));
    let lease = shared.settings.lasts(Duration::from_millis(welcome.lease_ms));
    let mut served = Served { shared, session, sender, lease, granted: Granted::default() };
    let silent_after = shared.settings.reconnect_after(served.lease);
    let mut requests = interval(Duration::from_millis(welcome.lease_interval_ms.max(1)));
    requests.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut heard, mut is_replaced) = (Instant::now(), false);
    let replacement = search.welcomed(&known);
    tokio::pin!(replacement);
    let (mut leaves, mut has_left) = (shared.leaves.subscribe(), false);
    let next = loop {
        let message = tokio::select! {
            biased;
            message = incoming.message() => message,
            _ = requests.tick() => {
                served.request_lease();
                continue;
            }
            Ok(_) = leaves.wait_for(|leaving| *leaving == Leaving::Stopped), if !has_left => {
                has_left = true;
                let _ = served.sender.send(ToManager { message: Some(to_manager::Message::Leave(Leave {})) });
                continue;
            }
            Some(delivery) = next_delivery(relayed) => {
                served.deliver(delivery);
                continue;
            }
            opened = &mut replacement, if is_replaced => break Next::Replaced(Box::new(opened?)),
            () = sleep_until(heard + silent_after), if !is_replaced => {
                log_silence(shared, &address, silent_after);
                is_replaced = true;
                continue;
            }
        };
        heard = Instant::now();
        if has_left && matches!(message, Ok(None)) {
            shared.leaves.send_replace(Leaving::Known);
            break Next::Left;
        }
        if let Err(end) = served.handle(message, is_replaced) {
            break Next::Ended(end);
        }
    };
    served.session.link.detach(number);
    Ok(next)
}

/// Waits for the next call that another agent passes on; for ever if there are none.
async fn next_delivery(relayed: &mut Option<Deliveries>) -> Option<Delivery> {
    match relayed {
        Some(relayed) => relayed.recv().await,
        None => std::future::pending().await,
    }
}

fn log_silence(shared: &Shared, manager: &str, time: Duration) {
    tracing::warn!(
        host = %shared.host, %manager,
        "the manager has been silent for {time:?}: this agent opens a new connection, and keeps the old one until then"
    );
}

/// A session over the connection in use.
struct Served<'a> {
    shared: &'a Arc<Shared>,
    session: &'a mut Session,
    sender: UnboundedSender<ToManager>,
    lease: Duration,
    granted: Granted,
}

impl Served<'_> {
    fn request_lease(&self) {
        let request = request(self.shared, self.session, self.granted);
        let _ = self.sender.send(ToManager { message: Some(to_manager::Message::Lease(request)) });
    }

    /// Handles what the connection has delivered. Returns the end of the connection.
    fn handle(&mut self, message: Result<Option<ToAgent>, Status>, is_replaced: bool) -> Result<(), End> {
        let message = match message {
            Err(status) => return Err(refusal("the manager", &status)),
            Ok(None) => return Err(End::Retry("the manager has closed the connection".into())),
            Ok(Some(ToAgent { message })) => message,
        };
        let handled = match message {
            Some(to_agent::Message::Lease(grant)) => {
                self.granted = Granted { manager_nanos: grant.manager_nanos, at: own_nanos(&self.shared.begun) };
                self.extend_lease(&grant);
                self.is_confirmed(&grant)?;
                if is_replaced { Ok(()) } else { self.session.link.confirm(grant.received) }
            }
            Some(to_agent::Message::Frame(frame)) if !is_replaced => self.take(frame),
            // A welcome is of a later version.
            Some(to_agent::Message::Frame(_) | to_agent::Message::Welcome(_)) | None => Ok(()),
        };
        handled.map_err(|end| End::Retry(end.to_string()))
    }

    /// A grant may have waited for the end of a suspension of this machine: the age is by the clock that counts it.
    fn extend_lease(&self, grant: &LeaseGrant) {
        let age = self.shared.begun.elapsed().checked_sub(Duration::from_nanos(grant.sent));
        if let Some(sent) = age.and_then(|age| Moment::now().minus(age))
            && grant.epoch == self.session.epoch
        {
            self.shared.change_lease(|known| known.grant(grant, sent, self.lease));
        }
    }

    /// Returns the end of the connection if no majority has confirmed the manager for long: it answers, but another one may
    /// be in office, which this host can reach.
    fn is_confirmed(&self, grant: &LeaseGrant) -> Result<(), End> {
        let age = Duration::from_nanos(grant.anchor_age_nanos);
        match age > self.lease / 2 && self.shared.managers.len() > 1 {
            false => Ok(()),
            true => Err(End::Retry(format!("no majority has confirmed the manager for {age:.1?}"))),
        }
    }

    fn take(&mut self, frame: Frame) -> Result<(), LinkEnd> {
        match self.session.link.take(frame)? {
            Some(Body::Call(call)) => self.session.running.begin(self.shared, call),
            Some(Body::Cancel(cancel)) => self.session.running.cancel(cancel.call),
            Some(Body::Relay(request)) => self.session.running.relay(self.shared, request),
            Some(Body::Answer(_) | Body::Confirm(_) | Body::Relayed(_)) | None => {}
        }
        Ok(())
    }

    /// Begins a call that another agent has passed on, if it presents the secret of this session. Any other is not
    /// answered:
    /// the manager makes it itself.
    fn deliver(&mut self, delivery: Delivery) {
        let Delivery { call, session, relay_key, answer } = delivery;
        let own = &self.session.relay_key;
        let known = !own.is_empty() && session == self.session.id && call.epoch == self.session.epoch;
        if known && bool::from(own.as_bytes().ct_eq(relay_key.as_bytes())) {
            self.session.running.begin_relayed(self.shared, call, answer);
        }
    }
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
    shared: &Shared,
    welcome: &Welcome,
    sender: UnboundedSender<ToManager>,
    session: &'a mut Option<Session>,
) -> Result<(&'a mut Session, u64), String> {
    session.take_if(|known| (known.id, known.epoch) != (welcome.session, welcome.epoch));
    let session = session.get_or_insert_with(|| {
        let link =
            Link::new(WindowBounds::default(), |frame| ToManager { message: Some(to_manager::Message::Frame(frame)) });
        let link = Arc::new(link.with_checks(shared.settings.checks));
        let (running, relay_key) = (Running::new(Arc::clone(&link)), welcome.relay_key.clone());
        Session { id: welcome.session, epoch: welcome.epoch, running, link, relay_key }
    });
    let number = session.link.attach(sender, welcome.received).map_err(|end| end.to_string())?;
    Ok((session, number))
}
