//! Hosts that were started wrongly: each gets one clear error, and the job is not harmed.

use crate::cluster::{Cluster, PATIENCE, agent, security};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use taskd_cluster::security::{JobToken, MutualTls, Security, SecurityContext, TestAuthority, Usage, Validity};
use taskd_cluster::{Agent, AgentBuilder, Forwarder};
use taskd_runtime::job::{NodeId, ProcId, World};
use taskd_runtime::launch::{Launcher, Place, StartBatch, StartOrder};
use taskd_testing::testing::doubles::{FakeLauncher, FakeProgram};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

/// A mistake: the agent with it, and a part of the sentence that its host gets.
struct Mistake {
    agent: AgentBuilder,
    reason: &'static str,
    /// True if the agent tries again, because the mistake may be repaired while it runs.
    retries: bool,
}

fn builder(job: &str, host: &str, security: &SecurityContext, manager: &str) -> AgentBuilder {
    Agent::builder(job, NodeId(host.to_owned().into()), FakeLauncher::new(), security).manager(manager)
}

async fn with_token(token: &str) -> SecurityContext {
    let token = JobToken::new(token).expect("long enough");
    Security::Token(token).open("other").await.expect("loopback")
}

/// Returns the security of a host with a certificate of another authority.
async fn with_certificate(dir: &std::path::Path) -> SecurityContext {
    let authority = TestAuthority::new("another job").expect("a CA");
    let issued = authority.issue_with(&["127.0.0.1"], Validity::Valid, Usage::Both).expect("issued");
    let files = issued.write(dir, authority.pem()).expect("files");
    Security::MutualTls(MutualTls::new(files)).open("127.0.0.1").await.expect("usable files")
}

async fn mistakes(manager: &str, certificates: &std::path::Path) -> BTreeMap<&'static str, Mistake> {
    let own = security().await;
    let other = with_token("another-token-another-token-0000").await;
    let tls = with_certificate(certificates).await;
    let refused = |agent, reason| Mistake { agent, reason, retries: false };
    let retried = |agent, reason| Mistake { agent, reason, retries: true };
    let unreachable = builder("job", "other", &own, manager).forwarder(Forwarder::new("job", &own), "127.0.0.1:1");
    BTreeMap::from([
        (
            "the name of another host",
            refused(builder("job", "good", &own, manager), "good is connected already, from 127"),
        ),
        ("another job", refused(builder("job-2", "other", &own, manager), "the agent belongs to job job-2")),
        ("a wrong token", refused(builder("job", "other", &other, manager), "token")),
        ("TLS to a job without it", retried(builder("job", "other", &tls, manager), "TLS")),
        ("a name with a space", refused(builder("job", "an other", &own, manager), "visible ASCII")),
        ("an address that hosts cannot reach", retried(unreachable, "states the address 127.0.0.1:1")),
        (
            "no manager at the address",
            retried(builder("job", "other", &own, "127.0.0.1:1"), "cannot connect to 127.0.0.1:1"),
        ),
    ])
}

/// Runs an agent until it has its error, and returns it.
async fn error(mistake: Mistake) -> String {
    let agent = Arc::new(mistake.agent.build().expect("complete"));
    let running = Arc::clone(&agent);
    let run = async move { running.run(CancellationToken::new()).await };
    let trouble = async {
        loop {
            if let Some(trouble) = agent.trouble().filter(|_| mistake.retries) {
                return trouble;
            }
            sleep(Duration::from_millis(10)).await;
        }
    };
    let ended = async {
        tokio::select! {
            result = run => result.expect_err("it is refused").to_string(),
            trouble = trouble => trouble,
        }
    };
    timeout(PATIENCE, ended).await.expect("it gets an error")
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_with_mistakes_get_one_clear_error_and_harm_no_job() {
    let cluster = Cluster::new(crate::settings()).await;
    let fake = FakeLauncher::with_nodes(["good"], 1);
    let _good = agent(&cluster, "good", fake.attach(), None);
    let manager = cluster.manager(1).await;
    let proc = ProcId::rank(0, 1);
    let starts = vec![StartOrder::new(proc.clone(), Place::anywhere(), Arc::new(FakeProgram::Runs.spec()))];
    let batch = StartBatch::new(Arc::new(World::first(BTreeMap::new())), starts);
    manager.launcher().start(&batch).await.expect("the host is there");

    let certificates = tempfile::tempdir().expect("a directory");
    for (what, mistake) in mistakes(&cluster.address.to_string(), certificates.path()).await {
        let reason = mistake.reason;
        let error = error(mistake).await;
        println!("{what}: {error}");
        assert!(error.contains(reason), "{what}: {error}");
        let hosts: Vec<NodeId> = manager.hosts().into_iter().map(|status| status.host).collect();
        assert_eq!(hosts, [NodeId("good".into())], "{what}");
        assert!(fake.runs(&proc), "{what}");
    }
    let listing = manager.launcher().list().await.expect("in office");
    assert!(listing.procs.iter().all(|status| !status.phase.is_over()), "{listing:?}");
}
