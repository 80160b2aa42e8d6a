//! What a manager reads, for the cases of `fuzz`.

use super::service;
use super::world::WorldRecord;
use crate::wire::proto::Hello;
use taskd_runtime::job::{JobSpec, NodeId, WorkerSpec};

/// Checks a Hello as the manager does.
pub(crate) fn read_hello(hello: Hello) -> Result<(), String> {
    service::read(hello, None).map(drop).map_err(|status| status.message().to_owned())
}

/// Returns valid records.
pub(crate) fn records() -> Vec<Vec<u8>> {
    let hosts = (0..8).map(|host| NodeId(format!("host-{host}").into()));
    let spec = JobSpec::new("job", 32, WorkerSpec::new(["train"])).with_nodes(hosts);
    let world = WorldRecord::default().with(&std::sync::Arc::new(spec.first_world()), None);
    let ended = WorldRecord { result: Some("completed".into()), ..world.clone() };
    [world, ended].iter().filter_map(|record| record.value().ok()).map(|value| value.to_vec()).collect()
}

/// Reads a record as a new manager does.
pub(crate) fn read_record(input: &[u8]) -> Result<(), String> {
    let record = WorldRecord::read(input)?;
    let _ = (record.resume(), record.procs());
    let Ok(value) = record.value() else { panic!("a record that was read cannot be written") };
    assert!(WorldRecord::read(&value).is_ok_and(|again| again == record), "a record changes when it is read again");
    Ok(())
}
