//! torch's client, all its calls, at this store and at torch's own server: the same program, the same answers.

use crate::service::Store;
use crate::support::torch_python;
use std::path::Path;
use std::process::Command;

/// What the program found at this port: each call by its name, and what it came to. Port 0 is torch's own server.
async fn found(python: &Path, port: u16, client: &str) -> Vec<(String, serde_json::Value)> {
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/store/calls.py");
    let mut command = Command::new(python);
    command.args([program, "127.0.0.1", &port.to_string(), client]).env("TORCH_CPP_LOG_LEVEL", "ERROR");
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}\n{stderr}"))
}

#[tokio::test]
async fn every_call_of_a_libuv_client_comes_to_what_it_does_at_torchs_server() {
    let Some(python) = torch_python("every_call_of_a_libuv_client") else { return };
    let mut store = Store::start().await;
    let port = store.serve(1).await.port();
    let (ours, torchs) = (found(&python, port, "uv").await, found(&python, 0, "uv").await);
    assert!(ours.len() > 100, "{}", ours.len());
    for (ours, torchs) in ours.iter().zip(&torchs) {
        assert_eq!(ours, torchs);
    }
    assert_eq!(ours.len(), torchs.len());
    let stats = store.until("without clients", |stats| stats.clients == 0).await;
    assert_eq!((stats.lost, stats.not_validated, stats.unknown_queries), (0, 0, 0), "{stats:#?}");
    assert_eq!(stats.generations[0].waits, 0);
}

#[tokio::test]
async fn every_call_of_a_plain_client_comes_to_what_it_does_at_torchs_server() {
    let Some(python) = torch_python("every_call_of_a_plain_client") else { return };
    let mut store = Store::start().await;
    let port = store.serve(1).await.port();
    let (ours, torchs) = (found(&python, port, "plain").await, found(&python, 0, "plain").await);
    let differ = ours.iter().zip(&torchs).filter(|(ours, torchs)| ours != torchs);
    let names: Vec<&str> = differ.map(|(ours, _)| ours.0.as_str()).collect();
    // torch's plain server knows no bounds; the libuv server, which is its default, has ours.
    assert_eq!(
        names,
        ["value beyond the bound", "key beyond the bound", "the value is as it was"],
        "{ours:#?} {torchs:#?}"
    );
    assert_eq!(ours.len(), torchs.len());
}
