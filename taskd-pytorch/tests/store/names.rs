//! A name service that does not answer, or answers late: the store does not ask it.

use crate::support::{say, torch_python};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

#[test]
fn without_a_name_service_clients_join_as_fast_as_ever() {
    let torch = torch_python("without_a_name_service: torch's own server beside ours");
    let system = Path::new(taskd_core::testing::python::system()).to_owned();
    let python = torch.as_ref().unwrap_or(&system);
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--net", "--mount"]).arg(python).current_dir(dir.path());
    command.args([concat!(env!("CARGO_MANIFEST_DIR"), "/tests/store/names.py"), env!("CARGO_BIN_EXE_taskd-store")]);
    command.args(torch.is_some().then_some("torch")).env("TORCH_CPP_LOG_LEVEL", "ERROR");
    let output = command.output().expect("unshare of util-linux");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let look_up = found["look_up"].as_f64().unwrap();
    assert!(look_up > 2.0, "a look-up takes its time there: {found}");
    for (state, one) in [("dead", 3.0), ("late", 0.5)] {
        let took = found[state]["ours"].as_f64().unwrap();
        assert!(took < one, "{state}: ten clients take less than one look-up: {found}");
    }
    if torch.is_some() {
        say(&format!("name service dead, then late: seconds until ten clients have joined: {found}"));
    }
}
