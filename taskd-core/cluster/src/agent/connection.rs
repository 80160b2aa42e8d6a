//! The agent's connections: opens or continues its session with the manager, and serves it until the connection is lost.

use super::running::Running;
use super::search::{End, Known, Opened, Search, refusal, unix_nanos};
use super::{AgentError, RETRY, Shared};
use crate::clock::Moment;
use crate::session::{Link, LinkEnd, WindowBounds};
use crate::wire::proto::{
    Frame, LeaseGrant, LeaseRequest, ToAgent, ToManager, Welcome, frame::Body, to_agent, to_manager,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tonic::Status;

/// A session with a manager, which outlives its connections.
struct Session {
    id: u64,
    epoch: u64,
    link: Arc<Link<ToManager>>,
    running: Running,
}

/// What follows a connection.
enum Next {
    /// It has ended; contains the reason.
    Ended(End),
    /// A new one takes its place.
    Replaced(Box<Opened>),
}

/// Serves managers until one refuses this agent before it was ever admitted.
pub(super) async fn serve_managers(shared: &Arc<Shared>) -> Result<(), AgentError> {
    let (mut session, mut search, mut replacement) = (None, Search::new(shared), None);
    loop {
        let opened = match replacement.take() {
            Some(opened) => opened,
            None => search.welcomed(&known(session.as_ref())).await?,
        };
        let (before, address) = (Instant::now(), opened.address.clone());
        match serve(shared, opened, &mut session, &mut search).await? {
            Next::Replaced(opened) => replacement = Some(*opened),
            Next::Ended(End::Elsewhere(manager)) => search.first(&manager),
            Next::Ended(End::Refused(why) | End::Retry(why)) => {
                search.pause(&address, why, before.elapsed() > RETRY.1).await;
            }
        }
    }
}

fn known(session: Option<&Session>) -> Known {
    Known(session.map(|session| (session.id, Arc::clone(&session.link))))
}

/// Serves a session over one connection, until that is lost or replaced.
///
/// A silent connection is kept until a new one is welcomed: a loaded machine is slow, not lost. Meanwhile it only extends
/// the lease: the new connection repeats all frames that were not taken before it was opened.
async fn serve(
    shared: &Arc<Shared>,
    opened: Opened,
    session: &mut Option<Session>,
    search: &mut Search,
) -> Result<Next, AgentError> {
    let Opened { address, welcome, sender, mut incoming } = opened;
    let retry = |why| Ok(Next::Ended(End::Retry(why)));
    let seen = shared.epoch.fetch_max(welcome.epoch, Ordering::SeqCst);
    if welcome.epoch < seen {
        return retry(format!("the manager's epoch {} is over: this host has seen epoch {seen}", welcome.epoch));
    }
    let (session, number) = match begin(&welcome, sender.clone(), session) {
        Ok(begun) => begun,
        Err(why) => return retry(why),
    };
    shared.trouble.send_replace(None);
    let known = known(Some(&*session));
    let mut served = Served { shared, session, sender, lease: Duration::from_millis(welcome.lease_ms) };
    let silent_after = shared.settings.reconnect_after(served.lease);
    let mut requests = interval(Duration::from_millis(welcome.lease_interval_ms.max(1)));
    requests.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut heard, mut is_replaced) = (Instant::now(), false);
    let replacement = async {
        search.first(&address);
        search.welcomed(&known).await
    };
    tokio::pin!(replacement);
    let next = loop {
        let message = tokio::select! {
            biased;
            message = incoming.message() => message,
            _ = requests.tick() => {
                served.request_lease();
                continue;
            }
            opened = &mut replacement, if is_replaced => break Next::Replaced(Box::new(opened?)),
            () = sleep_until(heard + silent_after), if !is_replaced => {
                tracing::warn!(
                    host = %shared.host, manager = %address,
                    "the manager has been silent for {silent_after:?}: this agent opens a new connection, and keeps the \
                     old one until then"
                );
                is_replaced = true;
                continue;
            }
        };
        heard = Instant::now();
        if let Err(end) = served.handle(message, is_replaced) {
            break Next::Ended(end);
        }
    };
    served.session.link.detach(number);
    Ok(next)
}

/// A session over the connection in use.
struct Served<'a> {
    shared: &'a Arc<Shared>,
    session: &'a mut Session,
    sender: UnboundedSender<ToManager>,
    lease: Duration,
}

impl Served<'_> {
    fn request_lease(&self) {
        // Of the clock that also counts while the machine is suspended: a grant may wait for its end.
        let sent = u64::try_from(self.shared.begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let request = LeaseRequest { sent, received: self.session.link.taken(), unix_nanos: unix_nanos() };
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
                self.extend_lease(&grant);
                if is_replaced { Ok(()) } else { self.session.link.confirm(grant.received) }
            }
            Some(to_agent::Message::Frame(frame)) if !is_replaced => self.take(frame),
            // A welcome is of a later version.
            Some(to_agent::Message::Frame(_) | to_agent::Message::Welcome(_)) | None => Ok(()),
        };
        handled.map_err(|end| End::Retry(end.to_string()))
    }

    fn extend_lease(&self, grant: &LeaseGrant) {
        let age = self.shared.begun.elapsed().checked_sub(Duration::from_nanos(grant.sent));
        if let Some(sent) = age.and_then(|age| Moment::now().minus(age))
            && grant.epoch == self.session.epoch
        {
            self.shared.change_lease(|known| known.grant(grant, sent, self.lease));
        }
    }

    fn take(&mut self, frame: Frame) -> Result<(), LinkEnd> {
        match self.session.link.take(frame)? {
            Some(Body::Call(call)) => self.session.running.begin(self.shared, call),
            Some(Body::Cancel(cancel)) => self.session.running.cancel(cancel.call),
            Some(Body::Answer(_) | Body::Confirm(_)) | None => {}
        }
        Ok(())
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
