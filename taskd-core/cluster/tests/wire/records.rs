//! Records stay on their host, and are fetched from there.

use crate::cluster::{Cluster, agent_with};
use crate::settings;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use taskd_cluster::{RecordsError, RecordsRequest};
use taskd_runtime::job::{Incarnation, Name, NodeId, Rank};
use taskd_runtime::trace::recorder::{Detail, Event, Kind, NameId};
use taskd_runtime::trace::store::{RankFiles, StoreConfig, TraceStore};
use taskd_runtime::trace::{Origin, RecordBatch, TimedRecord};
use taskd_testing::testing::doubles::FakeLauncher;

/// Time within which the store writes, on a machine that is busy with other tests.
const WRITTEN_WITHIN: Duration = Duration::from_secs(60);
/// Records of each rank: their file has more than one part.
const RECORDS: u64 = 400_000;

fn batch(rank: u32, from: u64, to: u64) -> Arc<RecordBatch> {
    let record = |number: u64| TimedRecord {
        // Irregular times, which take some bytes each.
        unix_nanos: 1_790_857_026_000_000_000 + number * 1_000_000 + (number * number) % 999_983,
        thread: 7,
        kind: Kind::Step,
        event: Event::Instant,
        name: NameId(1),
        detail: Detail::None,
    };
    Arc::new(RecordBatch {
        origin: Origin { rank: Rank(rank), incarnation: Incarnation(1), pid: 17 },
        names: Arc::new(["step"].into_iter().collect()),
        lost: 0,
        records: (from..to).map(record).collect(),
    })
}

/// Writes records of two ranks as a host's own trace store does.
fn write_records(root: &Path) {
    let store = TraceStore::open(StoreConfig::new(root, "job")).expect("a valid configuration");
    for from in (0..RECORDS).step_by(50_000) {
        for rank in [0, 1] {
            assert!(store.append(batch(rank, from, from + 50_000)));
            assert!(store.flush(WRITTEN_WITHIN));
        }
    }
    assert!(store.close(WRITTEN_WITHIN));
}

fn count(dir: &Path, rank: u32) -> (u64, u64) {
    let files = RankFiles::list(&dir.join(rank.to_string())).expect("it is there").files;
    let of = |file: &taskd_runtime::trace::store::StoredFile| {
        let records = file.read(Rank(rank)).expect("it can be read").map(|batch| batch.records.len() as u64);
        (std::fs::metadata(&file.path).expect("it is there").len(), records.sum::<u64>())
    };
    files.iter().map(of).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
}

#[tokio::test(flavor = "multi_thread")]
async fn records_are_fetched_from_their_host() {
    let dir = tempfile::tempdir().expect("a directory");
    let root = dir.path().join("host");
    write_records(&root);
    let cluster = Cluster::new(settings()).await;
    let node = |host: &'static str| NodeId(Name::new(host));
    let fake = |host: &'static str| FakeLauncher::with_nodes([Name::new(host)], 1);
    let keeps = root.join("job");
    let _keeps = agent_with(&cluster, "keeps", fake("keeps"), None, |agent| agent.records(&keeps));
    let _none = agent_with(&cluster, "none", fake("none"), None, |agent| agent);
    let manager = cluster.manager(2).await;

    let into = dir.path().join("all");
    let fetched = manager.fetch_records(&node("keeps"), &RecordsRequest::default(), &into).await.expect("they come");
    println!("{fetched:?}");
    let expected = [count(&keeps, 0), count(&keeps, 1)];
    assert!(expected[0].0 > 1 << 20, "a file has more than one part: {expected:?}");
    assert_eq!([count(&into, 0), count(&into, 1)], expected);
    assert_eq!(expected.map(|(_, records)| records), [RECORDS; 2]);
    assert_eq!((fetched.bytes, fetched.left_out), (expected[0].0 + expected[1].0, 0));

    let mode = |path: &Path| std::fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    let files = RankFiles::list(&into.join("0")).expect("it is there").files;
    assert!(!files.is_empty() && files.iter().all(|file| mode(&file.path) == 0o600), "no other user reads them");
    assert_eq!(mode(&into.join("0")), 0o700);

    let (linked, victim) = (dir.path().join("linked"), dir.path().join("victim"));
    std::fs::create_dir_all(linked.join("0")).expect("a directory");
    std::fs::write(&victim, "kept").expect("a file");
    let name = files[0].path.file_name().expect("a file");
    symlink(&victim, linked.join("0").join(name)).expect("a link");
    let error = manager.fetch_records(&node("keeps"), &RecordsRequest::default(), &linked).await.expect_err("a link");
    assert!(matches!(error, RecordsError::Io { .. }), "{error}");
    assert_eq!(std::fs::read_to_string(&victim).expect("it is there"), "kept", "links are not followed");

    let one = dir.path().join("one");
    let request = RecordsRequest::default().of_ranks([Rank(1)]);
    manager.fetch_records(&node("keeps"), &request, &one).await.expect("they come");
    assert!(count(&one, 1) == expected[1] && !one.join("0").exists());

    let request = RecordsRequest::default().at_most(1);
    let left = manager.fetch_records(&node("keeps"), &request, &dir.path().join("left")).await.expect("they come");
    assert_eq!((left.files, left.bytes, left.left_out > 1), (0, 0, true), "{left:?}");
    let future = RecordsRequest::default().since(u64::MAX);
    let none = manager.fetch_records(&node("keeps"), &future, &dir.path().join("none")).await.expect("they come");
    assert_eq!((none.files, none.left_out), (0, 0));

    let error = manager.fetch_records(&node("none"), &request, &into).await.expect_err("it keeps none");
    assert!(error.to_string().contains("keeps no records"), "{error}");
    let error = manager.fetch_records(&node("other"), &request, &into).await.expect_err("it is unknown");
    assert!(matches!(error, RecordsError::NoHost(_)), "{error}");
}
