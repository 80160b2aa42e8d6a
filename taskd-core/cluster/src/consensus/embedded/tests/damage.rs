//! Stores that were damaged.

use crate::consensus::embedded::store;
use crate::consensus::embedded::types::{Entry, LogId};
use openraft::storage::{RaftLogStorage, RaftLogStorageExt};
use openraft::{CommittedLeaderId, RaftLogReader};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Creates a store with a vote and ten entries, and returns its voter.
async fn filled(dir: &Path) -> u64 {
    let opened = store::open(dir, "job", "boot", &store::Simulated::default()).expect("opened");
    let mut store = opened.store;
    store.save_vote(&openraft::Vote::new(3, 9)).await.expect("vote");
    let entry = |index| Entry { log_id: LogId::new(CommittedLeaderId::new(3, 9), index), ..Entry::default() };
    store.blocking_append((0..10).map(entry)).await.expect("appended");
    store.close().await;
    opened.voter
}

#[tokio::test]
async fn store_of_the_same_boot_is_read_again() {
    let dir = tempfile::tempdir().expect("directory");
    let voter = filled(dir.path()).await;
    let mut again = store::open(dir.path(), "job", "boot", &store::Simulated::default()).expect("opened");
    assert_eq!((again.voter, &again.discarded), (voter, &None));
    assert_eq!(again.store.read_vote().await.expect("vote"), Some(openraft::Vote::new(3, 9)));
    assert_eq!(again.store.try_get_log_entries(..).await.expect("log").len(), 10);
    let in_use = store::open(dir.path(), "job", "boot", &store::Simulated::default()).expect_err("in use").to_string();
    assert!(in_use.contains("stop that voter first"), "{in_use}");
    again.store.close().await;
    let other =
        store::open(dir.path(), "other", "boot", &store::Simulated::default()).expect_err("another job").to_string();
    assert!(other.contains("belongs to the job `job`"), "{other}");
}

#[tokio::test]
async fn no_other_user_can_read_a_store() {
    let parent = tempfile::tempdir().expect("directory");
    let dir = parent.path().join("voter");
    filled(&dir).await;
    let mode = |path: &Path| fs::metadata(path).expect("exists").permissions().mode() & 0o777;
    assert_eq!((mode(&dir), mode(&dir.join("voter.redb"))), (0o700, 0o600));
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).expect("it is ours");
    let refused = store::open(&dir, "job", "boot", &store::Simulated::default())
        .expect_err("another user can change it")
        .to_string();
    assert!(refused.contains("creating the directory"), "{refused}");
}

#[tokio::test]
async fn damaged_stores_are_discarded_and_never_panic() {
    let dir = tempfile::tempdir().expect("directory");
    let file = dir.path().join("voter.redb");
    let mut voter = filled(dir.path()).await;
    let good = fs::read(&file).expect("read");
    let mut damaged: Vec<Vec<u8>> = vec![Vec::new(), b"garbage".repeat(1000)];
    damaged.extend([1, 100, 4095, 4096, 5000, good.len() / 2, good.len() - 1].map(|length| good[..length].to_vec()));
    // Pages of the file are overwritten in part, at positions from a fixed sequence.
    let mut position = 12_345_usize;
    damaged.extend((0..24).map(|_| {
        position = position.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mut bytes = good.clone();
        let at = (position >> 16) % (bytes.len() - 64);
        bytes[at..at + 64].fill(0xA5);
        bytes
    }));
    let mut discarded = 0;
    for bytes in damaged {
        fs::write(&file, &bytes).expect("write");
        let opened =
            store::open(dir.path(), "job", "boot", &store::Simulated::default()).expect("a damaged store is no error");
        if let Some(reason) = opened.discarded {
            discarded += 1;
            assert!(!reason.is_empty() && opened.voter != voter, "{reason}");
            assert!(!opened.store.has_log());
            assert!(dir.path().join("voter.redb.discarded").exists(), "it is kept for an examination");
            voter = opened.voter;
        }
        opened.store.close().await;
    }
    assert!(discarded >= 9, "every short file is discarded: {discarded}");
    fs::remove_file(&file).expect("removed");
    let missing = store::open(dir.path(), "job", "boot", &store::Simulated::default()).expect("created");
    assert_ne!(missing.voter, voter, "a lost store is another voter");
}
