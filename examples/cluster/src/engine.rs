//! The consensus engine of a job, as the command line names it: embedded voters, etcd, or a single manager.

use crate::options::{EngineOptions, TrainOptions, WitnessOptions};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use taskd_core::cluster::consensus::embedded::{Embedded, EmbeddedConfig, EmbeddedSettings, VoterAddress};
use taskd_core::cluster::consensus::{Consensus, Epoch, Etcd, EtcdSettings, Single};
use taskd_core::cluster::membership::first_voters;
use taskd_core::cluster::security::SecurityContext;
use taskd_core::cluster::topology::Topology;
use taskd_core::cluster::{ManagerService, Places};
use taskd_core::job::{Name, NodeId};
use taskd_examples::program::Failure;
use tokio::net::TcpListener;

/// The hosts of a job that can become manager, and the engine that elects one of them.
#[derive(Debug)]
pub(crate) struct Plan {
    kind: Kind,
    /// The listed hosts, the witness among them.
    listed: Vec<VoterAddress>,
    /// The first voters, with the embedded engine; the other listed hosts can replace lost ones.
    voters: Vec<VoterAddress>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Embedded,
    Etcd,
    Single,
}

/// The engine of this process.
#[derive(Clone)]
pub(crate) struct Engine {
    pub(crate) consensus: Arc<dyn Consensus>,
    /// The voter of this process, with the embedded engine.
    pub(crate) voter: Option<Embedded>,
}

impl Plan {
    /// Reads the lists of hosts. Of more hosts than voters, those vote first that are in different domains of the file of
    /// `places`.
    pub(crate) fn of(options: &EngineOptions, places: &Places) -> Result<Plan, Failure> {
        let (kind, texts) = match (&options.single, options.etcd.is_empty()) {
            (Some(single), _) => (Kind::Single, std::slice::from_ref(single)),
            (None, false) => (Kind::Etcd, &*options.candidates),
            (None, true) => (Kind::Embedded, &*options.voters),
        };
        Ok(Plan::new(kind, listed(texts, options.witness.as_deref())?, places))
    }

    fn new(kind: Kind, listed: Vec<VoterAddress>, places: &Places) -> Plan {
        let voters = first(&listed, places);
        Plan { kind, listed, voters }
    }

    /// Returns the place of a host in the list, or, with the embedded engine, the place at which the host can replace a
    /// lost voter: `reached_at`.
    pub(crate) fn own(&self, host: &NodeId, reached_at: Option<SocketAddr>) -> Option<VoterAddress> {
        let listed = self.listed.iter().find(|place| place.host == *host).cloned();
        let spare = || Some(VoterAddress::new(host.clone(), reached_at?.to_string()));
        listed.or_else(|| spare().filter(|_| self.kind == Kind::Embedded))
    }

    /// Returns true if the host is in the list.
    pub(crate) fn lists(&self, host: &NodeId) -> bool {
        self.listed.iter().any(|place| place.host == *host)
    }

    /// Returns the addresses at which a manager can answer.
    pub(crate) fn managers(&self) -> Vec<String> {
        self.listed.iter().filter(|place| !place.witness).map(|place| place.address.clone()).collect()
    }

    /// Returns the service of a candidate: with etcd, all candidates confirm a manager that etcd cannot confirm.
    pub(crate) fn service(&self, service: ManagerService, security: &SecurityContext) -> ManagerService {
        match self.kind {
            Kind::Etcd => service.with_candidates(self.managers(), security),
            Kind::Embedded | Kind::Single => service,
        }
    }

    /// Starts the engine of this process; `None` if this host cannot become manager.
    pub(crate) async fn start(
        &self,
        options: &TrainOptions,
        own: Option<&VoterAddress>,
        security: &SecurityContext,
    ) -> Result<Option<Engine>, Failure> {
        let (Some(own), job) = (own, &options.job.common.job) else { return Ok(None) };
        let engine = match self.kind {
            Kind::Embedded => {
                let common = &options.job.common;
                let lease = common.settings().lease;
                let config = self.voter(job, own, (&common.dir, lease));
                let voter = Embedded::start(config.with_connect(security.clone())).await?;
                Engine { consensus: Arc::new(voter.clone()), voter: Some(voter) }
            }
            Kind::Etcd => {
                let settings = EtcdSettings::new(job.clone(), options.engine.etcd.clone());
                Engine { consensus: Arc::new(Etcd::new(&settings)?), voter: None }
            }
            Kind::Single => Engine { consensus: Arc::new(Single::new(after_earlier_starts())), voter: None },
        };
        Ok(Some(engine))
    }

    /// Returns the configuration of a voter.
    fn voter(&self, job: &str, own: &VoterAddress, (dir, lease): (&Path, Duration)) -> EmbeddedConfig {
        let config = EmbeddedConfig::new(job.to_owned(), own.clone(), self.voters.clone(), dir.join("voter"));
        config.with_settings(EmbeddedSettings::for_lease(lease))
    }

