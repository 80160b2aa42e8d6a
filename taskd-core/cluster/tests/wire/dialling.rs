//! The order in which agents dial the addresses of managers: one after the other, each agent beginning with another one.

use crate::cluster::security;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use taskd_cluster::{Agent, Dial};
use taskd_runtime::job::NodeId;
use taskd_testing::testing::doubles::FakeLauncher;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

const ADDRESSES: [&str; 3] = ["a:1", "b:1", "c:1"];

/// The addresses that were dialled, each with the time since the start.
type Dialled = Arc<Mutex<Vec<(String, Duration)>>>;

/// Records what is dialled. Nothing answers, unless every address refuses.
struct Recorded {
    begun: Instant,
    refuses: bool,
    dialled: Dialled,
}

#[async_trait::async_trait]
impl Dial for Recorded {
    async fn dial(&self, address: &str, _: Duration) -> Result<Channel, String> {
        self.dialled.lock().expect("no panic").push((address.to_owned(), self.begun.elapsed()));
        match self.refuses {
            true => Err(format!("{address} refuses")),
            false => std::future::pending().await,
        }
    }
}

/// Returns what the agent of a host dials within a time.
async fn dialled(host: &str, refuses: bool, within: Duration) -> Vec<(String, Duration)> {
    let dialled = Dialled::default();
    let dialer = Recorded { begun: Instant::now(), refuses, dialled: Arc::clone(&dialled) };
    let security = security().await;
    let agent = Agent::builder("job", NodeId(host.to_owned().into()), FakeLauncher::new(), &security).dialer(dialer);
    let agent = ADDRESSES.into_iter().fold(agent, |agent, address| agent.manager(address)).build().expect("complete");
    assert!(timeout(within, agent.run(CancellationToken::new())).await.is_err(), "it goes on dialling");
    std::mem::take(&mut *dialled.lock().expect("no panic"))
}

#[tokio::test(start_paused = true)]
async fn an_address_that_does_not_answer_makes_way_after_a_while() {
    let dialled = dialled("host", false, Duration::from_millis(1040)).await;
    let times: Vec<u128> = dialled.iter().map(|(_, at)| at.as_millis()).collect();
    assert_eq!(times.len(), 3, "{dialled:?}");
    for (time, expected) in times.into_iter().zip([0, 500, 1000]) {
        assert!((expected..expected + 10).contains(&time), "{dialled:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_address_that_refuses_makes_way_at_once() {
    let dialled = dialled("host", true, Duration::from_millis(40)).await;
    let mut addresses: Vec<&str> = dialled.iter().map(|(address, _)| &**address).collect();
    addresses.sort_unstable();
    assert_eq!(addresses, ADDRESSES, "each once, before any is dialled again: {dialled:?}");
}

#[tokio::test(start_paused = true)]
async fn the_agents_of_a_job_do_not_all_begin_with_the_same_address() {
    let mut first: BTreeMap<String, u32> = BTreeMap::new();
    for number in 0..60 {
        let dialled = dialled(&format!("host-{number:05}"), false, Duration::from_millis(1)).await;
        *first.entry(dialled[0].0.clone()).or_default() += 1;
    }
    assert!(first.len() == 3 && first.values().all(|count| *count >= 10), "{first:?}");
}
