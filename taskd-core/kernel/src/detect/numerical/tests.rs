use super::*;
use crate::detect::fixture::{Scene, fault, rank_domain};
use crate::detect::{Fault, Finding, Health};
use crate::state::StateDigest;

mod replicas;
mod simulation;

/// A job that reports one metric of all ranks in every step, and its detector.
struct Job {
    scene: Scene,
    detector: NumericalDetector,
    step: u64,
}

impl Job {
    fn new(ranks: u32) -> Job {
        Job { scene: Scene::of(ranks), detector: NumericalDetector::new(), step: 0 }
    }

    /// Reports one step with these values of the ranks, 1 ms apart; returns all findings.
    fn step(&mut self, metric: &'static str, values: &[f64]) -> Vec<Finding> {
        self.step += 1;
        self.scene.pass(100);
        let mut found = Vec::new();
        for (rank, value) in (0..).zip(values) {
            self.scene.pass(1);
            let signal = Signal::Metric { name: Name::new(metric), value: *value };
            found.extend(self.scene.tell(&mut self.detector, rank, signal));
        }
        found.extend(self.scene.expire(&mut self.detector));
        found
    }

    /// Reports `count` steps with a loss that scatters by 5 % around 2.
    fn usual(&mut self, count: u64) -> Vec<Finding> {
        let ranks = self.scene.view.world.members().len();
        let loss = |step: u64, rank: usize| 2.0 + 0.1 * (((step * 7 + rank as u64 * 3) % 11) as f64 / 5.0 - 1.0);
        (0..count)
            .flat_map(|_| {
                let values: Vec<f64> = (0..ranks).map(|rank| loss(self.step, rank)).collect();
                self.step("loss", &values)
            })
            .collect()
    }

    /// Reports the ranks' checksums of one step, all in one group, and lets the detector see them.
    fn checksums(&mut self, step: u64, digests: &[&str]) -> Vec<Finding> {
        let with_group: Vec<(&str, Option<&str>)> = digests.iter().map(|digest| (*digest, Some("all"))).collect();
        self.grouped(step, &with_group)
    }

    fn grouped(&mut self, step: u64, digests: &[(&str, Option<&str>)]) -> Vec<Finding> {
        let mut found = Vec::new();
        for (rank, (digest, group)) in (0..).zip(digests) {
            let (digest, group) = ((*digest).to_owned(), group.map(str::to_owned));
            let state = StateDigest { loop_number: 1, step, digest, group, took_us: 1, first_of_kind: false };
            self.scene.view.replicas.hear(Rank(rank), &state, &BTreeMap::new());
            found.extend(self.scene.tell(&mut self.detector, rank, Signal::Heartbeat));
        }
        found
    }
}

fn blamed(fault: &Fault) -> (&Domain, bool, &FaultClass) {
    let suspect = fault.primary_suspect();
    (&suspect.domain, suspect.is_cause(), &suspect.class)
}

#[test]
fn a_loss_that_is_first_nan_on_one_rank_blames_this_rank_only() {
    let mut job = Job::new(4);
    assert!(job.usual(30).is_empty());
    let found = job.step("loss", &[2.0, 2.1, f64::NAN, 2.0]);
    let fault = fault(&found);
    assert_eq!(blamed(fault), (&rank_domain(2), true, &NumericalDetector::NUMERICAL));
    assert!(fault.primary_suspect().damage.is_still_training(), "no built-in strategy restarts anything for it");
    let text = "the loss is NaN or infinite on 1 of 4 ranks in report 31 (rank 2: NaN)";
    assert_eq!((fault.evidence[0].text.as_str(), fault.evidence[0].peers.len()), (text, 3));
    assert!(job.step("loss", &[f64::NAN; 4]).is_empty(), "the reduced gradients have spread it");
}

#[test]
fn a_loss_that_is_nan_on_all_ranks_blames_none_and_is_withdrawn() {
    let mut job = Job::new(4);
    job.usual(30);
    let found = job.step("loss", &[f64::INFINITY; 4]);
    assert_eq!(blamed(fault(&found)), (&Domain::Job, false, &NumericalDetector::NUMERICAL));
    assert!(job.usual(15).is_empty());
    assert_eq!(job.usual(1), [Finding::Clear(Domain::Job, NumericalDetector::NUMERICAL)]);
}

