//! The engine over real servers of etcd: alone, three of them, killed, unreachable, and with foreign keys.

mod install;
mod proxy;
mod servers;

use super::*;
use crate::consensus::conformance;
use proxy::Proxy;
use servers::Servers;
use std::collections::BTreeMap;
use std::time::Instant;
use taskd_runtime::job::{Name, NodeId};
use tokio::net::TcpListener;
use tokio::time::timeout;

/// Shortest lease that members with the default election timeout grant.
const LEASE: Duration = Duration::from_secs(2);
/// Time limit of a call.
const LIMIT: Duration = Duration::from_secs(2);
/// Wait for an event that must happen, on a machine that is overloaded.
const PATIENCE: Duration = Duration::from_secs(60);

fn settings<E: Into<String>>(endpoints: impl IntoIterator<Item = E>) -> EtcdSettings {
    EtcdSettings::new("job", endpoints).with_lease(LEASE).with_limit(LIMIT)
}

fn candidate(host: &'static str) -> Candidate {
    Candidate::new(NodeId(Name::new(host)), "first", "127.0.0.1:1")
}

/// Repeats a call until it does not return `Unavailable`.
async fn available<T, F: Future<Output = Result<T, ConsensusError>>>(call: impl Fn() -> F) -> T {
    let calls = async {
        loop {
            match call().await {
                Err(ConsensusError::Unavailable(_)) => sleep(ROUND_PAUSE).await,
                other => return other.expect("the call is not refused"),
            }
        }
    };
    timeout(PATIENCE, calls).await.expect("etcd answers again")
}