    /// Returns the configuration of the witness of a job.
    pub(crate) fn witness(options: &WitnessOptions, dir: &Path) -> Result<EmbeddedConfig, Failure> {
        let listed = listed(&options.voters, Some(&options.witness))?;
        let plan = Plan::new(Kind::Embedded, listed, &Places::default());
        let own = plan.listed.last().cloned().ok_or("the list of voters is empty")?;
        let lease = Duration::from_millis(options.lease_ms);
        Ok(plan.voter(&options.job, &own, (dir, lease)))
    }

    /// Describes the engine in the start line.
    pub(crate) fn line(&self, engine: Option<&Engine>) -> String {
        match (engine, self.kind) {
            (Some(engine), _) => {
                let info = engine.consensus.info();
                let within = info.failover.map(|time| format!("; a new manager within {:.1} s", time.as_secs_f64()));
                format!("{}: {}{}", info.name, info.statement, within.unwrap_or_default())
            }
            (None, Kind::Embedded) => "embedded: this host states no address (--address), so it never votes".into(),
            (None, Kind::Etcd) => "etcd: this host never becomes the manager".into(),
            (None, Kind::Single) => "single: one manager, no standby: the job ends with its host".into(),
        }
    }
}

/// Binds the address at which this host is reached. A listed host is reached at the port of the list.
pub(crate) async fn listen(at: SocketAddr, own: Option<&VoterAddress>) -> Result<TcpListener, Failure> {
    let port = own.and_then(|own| own.address.rsplit_once(':')).and_then(|(_, port)| port.parse().ok());
    let at = SocketAddr::new(at.ip(), port.unwrap_or(at.port()));
    let listener = TcpListener::bind(at).await.map_err(|error| {
        format!(
            "this host cannot listen at {at} ({error}): end the other process there, or choose another port (--listen)"
        )
    });
    Ok(listener?)
}

/// Returns the listed hosts that vote first, in their order: all of them if one is a witness.
fn first(listed: &[VoterAddress], places: &Places) -> Vec<VoterAddress> {
    if listed.iter().any(|place| place.witness) {
        return listed.to_vec();
    }
    let none = Topology::default(); // the labels of the hosts are not known yet
    let topology = if let Places::Tree(tree) = places { tree } else { &none };
    let chosen = first_voters(&listed.iter().map(|place| place.host.clone()).collect(), topology);
    listed.iter().filter(|place| chosen.contains(&place.host)).cloned().collect()
}

/// Reads a list of hosts, `HOST=ADDRESS:PORT` each.
fn listed(texts: &[String], witness: Option<&str>) -> Result<Vec<VoterAddress>, Failure> {
    let place = |text: &str| {
        let (host, address) = text.split_once('=').ok_or_else(|| format!("{text} is not HOST=ADDRESS:PORT"))?;
        Ok::<_, String>(VoterAddress::new(NodeId(Name::from(host.to_owned())), address))
    };
    let mut listed = texts.iter().map(|text| place(text)).collect::<Result<Vec<_>, _>>()?;
    if let Some(witness) = witness {
        listed.push(place(witness)?.with_witness());
    }
    let mut hosts = BTreeSet::new();
    if let Some(twice) = listed.iter().find(|place| !hosts.insert(&place.host)) {
        return Err(format!("{} is listed twice: give each host one address", twice.host).into());
    }
    Ok(listed)
}

/// Returns an epoch after those of all managers that were started before this one.
#[allow(clippy::disallowed_methods, reason = "the edge of the program")]
fn after_earlier_starts() -> Epoch {
    Epoch(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(listed: &[&str], witness: Option<&str>, places: &Places) -> Plan {
        let texts: Vec<String> = listed.iter().map(|host| format!("{host}=10.0.0.1:9601")).collect();
        let listed = super::listed(&texts, witness).expect("a list");
        Plan::new(Kind::Embedded, listed, places)
    }

    fn names(places: &[VoterAddress]) -> Vec<&str> {
        places.iter().map(|place| place.host.0.as_str()).collect()
    }

    #[test]
    fn the_first_voters_are_spread_over_the_domains_of_the_file() {
        let file = "levels: leaf\n h1: leaf=l1\n h2: leaf=l1\n h3: leaf=l2\n h4: leaf=l3";
        let file = Places::Tree(Topology::parse(file).expect("a topology"));
        let four = plan(&["h4", "h2", "h1", "h3"], None, &file);
        assert_eq!(
            names(&four.voters),
            ["h4", "h1", "h3"],
            "in the order of the list, of which the first forms the job"
        );
        assert_eq!(four.managers().len(), 4, "the other one can replace a lost voter");
        assert!(four.lists(&NodeId("h2".into())));
        assert_eq!(names(&plan(&["h3", "h2", "h1"], None, &file).voters), ["h3", "h2", "h1"]);
        assert_eq!(names(&plan(&["h1", "h2"], Some("w=10.0.0.2:9601"), &file).voters), ["h1", "h2", "w"]);
        assert_eq!(names(&plan(&["h3", "h2", "h1", "h4"], None, &Places::default()).voters), ["h3", "h2", "h1"]);
    }
}
