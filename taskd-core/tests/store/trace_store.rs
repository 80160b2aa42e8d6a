//! The store: what lies on the disk afterwards, and what a disk that takes nothing does to it.

use super::batches::training;
use super::compatible::records_of;
use super::elsewhere::elsewhere;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use taskd_core::job::Rank;
use taskd_core::trace::RecordBatch;
use taskd_core::trace::store::{Format, Problem, RankFiles, StoreConfig, StoreStatus, TraceStore};

const PATIENCE: Duration = Duration::from_secs(120);

fn config(root: &Path) -> StoreConfig {
    StoreConfig { formats: Format::ALL.to_vec(), ..StoreConfig::new(root, "task-1") }
}

fn records(batches: &[RecordBatch]) -> u64 {
    batches.iter().map(|batch| batch.records.len() as u64).sum()
}

/// Stores batches and waits, after each, until it is written.
fn store_each(store: &TraceStore, batches: &[RecordBatch]) -> StoreStatus {
    for batch in batches {
        assert!(store.append(Arc::new(batch.clone())));
        assert!(store.flush(PATIENCE));
    }
    store.status()
}

fn dir(root: &Path, rank: u32) -> PathBuf {
    root.join("task-1").join(rank.to_string())
}

/// What a rank's files of a format hold; all of them must be whole.
fn stored(root: &Path, rank: u32, format: Format) -> Vec<RecordBatch> {
    let files = RankFiles::list(&dir(root, rank)).unwrap().files;
    let of_format = files.iter().filter(|file| file.format == format);
    of_format
        .flat_map(|file| {
            let mut reader = file.read(Rank(rank)).unwrap();
            let batches: Vec<_> = reader.by_ref().collect();
            assert!(reader.skipped().is_empty(), "{:?}", reader.skipped());
            batches
        })
        .collect()
}

fn all_records(batches: &[RecordBatch]) -> Vec<String> {
    records_of(batches).1
}

fn lost(batches: &[RecordBatch]) -> u64 {
    batches.iter().map(|batch| batch.lost).sum()
}

#[test]
fn both_formats_hold_every_ranks_records() {
    let root = tempfile::tempdir().unwrap();
    let store = TraceStore::open(config(root.path())).unwrap();
    let of_ranks: Vec<_> = (0..4).map(|rank| training(rank, 20, 1)).collect();
    for step in 0..20 {
        of_ranks.iter().for_each(|batches| assert!(store.append(Arc::new(batches[step].clone()))));
    }
    assert!(store.flush(PATIENCE));
    let status = store.status();
    let all: u64 = of_ranks.iter().map(|batches| records(batches)).sum();
    for format in Format::ALL {
        let counts = status.counts(format);
        assert_eq!((counts.records, counts.files, counts.lost, counts.failures), (all, 4, 0, 0));
        for (rank, batches) in (0..).zip(&of_ranks) {
            let mut was = all_records(batches);
            let mut is = all_records(&stored(root.path(), rank, format));
            was.sort(); // threads stand side by side in other places
            is.sort();
            assert!(was == is, "rank {rank}, {format:?}");
        }
    }
    assert_eq!((status.trouble, status.last_error), (None, None));
    assert_eq!(status.stored_bytes, status.native.bytes + status.compatible.bytes);
    assert!(store.close(PATIENCE));

    for (path, mode) in [(root.path().join("task-1"), 0o755), (dir(root.path(), 3), 0o755)] {
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, mode);
    }
    for file in RankFiles::list(&dir(root.path(), 0)).unwrap().files {
        assert_eq!(fs::metadata(file.path).unwrap().permissions().mode() & 0o777, 0o644);
    }
}

#[test]
fn a_long_file_ends_and_the_next_is_named_after_it() {
    let root = tempfile::tempdir().unwrap();
    let store = TraceStore::open(StoreConfig { file_bytes: 2000, ..config(root.path()) }).unwrap();
    let batches = training(0, 60, 1);
    let status = store_each(&store, &batches);
    assert!(status.native.files > 2 && status.compatible.files > 10, "{status:?}");
    for format in Format::ALL {
        assert!(all_records(&stored(root.path(), 0, format)) == all_records(&batches));
    }
    let files = RankFiles::list(&dir(root.path(), 0)).unwrap().files;
    assert_eq!(files.len() as u64, status.native.files + status.compatible.files);
    let lengths = files.iter().map(|file| fs::metadata(&file.path).unwrap().len());
    assert!(lengths.clone().all(|bytes| bytes < 2000 + 10_000), "a batch more at most: {lengths:?}");
}

