//! Admits agents: opens or continues their sessions.

use super::HOSTS_MAX;
use super::Inner;
use super::host::{Host, Session, Visibility};
use super::introduce::introduce;
use super::service::Greeting;
use crate::checks::Check;
use crate::session::Outgoing;
use crate::wire::{VERSION, VERSION_MIN, common_version};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;
use tonic::Status;

impl Inner {
    /// Admits an agent: continues its session, or begins one. Returns its host, its session and the number of its connection.
    pub(super) fn admit(
        self: &Arc<Self>,
        greeting: Greeting,
        sender: UnboundedSender<Outgoing>,
    ) -> Result<(Arc<Host>, Arc<Session>, u64), Status> {
        let Greeting { hello, host: name, introduction } = greeting;
        let version = common_version(hello.version_min, hello.version_max).ok_or_else(|| {
            Status::invalid_argument(format!(
                "the agent speaks versions {} to {} of the protocol, and this manager {VERSION_MIN} to {VERSION}: install \
                 the same release of taskd on both",
                hello.version_min, hello.version_max
            ))
        })?;
        if hello.job != self.job {
            let text = format!("this is the manager of job {}, and the agent belongs to job {}", self.job, hello.job);
            return Err(Status::permission_denied(text));
        }
        if hello.epoch > self.epoch.0 && self.settings.checks.has(Check::Epoch) {
            let text = format!("epoch {} is over: the agent has seen epoch {}", self.epoch, hello.epoch);
            self.end(&text);
            return Err(Status::aborted(text));
        }
        if let Some(why) = &*self.over.borrow() {
            return Err(Status::unavailable(why.clone()));
        }
        let mut hosts = self.lock();
        let known = hosts.get(&name).cloned();
        let continued = known
            .as_ref()
            .map(|host| host.session())
            .filter(|session| session.instance == hello.instance && session.id == hello.session);
        if let Some((host, session)) = known.clone().zip(continued) {
            drop(hosts);
            let connection = session.welcome((self.epoch.0, &self.settings), &sender, hello.received)?;
            host.hear(Instant::now());
            return Ok((host, session, connection));
        }
        if let Some(other) = known.as_ref().filter(|host| host.session().instance != hello.instance)
            && *other.sight.borrow() == Visibility::Seen
            && other.session().link.is_attached()
        {
            return Err(Status::invalid_argument(format!(
                "an agent of {name} is connected already, from {}: give this host another name",
                other.peer()
            )));
        }
        if known.is_none() && hosts.len() >= HOSTS_MAX {
            return Err(Status::resource_exhausted(format!("the job has {HOSTS_MAX} hosts, which is the limit")));
        }
        let id = self.sessions.fetch_add(1, Ordering::Relaxed) + 1;
        let session = Session::new(id, hello.instance.clone(), self.epoch.0, version);
        let connection = session.welcome((self.epoch.0, &self.settings), &sender, 0)?;
        let host = match known {
            Some(host) => {
                host.replace(Arc::clone(&session), introduction);
                self.send_candidates(&session);
                host.hear(Instant::now());
                self.changed.notify_one();
                host
            }
            None => {
                let host = Arc::new(Host::new(name.clone(), Arc::clone(&session), introduction, Instant::now()));
                hosts.insert(name, Arc::clone(&host));
                tokio::spawn(introduce(Arc::clone(self), Arc::clone(&host)));
                host
            }
        };
        Ok((host, session, connection))
    }
}
