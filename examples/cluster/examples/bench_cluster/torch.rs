//! Measures torch's own rendezvous: `TCPStore`, with clients as threads of a few processes.

use crate::report::TorchStore;
use serde_json::Value;
use std::process::{Command, Stdio};

/// The program of the store and its clients.
const SCRIPT: &str = include_str!("torch_store.py");
/// Seconds after which no further client connects.
const SECONDS: &str = "120";

/// Connects clients to a store: as many as it takes in two minutes.
pub(crate) fn measure(clients: u32) -> Result<TorchStore, String> {
    let python = taskd_pytorch::venv::locate(&mut |text| eprintln!("{text}")).map_err(|error| error.to_string())?;
    let mut command = Command::new(python);
    command.args(["-c", SCRIPT, &clients.to_string(), SECONDS]).stderr(Stdio::inherit());
    let output = command.output().map_err(|error| format!("torch's store cannot be measured: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().last().unwrap_or_default();
    if !output.status.success() {
        return Err(format!("torch's store has failed ({}): stderr has the reason", output.status));
    }
    let value: Value = serde_json::from_str(line).map_err(|error| format!("torch's store: {error}: {line}"))?;
    let number = |name: &str| value[name].as_f64().unwrap_or(f64::NAN);
    Ok(TorchStore {
        wanted: clients,
        clients: value["clients"].as_u64().and_then(|clients| u32::try_from(clients).ok()).unwrap_or_default(),
        register_s: number("register_s"),
        broadcast_ms: number("broadcast_ms"),
        rss_mib: number("rss_mib"),
        rss_of_clients_mib: number("rss_of_clients_mib"),
    })
}
