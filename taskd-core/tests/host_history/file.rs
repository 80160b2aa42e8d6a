//! The file of the history: cut at every byte, damaged, newer, another user's, and written by several at once.

use proptest::prelude::*;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use taskd_core::host_history::{HostHistoryError, HostHistoryFile};
use taskd_core::job::{IncidentId, Name, NodeId, WallTime};
use taskd_core::state::{HostHistory, HostIncident};
use tempfile::TempDir;

fn file() -> (TempDir, HostHistoryFile) {
    let dir = tempfile::tempdir().unwrap();
    let file = HostHistoryFile::new(dir.path().join("hosts.jsonl"));
    (dir, file)
}

fn record(host: u64, number: u64) -> (NodeId, HostIncident) {
    let at = WallTime::from_unix_ms(1_782_875_564_123 + number);
    let (class, job) = (Name::new("device"), Name::new("llm"));
    (NodeId(Name::from(format!("node-{host}"))), HostIncident { at, class, job, incident: IncidentId(number) })
}

fn records(count: u64) -> Vec<(NodeId, HostIncident)> {
    (0..count).map(|number| record(number % 3, number)).collect()
}

fn why(result: Result<impl Sized, HostHistoryError>) -> String {
    result.err().expect("it is refused").to_string()
}

#[test]
fn the_file_is_json_lines_that_people_can_read_and_edit() {
    let (dir, file) = file();
    let missing = file.read().unwrap();
    assert!(missing.history.is_empty() && missing.unreadable == 0, "a missing file is empty");
    assert_eq!(file.add(&[record(7, 1), record(2, 0), record(7, 1)]).unwrap(), 2);
    let text = fs::read_to_string(file.path()).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], r#"{"host_history":1,"dropped":0,"unreadable":0}"#);
    assert!(lines[1].starts_with(r#"{"at":"2026-07-01T03:12:44.123Z","host":"node-2","class":"device","job":"llm","#));
    assert!(lines.len() == 3 && lines.iter().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()));
    assert_eq!(fs::metadata(file.path()).unwrap().mode() & 0o777, 0o600);
    let by_hand = r#"{"at":"2026-07-02T00:00:00.000Z","host":"node-9","class":"network","job":"llm","incident":4}"#;
    fs::write(file.path(), format!("{}\n{by_hand}\n\n{}\n", lines[0], lines[2])).unwrap();
    let read = file.read().unwrap();
    let hosts: Vec<&str> = read.history.iter().map(|(host, _)| host.0.as_str()).collect();
    assert_eq!((hosts, read.unreadable), (vec!["node-7", "node-9"], 0));
    assert!(dir.path().join("hosts.jsonl.lock").exists() && !dir.path().join("hosts.jsonl.new").exists());
}

#[test]
fn a_file_cut_at_any_byte_keeps_its_whole_lines_and_takes_more() {
    let (_dir, file) = file();
    file.add(&records(4)).unwrap();
    let whole = fs::read(file.path()).unwrap();
    for cut in 0..whole.len() {
        fs::write(file.path(), &whole[..cut]).unwrap();
        let read = file.read().unwrap_or_else(|error| panic!("cut at {cut}: {error}"));
        let ends = whole[..cut].iter().filter(|byte| **byte == b'\n').count();
        let is_whole = cut == 0 || whole[cut] == b'\n' || whole[cut - 1] == b'\n';
        let lines = ends + usize::from(is_whole && cut > 0 && whole[cut] == b'\n');
        assert_eq!(
            (read.history.len(), read.unreadable),
            (lines.saturating_sub(1), u64::from(!is_whole)),
            "cut at {cut}"
        );
        if !is_whole && cut % 8 > 0 {
            continue; // additions sync the disk
        }
        assert_eq!(file.add(&[record(5, 99)]).unwrap(), 1, "cut at {cut}");
        let after = file.read().unwrap();
        assert_eq!(
            (after.history.len(), after.unreadable),
            (read.history.len() + 1, read.unreadable),
            "the loss stays known"
        );
    }
}

#[test]
fn a_changed_byte_never_blames_another_host() {
    let (_dir, file) = file();
    file.add(&records(3)).unwrap();
    let whole = fs::read(file.path()).unwrap();
    let known = file.read().unwrap().history;
    let first = whole.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    for at in first..whole.len() {
        for bit in [0, 3, 6] {
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << bit;
            fs::write(file.path(), &damaged).unwrap();
            let read = file.read().unwrap();
            let is_known = |(host, incident): (&NodeId, &HostIncident)| known.covers(host, incident);
            assert!(read.history.iter().all(is_known), "byte {at}, bit {bit}");
            assert!(!read.history.is_empty() && (read.unreadable > 0 || read.history == known), "byte {at}, bit {bit}");
        }
    }
}

