//! Faults come in while the disk under the logs is full: they are judged, the job recovers, and what is lost is counted.

use crate::elsewhere::elsewhere;
use crate::support::*;
use serde_json::json;
use std::fs;
use taskd_core::journal::JournalConfig;
use taskd_core::runtime::control::SocketLimits;

const SELF: &str = "full_disk::faults_on_a_full_disk_are_recovered_from_and_counted";

#[tokio::test]
async fn faults_on_a_full_disk_are_recovered_from_and_counted() {
    let mount = "mount -t tmpfs -o size=256k none \"$0\" && exec \"$@\"";
    let Some(disk) = elsewhere(SELF, &["--mount", "--map-root-user"], mount) else { return };
    let config = JournalConfig { decisions_segment_bytes: 8192, ..JournalConfig::default() };
    let served = Served::with(SocketLimits::default(), |b| b.journal_with(disk.join("logs"), config)).await;
    fs::write(disk.join("somebody-elses"), vec![0; 1 << 20]).unwrap_err(); // as much as there is room for
    let mut client = served.client().await;
    let mut incarnation = 1;
    let trouble = loop {
        let fault = json!({"by": "watchdog", "class": "exit", "rank": 1, "text": "x".repeat(2000)});
        client.ok(json!({"do": "report_fault", "fault": fault})).await;
        incarnation += 1;
        served.all_run(incarnation).await;
        let logs = client.ok(json!({"do": "status"})).await["logs"].clone();
        if let Some(trouble) = logs["trouble"].as_str() {
            assert!(logs["counts"]["write_failures"].as_u64() > Some(0), "{logs}");
            break trouble.to_owned();
        }
        assert!(incarnation < 100, "the disk is full: {logs}");
    };
    assert!(trouble.contains("free some space"), "{trouble}");
    client.ok(fault()).await;
    served.all_run(incarnation + 1).await;
    assert!(served.handle.logs().unwrap().counts().lost > 0);
}