#[test]
fn a_clock_that_was_set_back_gives_names_above_those_before() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir(root.path(), 0)).unwrap();
    fs::write(dir(root.path(), 0).join("9999999990.taskd"), "").unwrap();
    let native = StoreConfig { formats: vec![Format::Native], file_bytes: 1, ..config(root.path()) };
    let store = TraceStore::open(native).unwrap();
    let batches = training(0, 12, 1);
    let status = store_each(&store, &batches);
    assert_eq!((status.native.files, status.native.failures), (9, 3), "{status:?}");
    let newest = RankFiles::list(&dir(root.path(), 0)).unwrap().files.pop().unwrap();
    assert_eq!(newest.seconds, 9_999_999_999);
    assert!(status.trouble.unwrap().contains("greatest number"));
    assert!(all_records(&stored(root.path(), 0, Format::Native)) == all_records(&batches[..9]));
}

#[test]
fn lines_go_on_in_the_newest_file_and_a_torn_one_costs_itself() {
    let root = tempfile::tempdir().unwrap();
    let batches = training(0, 3, 1);
    for (batch, torn) in batches.iter().zip([true, true, false]) {
        let store = TraceStore::open(StoreConfig { formats: vec![Format::Compatible], ..config(root.path()) }).unwrap();
        store_each(&store, std::slice::from_ref(batch));
        assert!(store.close(PATIENCE));
        let file = RankFiles::list(&dir(root.path(), 0)).unwrap().files.pop().unwrap().path;
        let mut bytes = fs::read(&file).unwrap();
        bytes.truncate(bytes.len() - if torn { 30 } else { 0 });
        fs::write(&file, bytes).unwrap();
    }
    let files = RankFiles::list(&dir(root.path(), 0)).unwrap().files;
    let [file] = &files[..] else { panic!("one file: {files:?}") };
    let mut reader = file.read(Rank(0)).unwrap();
    let back: Vec<_> = reader.by_ref().collect();
    assert_eq!(records(&back), records(&batches) - 2);
    assert!(matches!(reader.skipped().problems[..], [Problem::Damaged { .. }, Problem::Damaged { .. }]));
}

#[test]
fn the_oldest_files_go_and_nothing_that_is_not_ours() {
    let root = tempfile::tempdir().unwrap();
    let at = |path: &str| root.path().join(path);
    let ours = ["other/7/1000000000", "task-1/0/1000000001.taskd", "other/0/1000000002", "other/7/1000000003.taskd"];
    let foreign = [
        "other/7/parallel_group.json",
        "other/7/1000000000.bak",
        "other/7/notes",
        "other/notes/1000000000",
        "other/1000000000",
        "1000000000",
    ];
    for path in ours.iter().chain(&foreign) {
        fs::create_dir_all(at(path).parent().unwrap()).unwrap();
        fs::write(at(path), vec![b'\n'; 25_000]).unwrap();
    }
    symlink(at("other/notes"), at("other/9")).unwrap();
    let quota =
        StoreConfig { formats: vec![Format::Native], bytes_max: 100_000, file_bytes: 10_000, ..config(root.path()) };
    let store = TraceStore::open(quota).unwrap();
    let status = store_each(&store, &training(0, 1, 1));
    assert_eq!((status.deleted_files, status.deleted_bytes), (1, 25_000), "{status:?}");
    assert_eq!(status.stored_bytes, 75_000 + status.native.bytes);
    assert_eq!(ours.map(|path| at(path).exists()), [false, true, true, true], "the oldest, of whichever task");
    assert!(foreign.iter().all(|path| at(path).exists()));

    let status = store_each(&store, &training(0, 400, 1));
    assert!(status.deleted_files > 1 && status.trouble.is_none(), "{status:?}");
    assert!(status.stored_bytes <= 100_000, "{status:?}");
    let on_disk: u64 = ["other/7", "task-1/0", "other/0"]
        .iter()
        .flat_map(|dir| RankFiles::list(&at(dir)).unwrap().files)
        .map(|file| fs::metadata(file.path).unwrap().size())
        .sum();
    assert_eq!(on_disk, status.stored_bytes, "counted, and never walked again");
}

#[test]
fn store_beside_100000_foreign_files_holds_all_records() {
    let root = tempfile::tempdir().unwrap();
    let rank = dir(root.path(), 0);
    fs::create_dir_all(&rank).unwrap();
    (0..100_000).for_each(|n| drop(fs::File::create(rank.join(format!("{n}.foreign"))).unwrap()));
    let store = TraceStore::open(config(root.path())).unwrap();
    let batches = training(0, 10, 1);
    let status = store_each(&store, &batches);
    assert_eq!((status.native.records, status.is_partial), (records(&batches), false));
    let found = RankFiles::list(&rank).unwrap();
    assert_eq!((found.files.len(), found.others_count, found.others.len()), (2, 100_000, 16));
}