/// Writes a value at the record's version, again if it is open whether a call has written. Returns the new version.
async fn write(etcd: &Etcd, epoch: Epoch, value: &'static str) -> Version {
    loop {
        let record = available(|| etcd.read()).await;
        if record.value == value {
            return record.version;
        }
        match etcd.compare_and_set(epoch, record.version, value.into()).await {
            Err(ConsensusError::Unavailable(_) | ConsensusError::Conflict { .. }) => sleep(ROUND_PAUSE).await,
            other => return other.expect("the epoch is in force"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_passes_every_clause_of_the_contract() {
    let servers = Servers::start(1).await;
    let mut proxies = BTreeMap::new();
    for host in 1..=3 {
        proxies.insert(host, Proxy::to(servers.port(0)).await);
    }
    let made: Mutex<BTreeMap<u32, Etcd>> = Mutex::default();
    let report = conformance::consensus(async |host| {
        let etcd = Etcd::connect(&settings([proxies[&host].uri()])).await.unwrap();
        made.lock().unwrap().insert(host, etcd.clone());
        etcd
    })
    .with_kill(async |host| made.lock().unwrap()[&host].abandon())
    .with_cut(async |host| proxies[&host].cut(), async |host| proxies[&host].reconnect())
    .with_limit(LIMIT)
    .with_settle(Duration::from_millis(50))
    .with_slack(Duration::from_secs(10))
    .assert()
    .await;
    assert_eq!(report.skipped(), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_granted_lease_and_no_other_is_stated() {
    let servers = Servers::start(1).await;
    let short = settings(servers.uris()).with_lease(Duration::from_millis(1100));
    assert_eq!(short.lease_seconds(), 2, "etcd counts in seconds");
    let short = short.with_lease(Duration::from_millis(300)).with_limit(Duration::from_secs(1));
    let unconnected = Etcd::new(&short).unwrap();
    assert_eq!(unconnected.info().failover, Some(Duration::from_secs(1) + TAKEOVER));
    let etcd = Etcd::connect(&short).await.unwrap();
    assert_eq!(etcd.info().failover, Some(LEASE + TAKEOVER), "etcd grants no shorter lease: 1.5 election timeouts");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_manager_is_replaced_within_the_stated_failover() {
    let servers = Servers::start(1).await;
    let (first, second) = (
        Etcd::connect(&settings(servers.uris())).await.unwrap(),
        Etcd::connect(&settings(servers.uris())).await.unwrap(),
    );
    let epoch = first.campaign(&candidate("a")).await.unwrap();
    let mut version = first.read().await.unwrap().version;
    let mut took = Vec::new();
    for at in 0..100 {
        let begun = Instant::now();
        version = first.compare_and_set(epoch, version, format!("value {at}").into()).await.unwrap();
        took.push(begun.elapsed());
    }
    took.sort();
    let failover = second.info().failover.unwrap();
    let standby = second.clone();
    let campaign = tokio::spawn(async move { standby.campaign(&candidate("b")).await });
    sleep(LEASE + ROUND_PAUSE).await; // the lease is kept alive for longer than it lives
    first.confirm(epoch).await.unwrap();
    assert!(!campaign.is_finished());
    let lost = Instant::now();
    first.abandon();
    let next = timeout(PATIENCE, campaign).await.unwrap().unwrap().unwrap();
    let replaced = lost.elapsed();
    println!("compare_and_set: median {:?}, longest {:?}; failover {replaced:?} of {failover:?}", took[50], took[99]);
    assert!(replaced < failover + Duration::from_secs(10), "{replaced:?}");
    let error = first.compare_and_set(epoch, version, "late".into()).await.unwrap_err();
    assert_eq!(error, ConsensusError::Superseded { epoch, by: Some("node b (127.0.0.1:1)".into()) });
    assert_eq!(second.read().await.unwrap().value, "value 99");

    // A handle that is dropped ends its epoch at once.
    drop(second);
    let record = first.watch(version).await.unwrap();
    assert!(record.epoch == next, "{record:?}");
    let ended = async {
        while first.read().await.unwrap().manager.is_some() {
            sleep(ROUND_PAUSE).await;
        }
    };
    timeout(PATIENCE, ended).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_leader_of_etcd_takes_no_epoch_and_no_record_away() {
    let mut servers = Servers::start(3).await;
    let etcd = Etcd::connect(&settings(servers.uris()).with_lease(LEASE * 2)).await.unwrap();
    let epoch = etcd.campaign(&candidate("a")).await.unwrap();
    let mut version = write(&etcd, epoch, "before").await;
    for value in ["after the first", "after the second"] {
        let leader = servers.leader().await;
        servers.kill(leader);
        let begun = Instant::now();
        let next = write(&etcd, epoch, value).await;
        println!("a leader of etcd was killed: written again after {:?}", begun.elapsed());
        assert!(next > version);
        version = next;
        servers.restart(leader).await;
    }
    available(|| etcd.confirm(epoch)).await;
    assert_eq!(available(|| etcd.read()).await.value, "after the second");
    assert!(etcd.endpoint_failures() > 0);

    // A host is lost that ran the manager and etcd's leader.
    let standby = Etcd::new(&settings(servers.uris()).with_lease(LEASE * 2)).unwrap();
    let (next, failover) = (standby.clone(), standby.info().failover.unwrap());
    let campaign = tokio::spawn(async move { next.campaign(&candidate("b")).await });
    sleep(ROUND_PAUSE).await;
    let leader = servers.leader().await;
    let lost = Instant::now();
    etcd.abandon();
    servers.kill(leader);
    let next = timeout(PATIENCE, campaign).await.unwrap().unwrap().unwrap();
    println!("manager and leader of etcd were killed: failover {:?} of {failover:?}", lost.elapsed());
    assert!(lost.elapsed() < failover + Duration::from_secs(10), "{:?}", lost.elapsed());
    assert!(next > epoch);
    assert_eq!(available(|| standby.read()).await.value, "after the second");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_epoch_continues_after_all_servers_were_gone() {
    let mut servers = Servers::start(3).await;
    let etcd = Etcd::connect(&settings(servers.uris()).with_lease(LEASE * 5)).await.unwrap();
    let epoch = etcd.campaign(&candidate("a")).await.unwrap();
    let version = write(&etcd, epoch, "kept").await;
    let (watching, before) = (etcd.clone(), version);
    let watch = tokio::spawn(async move { watching.watch(before).await });
    servers.kill_all();
    let begun = Instant::now();
    let write_lost = etcd.compare_and_set(epoch, version, "lost".into());
    let (read, written, confirmed) = tokio::join!(etcd.read(), write_lost, etcd.confirm(epoch));
    for error in [read.unwrap_err(), written.unwrap_err(), confirmed.unwrap_err()] {
        assert!(matches!(error, ConsensusError::Unavailable(_)), "{error}");
    }
    assert!(begun.elapsed() < LIMIT + Duration::from_secs(5), "{:?}", begun.elapsed());
    let watched = timeout(PATIENCE, watch).await.unwrap().unwrap();
    assert!(matches!(watched, Err(ConsensusError::Unavailable(_))), "{watched:?}");
    servers.restart_all().await;
    available(|| etcd.confirm(epoch)).await;
    let record = available(|| etcd.read()).await;
    assert_eq!((record.version, record.epoch, &*record.value), (version, epoch, &b"kept"[..]));
    assert!(write(&etcd, epoch, "continued").await > version);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_survives_the_compaction_of_what_it_has_not_seen() {
    let servers = Servers::start(1).await;
    let etcd = Etcd::connect(&settings(servers.uris())).await.unwrap();
    let epoch = etcd.campaign(&candidate("a")).await.unwrap();
    let before = etcd.state(true).await.unwrap();
    let (watching, after) = (etcd.clone(), before.version());
    let watch = tokio::spawn(async move { watching.watch(after).await });
    write(&etcd, epoch, "first").await;
    write(&etcd, epoch, "second").await;
    let now = etcd.state(true).await.unwrap().revision;
    servers.post(0, "/v3/kv/compaction", &format!(r#"{{"revision":"{now}","physical":true}}"#)).await.unwrap();
    // The revision after the caller's is gone: etcd cancels the watch, and the caller reads the record.
    let from = before.revision + 1;
    timeout(PATIENCE, changes::changed(&etcd.inner.pool, &etcd.inner.keys, from)).await.unwrap().unwrap();
    assert!(timeout(PATIENCE, watch).await.unwrap().unwrap().unwrap().version > after);
    assert_eq!(etcd.watch(before.version()).await.unwrap().value, "second");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_content_of_the_managers_key_is_named_and_changes_no_epoch() {
    let servers = Servers::start(1).await;
    let etcd = Etcd::connect(&settings(servers.uris())).await.unwrap();
    let key = etcd.inner.keys.manager.clone();
    servers.put(0, &key, b"\xff garbage").await;
    for error in [etcd.read().await.unwrap_err(), etcd.campaign(&candidate("a")).await.unwrap_err()] {
        let remedy = "no campaign has written the key /taskd/job/manager of revision 2: find the program that writes \
                      it, and delete the key (etcdctl del /taskd/job/manager)";
        assert!(matches!(&error, ConsensusError::Refused(why) if why.contains(remedy)), "{error}");
    }
    servers.delete(0, &key).await;
    let epoch = etcd.campaign(&candidate("a")).await.unwrap();

    // A key in office that is overwritten stays the manager's: its create revision is the epoch.
    let version = write(&etcd, epoch, "before").await;
    servers.put(0, &key, b"garbage").await;
    etcd.confirm(epoch).await.unwrap();
    let record = etcd.read().await.unwrap();
    assert_eq!((record.version, record.manager), (version, Some(candidate("a"))));
    assert!(write(&etcd, epoch, "after").await > version);
    etcd.resign(epoch).await.unwrap();
    assert_eq!(etcd.read().await.unwrap().manager, None);
    assert!(etcd.campaign(&candidate("b")).await.unwrap() > epoch);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_that_never_answers_is_left_for_the_next() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap(); // the kernel accepts, and no answer comes
    let uri = format!("http://{}", silent.local_addr().unwrap());
    let second = Duration::from_secs(1);
    let alone = Etcd::new(&settings([&uri]).with_limit(second)).unwrap();
    let begun = Instant::now();
    let error = alone.read().await.unwrap_err();
    assert!(begun.elapsed() < second * 3, "{:?}", begun.elapsed());
    let expected = format!("etcd: reading the record: {uri}: no answer within {second:?}");
    assert_eq!(error, ConsensusError::Unavailable(expected));

    let servers = Servers::start(1).await;
    let etcd = Etcd::new(&settings([uri.clone(), servers.uris().remove(0)])).unwrap();
    assert_eq!(available(|| etcd.read()).await, Record::new());
    let epoch = etcd.campaign(&candidate("a")).await.unwrap();
    write(&etcd, epoch, "value").await;
    sleep(LEASE + ROUND_PAUSE).await;
    etcd.confirm(epoch).await.unwrap();
    assert_eq!(etcd.endpoint_failures(), 1, "only the first call waited for the endpoint that never answers");

    // A write is not repeated if a server may have it, and goes on with the next endpoint if there was no connection.
    let version = etcd.read().await.unwrap().version;
    let open = Etcd::new(&settings([uri, servers.uris().remove(0)])).unwrap();
    let error = open.compare_and_set(epoch, version, "open".into()).await.unwrap_err();
    assert!(matches!(error, ConsensusError::Unavailable(_)), "{error}");
    assert_eq!(open.read().await.unwrap().version, version);
    let closed = ["http://127.0.0.1:1".to_owned(), servers.uris().remove(0)];
    let unsent = Etcd::new(&settings(closed)).unwrap();
    assert!(unsent.compare_and_set(epoch, version, "next".into()).await.unwrap() > version);
}

#[tokio::test]
async fn settings_that_cannot_work_are_refused() {
    let uri = "http://127.0.0.1:1";
    let why = |settings: &EtcdSettings| Etcd::new(settings).unwrap_err().to_string();
    assert!(why(&EtcdSettings::new("a/b", [uri])).contains("the job's name \"a/b\" is part of the keys"));
    assert!(why(&EtcdSettings::new("", [uri])).contains("not be empty"));
    assert!(why(&EtcdSettings::new("job", [""; 0])).contains("no endpoint is given"));
    assert!(why(&EtcdSettings::new("job", ["no uri"])).contains("endpoint no uri: "));
    assert!(why(&EtcdSettings::new("job", ["https://a:1"])).contains("see `EtcdSettings::with_channels`"));
    assert!(why(&EtcdSettings::new("job", [uri]).with_limit(Duration::ZERO)).contains("the time limit of calls is 0"));
    assert!(why(&EtcdSettings::new("job", [uri]).with_lease(Duration::ZERO)).contains("set one from 1 s to 86400s"));
    let refusing = EtcdSettings::new("job", [uri]).with_channels(|_| Err("no certificate".into()));
    assert_eq!(why(&refusing), "etcd: endpoint http://127.0.0.1:1: no certificate");
    let unused = settings([uri]).with_limit(Duration::from_millis(200));
    let error = Etcd::new(&unused).unwrap().read().await.unwrap_err().to_string();
    assert!(error.contains("etcd: reading the record: http://127.0.0.1:1: Unavailable: "), "{error}");
    assert!(error.contains("Connection refused"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_custom_channel_and_two_jobs_share_one_etcd() {
    let servers = Servers::start(1).await;
    let uri = servers.uris().remove(0);
    let own = |uri: &str| Ok(tonic::transport::Endpoint::from_shared(uri.replace("acme", "http"))?.connect_lazy());
    let acme = uri.replace("http", "acme");
    let one = Etcd::connect(&EtcdSettings::new("one", [acme]).with_lease(LEASE).with_channels(own)).await.unwrap();
    let ten = Etcd::connect(&EtcdSettings::new("one0", [uri]).with_lease(LEASE)).await.unwrap();
    let first = one.campaign(&candidate("a")).await.unwrap();
    let second = ten.campaign(&candidate("b")).await.unwrap();
    assert_ne!(first, second);
    one.confirm(first).await.unwrap();
    assert!(matches!(ten.confirm(first).await, Err(ConsensusError::Superseded { .. })));
    let before = one.read().await.unwrap();
    write(&ten, second, "other").await;
    assert_eq!(one.read().await.unwrap(), before, "another job's record changes no version");
}
