//! What is built in, and what can be put around a plugin, keeps the contracts that plugin authors are held to.
//!
//! The local launcher has this test beside its others, in `local_launcher`.

use std::sync::Arc;
use std::time::Duration;
use taskd_core::detect::{self, DetectorExt};
use taskd_core::job::Domain;
use taskd_core::launch::LauncherExt;
use taskd_core::recover::{self, StrategyExt};
use taskd_core::testing::conformance::{self, fault_detector::SNAPSHOT_GOES_ON};
use taskd_core::testing::doubles::{FakeLauncher, ScriptedSource};
use taskd_core::trace::{Fact, Signal, TraceSourceExt};

#[test]
fn built_in_strategies() {
    for which in 0..recover::defaults().len() {
        let make = move || recover::defaults().remove(which);
        conformance::recovery_strategy(make).assert();
        conformance::recovery_strategy(move || Arc::new(make().limit(2))).assert();
    }
}

#[test]
fn built_in_detectors_with_something_around_them() {
    for which in 0..detect::defaults().len() {
        let make = move || detect::defaults().remove(which);
        conformance::fault_detector(move || make().when(|o| o.about != Domain::Job)).assert();
        let debounced = conformance::fault_detector(move || make().debounce(2)).assert();
        let skipped: Vec<_> = debounced.skipped().iter().map(|(clause, _)| *clause).collect();
        assert_eq!(skipped, [SNAPSHOT_GOES_ON]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_launcher_with_a_timeout_around_it() {
    let fake = FakeLauncher::new();
    let make = async |_owner| Box::new(fake.attach().with_timeout(Duration::from_secs(1)));
    conformance::launcher(make, fake.programs()).assert().await;
}

#[tokio::test(start_paused = true)]
async fn a_source_under_another_name() {
    let facts: Vec<Fact> = (0..9).map(|step| Fact::new(Domain::Job, Signal::Progress { step })).collect();
    let make = async || ScriptedSource::new(facts.chunks(2).map(<[Fact]>::to_vec)).named("another").boxed();
    conformance::trace_source(make).with_reference(facts.clone()).assert().await;
}
