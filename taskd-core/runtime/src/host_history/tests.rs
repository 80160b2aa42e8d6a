use super::*;
use crate::job::{IncidentId, Name, WallTime};
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

#[test]
fn a_writer_that_hangs_is_reported_and_excludes_no_reader() {
    let (_dir, file) = file();
    file.add(&records(2)).unwrap();
    let held = file.lock().unwrap();
    let reason = file.add(&records(3)).unwrap_err().to_string();
    assert!(reason.ends_with("is locked by another process: end it, if it hangs"), "{reason}");
    assert_eq!(file.read().unwrap().history.len(), 2);
    drop(held);
    assert_eq!(file.add(&records(3)).unwrap(), 1);
}

#[test]
fn a_job_writes_in_a_thread_and_its_end_waits_for_it() {
    let (dir, _) = file();
    let file = HostHistoryFile::new(dir.path().join("new/deep/hosts.jsonl"));
    let writer = HostHistoryWriter::start(file.clone()).unwrap();
    assert!(writer.add(records(3)) && writer.add(records(5)));
    writer.close();
    assert_eq!(file.read().unwrap().history.len(), 5);
}