#[test]
fn of_two_ranks_neither_is_blamed_for_a_nan() {
    let mut job = Job::new(2);
    job.usual(30);
    assert_eq!(
        blamed(fault(&job.step("loss", &[f64::NAN, 2.0]))),
        (&Domain::Job, false, &NumericalDetector::NUMERICAL)
    );
}

#[test]
fn ranks_that_report_at_different_steps_are_not_compared() {
    let mut job = Job::new(4);
    for step in 0..40 {
        let values: &[f64] = if step % 2 == 0 { &[2.0; 4] } else { &[2.0; 3] }; // rank 3 reports every second step
        job.step("loss", values);
    }
    let mut found = Vec::new();
    for _ in 0..40 {
        found.extend(job.step("loss", &[2.0, 2.0, 2.0, f64::NAN])); // NaN in the others' past
    }
    assert_eq!(blamed(fault(&found)), (&Domain::Job, false, &NumericalDetector::NUMERICAL));
}

#[test]
fn a_round_does_not_wait_for_a_lost_rank_longer_than_its_bound() {
    let mut job = Job::new(4);
    job.usual(30);
    assert!(job.step("loss", &[f64::NAN, 2.0, 2.0]).is_empty(), "the last rank may have a NaN as well");
    job.scene.pass(30_000);
    assert_eq!(blamed(fault(&job.scene.expire(&mut job.detector))).0, &Domain::Job);
    assert_eq!(job.detector.deadline(), None);
}

#[test]
fn a_single_spike_is_a_note_and_lasting_spikes_are_a_fault() {
    let mut job = Job::new(4);
    job.usual(64);
    let found = job.step("loss", &[2.0, 2.0, 9.0, 2.0]);
    let [Finding::Note(Domain::Job, evidence)] = found.as_slice() else { panic!("{found:?}") };
    assert!(evidence.text.starts_with("the loss is far above its usual value on 1 of 4 ranks"), "{}", evidence.text);
    job.usual(100);
    let found: Vec<Finding> = (0..5).flat_map(|_| job.step("loss", &[9.0, 8.0, 9.0, 7.0])).collect();
    assert!(matches!(found[0], Finding::Note(..)));
    assert_eq!(blamed(fault(&found)), (&Domain::Job, false, &NumericalDetector::NUMERICAL));
}

#[test]
fn lasting_spikes_of_one_rank_only_blame_this_rank() {
    let mut job = Job::new(4);
    job.usual(64);
    let found: Vec<Finding> = (0..5).flat_map(|_| job.step("loss", &[2.0, 9.0, 2.0, 2.0])).collect();
    assert_eq!(blamed(fault(&found)), (&rank_domain(1), true, &NumericalDetector::NUMERICAL));
}

#[test]
fn a_loss_that_stays_higher_becomes_usual() {
    let mut job = Job::new(4);
    job.usual(64);
    let found: Vec<Finding> = (0..100).flat_map(|_| job.step("loss", &[9.0; 4])).collect();
    assert_eq!(found.iter().filter(|f| matches!(f, Finding::Blame(_))).count(), 1);
    assert_eq!(found.last(), Some(&Finding::Clear(Domain::Job, NumericalDetector::NUMERICAL)));
}

#[test]
fn a_gradient_scaler_that_finds_its_scale_causes_no_fault() {
    let mut job = Job::new(4);
    let found: Vec<Finding> = (0..17).flat_map(|_| job.step("grad_norm", &[f64::INFINITY; 4])).collect();
    assert!(found.iter().all(|finding| matches!(finding, Finding::Note(..))), "{found:?}");
    let found: Vec<Finding> = (0..10).flat_map(|_| job.step("grad_norm", &[f64::INFINITY; 4])).collect();
    assert_eq!(blamed(fault(&found)).0, &Domain::Job);
}