#[test]
fn a_removed_directory_is_made_again_and_what_was_in_it_is_counted() {
    let root = tempfile::tempdir().unwrap();
    let store = TraceStore::open(config(root.path())).unwrap();
    let batches = training(0, 20, 1);
    store_each(&store, &batches[..10]);
    fs::remove_dir_all(root.path().join("task-1")).unwrap();
    let status = store_each(&store, &batches[10..]);
    assert_eq!((status.native.files, status.native.files_removed), (2, 1));
    assert!(all_records(&stored(root.path(), 0, Format::Native)) == all_records(&batches[10..]));
    assert_eq!(status.trouble, None);

    fs::remove_dir_all(root.path()).unwrap();
    let status = store_each(&store, &batches[..10]);
    assert!(status.trouble.unwrap().contains("create this directory"), "the root is not ours to make");
    assert!(!root.path().exists());
    fs::create_dir(root.path()).unwrap();
    let status = store_each(&store, &batches[10..]);
    assert!(status.trouble.is_none() && status.last_error.is_some());
    let back = stored(root.path(), 0, Format::Native);
    assert_eq!(lost(&back), status.native.lost, "what is missing stands in the file");
}

#[test]
fn symbolic_links_are_not_followed() {
    let root = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("task-1")).unwrap();
    symlink(elsewhere.path(), dir(root.path(), 0)).unwrap();
    fs::create_dir(dir(root.path(), 1)).unwrap();
    fs::write(elsewhere.path().join("victim"), "").unwrap();
    symlink(elsewhere.path().join("victim"), dir(root.path(), 1).join("1700000000")).unwrap();
    let store = TraceStore::open(config(root.path())).unwrap();
    let status = store_each(&store, &training(0, 2, 1));
    assert_eq!((status.native.records, status.compatible.records), (0, 0));
    assert!(status.trouble.unwrap().contains("symbolic links are not followed"));
    let status = store_each(&store, &training(1, 2, 1));
    assert!(status.compatible.files == 1 && status.trouble.is_none(), "another file: {status:?}");
    assert_eq!(fs::metadata(elsewhere.path().join("victim")).unwrap().len(), 0);
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 1);
}

/// A mount lives in the test's own namespace only, so it is gone with it whatever happens.
fn small_disk(test: &str) -> Option<PathBuf> {
    elsewhere(test, &["--mount", "--map-root-user"], "mount -t tmpfs -o size=256k tmpfs \"$0\" && exec \"$@\"")
}

#[test]
fn a_full_disk_loses_records_until_there_is_room_again() {
    let Some(disk) = small_disk("trace_store::a_full_disk_loses_records_until_there_is_room_again") else { return };
    let store = TraceStore::open(config(&disk.join("root"))).unwrap();
    let batches = training(0, 400, 1);
    let mut status = store_each(&store, &batches[..5]);
    fs::write(disk.join("somebody-elses"), vec![0; 200 << 10]).unwrap();
    let mut stored_batches = 5;
    while status.trouble.is_none() {
        status = store_each(&store, &batches[stored_batches..=stored_batches]);
        stored_batches += 1;
    }
    assert!(status.trouble.unwrap().contains("free some space on this disk"));
    status = store_each(&store, &batches[stored_batches..stored_batches + 20]);
    assert!(status.compatible.lost > 0 && status.compatible.failures > 0, "{status:?}");

    fs::remove_file(disk.join("somebody-elses")).unwrap();
    status = store_each(&store, &batches[stored_batches + 20..stored_batches + 30]);
    assert_eq!(status.trouble, None);
    for format in Format::ALL {
        let back = stored(&disk.join("root"), 0, format);
        let counts = status.counts(format);
        assert_eq!(
            (records(&back), lost(&back)),
            (counts.records, counts.lost),
            "{format:?}: every record is accounted for"
        );
        assert_eq!(records(&back) + lost(&back), records(&batches[..stored_batches + 30]));
    }
}

#[test]
fn store_on_a_read_only_root_counts_losses_and_closes() {
    let test = "trace_store::store_on_a_read_only_root_counts_losses_and_closes";
    let script = "mount -t tmpfs -o ro,size=64k tmpfs \"$0\" && exec \"$@\"";
    let Some(disk) = elsewhere(test, &["--mount", "--map-root-user"], script) else { return };
    let store = TraceStore::open(config(&disk.join("root"))).unwrap();
    let batches = training(0, 50, 1);
    let status = store_each(&store, &batches);
    assert_eq!((status.native.records, status.native.lost), (0, records(&batches)));
    assert!(status.trouble.is_some_and(|why| why.starts_with("records cannot be stored in")));
    assert!(store.close(PATIENCE));
}

#[test]
fn invalid_store_settings_are_refused_with_their_name() {
    let wrong = |task: &str| TraceStore::open(StoreConfig::new("/tmp", task)).unwrap_err().to_string();
    for task in ["", ".", "..", "a/b", &"x".repeat(256)] {
        assert!(wrong(task).contains("store.task"), "{task}");
    }
    let long = StoreConfig::new("/x".repeat(600), "t");
    assert!(TraceStore::open(long).unwrap_err().to_string().contains("store.root"));
    let none = StoreConfig { formats: Vec::new(), ..StoreConfig::new("/tmp", "t") };
    assert!(TraceStore::open(none).is_err());
}