#[test]
fn garbage_is_skipped_and_a_file_of_another_kind_is_left_alone() {
    let (_dir, file) = file();
    file.add(&records(4)).unwrap();
    let whole = fs::read(file.path()).unwrap();
    let mut garbage = b"\xff\xfe no head\n".to_vec();
    garbage.extend([whole.as_slice(), b"{}\n\0\0\0\n", "x".repeat(9999).as_bytes()].concat());
    fs::write(file.path(), &garbage).unwrap();
    let read = file.read().unwrap();
    assert_eq!((read.history.len(), read.unreadable), (4, 5), "its former head is damage as well");
    for other in ["root:x:0:0:root:/root:/bin/bash\n", "{\"at\":1}", "\n\n", "[]\n"] {
        fs::write(file.path(), other).unwrap();
        let reason = why(file.add(&records(1)));
        assert!(reason.ends_with("is no history of hosts: name another file, or remove it"), "{reason}");
        assert_eq!(fs::read_to_string(file.path()).unwrap(), other);
    }
}

#[test]
fn a_newer_version_is_refused_by_its_number_and_kept() {
    let (_dir, file) = file();
    let newer = "{\"host_history\":2,\"shards\":[]}\n{\"a\":1}\n";
    fs::write(file.path(), newer).unwrap();
    for reason in [why(file.read()), why(file.add(&records(1)))] {
        assert!(reason.contains("has format version 2, this program reads up to 1: update it"), "{reason}");
    }
    assert_eq!(fs::read_to_string(file.path()).unwrap(), newer);
}

#[test]
fn many_writers_at_once_lose_nothing() {
    let (_dir, file) = file();
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let file = file.clone();
            scope.spawn(move || {
                for number in 0..10 {
                    assert!(file.add(&[record(writer, number), record(9, number)]).unwrap() > 0);
                }
            });
        }
    });
    let read = file.read().unwrap();
    assert_eq!(
        (read.history.len(), read.unreadable),
        (50, 0),
        "ten of each writer, and ten that all of them have added"
    );
}

#[test]
fn a_path_that_another_user_controls_is_refused() {
    let (dir, file) = file();
    file.add(&records(1)).unwrap();
    let link = HostHistoryFile::new(dir.path().join("link"));
    symlink(file.path(), link.path()).unwrap();
    assert!(why(link.read()).contains("is a symbolic link"));
    let open = dir.path().join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let reason = why(HostHistoryFile::new(open.join("hosts.jsonl")).add(&records(1)));
    assert!(reason.contains("other users may write to the directory"), "{reason}");
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(file.path(), Some(65_534), None).unwrap();
        assert!(why(file.read()).contains("belongs to user 65534"));
    }
}

#[test]
fn what_is_dropped_at_a_limit_is_counted_in_the_file() {
    let (_dir, file) = file();
    let many: Vec<_> = (0..70).map(|number| record(1, number)).collect();
    file.add(&many).unwrap();
    let read = file.read().unwrap();
    assert_eq!((read.history.len(), read.history.dropped()), (64, 6));
    assert_eq!(file.add(&many).unwrap(), 0, "what was dropped is not added again");
    let too_long = (NodeId(Name::from("x".repeat(4096))), record(0, 0).1);
    file.add(&[too_long]).unwrap();
    let read = file.read().unwrap();
    assert_eq!((read.history.len(), read.history.dropped(), read.unreadable), (64, 7, 0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// However records are divided among writers, and repeated: the file has each once, as one history would.
    #[test]
    fn additions_merge_in_any_order(
        numbers in prop::collection::vec((0..5_u64, 0..40_u64), 1..12), divide in 2..6_usize,
    ) {
        let (_dir, file) = file();
        let all: Vec<_> = numbers.into_iter().map(|(host, number)| record(host, number)).collect();
        let mut expected = HostHistory::new();
        for (host, incident) in &all {
            expected.record(host, incident.clone());
        }
        for part in all.chunks(divide).rev().chain(all.chunks(divide)) {
            file.add(part).unwrap();
        }
        let read = file.read().unwrap();
        prop_assert_eq!((read.history, read.unreadable), (expected, 0));
    }

    #[test]
    fn no_bytes_panic_a_reader(bytes in prop::collection::vec(any::<u8>(), 0..300), head in any::<bool>()) {
        let (_dir, file) = file();
        let mut content = if head { b"{\"host_history\":1}\n".to_vec() } else { Vec::new() };
        content.extend(bytes);
        fs::write(file.path(), &content).unwrap();
        if let Ok(read) = file.read() {
            prop_assert_eq!(read.history.len(), 0);
        }
    }
}