#[test]
fn a_replica_that_differs_from_the_majority_is_blamed_until_it_is_equal() {
    let mut job = Job::new(4);
    assert!(job.checksums(0, &["a"; 4]).is_empty());
    let found = job.checksums(64, &["b", "x", "b", "b"]);
    let fault = fault(&found);
    assert_eq!(blamed(fault), (&rank_domain(1), true, &NumericalDetector::SDC));
    let damage = fault.primary_suspect().damage;
    assert_eq!((damage.process, damage.state), (Health::Healthy, Health::Faulty));
    assert_eq!(
        fault.evidence[0].text,
        "at step 64 the checksum of rank 1's parameters and optimizer state differs from that of 3 replicas, which are \
         equal; at step 0 all were equal"
    );
    assert!(job.checksums(128, &["c", "y", "c", "c"]).is_empty(), "it is reported once");
    let clear = Finding::Clear(rank_domain(1), NumericalDetector::SDC);
    assert_eq!(job.checksums(192, &["d"; 4]), [clear]);
}

#[test]
fn of_replicas_without_a_minority_none_is_blamed() {
    for digests in [&["b", "x"][..], &["b", "b", "x", "x"], &["b", "b", "b", "x", "x"], &["a", "b", "c", "d"]] {
        let mut job = Job::new(u32::try_from(digests.len()).unwrap());
        job.checksums(0, &vec!["a"; digests.len()]);
        let found = job.checksums(64, digests);
        assert!(matches!(found.as_slice(), [Finding::Note(Domain::Job, _)]), "{digests:?}: {found:?}");
        assert!(job.checksums(128, digests).is_empty());
    }
}

#[test]
fn ranks_that_need_not_be_equal_are_not_compared() {
    let mut job = Job::new(4);
    job.checksums(0, &["a", "b", "b", "b"]);
    assert!(job.checksums(64, &["c", "d", "d", "d"]).is_empty(), "they have never been equal");
    let mut job = Job::new(4);
    let local = [("a", None); 4];
    job.grouped(0, &local);
    assert!(
        job.grouped(64, &[("b", None), ("c", None), ("c", None), ("c", None)]).is_empty(),
        "no group keeps them equal"
    );
    let mut job = Job::new(6);
    let stages = |one: &'static str, other: &'static str| [[(one, Some("0-2")); 3], [(other, Some("3-5")); 3]].concat();
    job.grouped(0, &stages("a", "a"));
    assert!(job.grouped(64, &stages("b", "c")).is_empty(), "two stages of a pipeline");
    let mut parted = stages("d", "e");
    parted[4].0 = "x";
    assert_eq!(blamed(fault(&job.grouped(128, &parted))).0, &rank_domain(4));
}

#[test]
fn a_recovery_reports_no_old_divergence_again() {
    let mut job = Job::new(4);
    job.checksums(0, &["a"; 4]);
    assert_eq!(job.checksums(64, &["b", "x", "b", "b"]).len(), 1);
    job.scene.restart(); // some processes are new, and the rounds are kept
    assert!(job.checksums(128, &["c"; 4]).iter().all(|finding| matches!(finding, Finding::Clear(..))));
    assert_eq!(blamed(fault(&job.checksums(192, &["d", "d", "d", "x"]))).0, &rank_domain(3));
}

#[test]
fn a_restored_detector_continues_where_the_saved_one_was() {
    let mut job = Job::new(4);
    job.usual(64);
    job.checksums(0, &["a"; 4]);
    (0..4).for_each(|_| drop(job.step("loss", &[2.0, 9.0, 2.0, 2.0])));
    let saved = job.detector.snapshot().expect("it has a state");
    job.detector = NumericalDetector::new();
    job.detector.restore(&saved).expect("its own state");
    assert_eq!(blamed(fault(&job.step("loss", &[2.0, 9.0, 2.0, 2.0]))).0, &rank_domain(1));
    assert_eq!(blamed(fault(&job.checksums(64, &["b", "b", "x", "b"]))).0, &rank_domain(2));
}

#[test]
fn settings_of_the_numerical_detector_are_bounded() {
    let detector = NumericalDetector::new().with_spike(f64::NAN, 10).with_persistence(0);
    assert_eq!(detector.config(), "spike_sigmas=3 spike_percent=10 persistence=1");
    assert_eq!(NumericalDetector::default().config(), "spike_sigmas=8 spike_percent=25 persistence=5");
}
