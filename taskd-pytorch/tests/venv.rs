//! The real environment: made on first use, then found.

mod support;

use std::process::Command;

#[test]
fn the_environment_runs_torch() {
    let Some(python) = support::torch_python("the_environment_runs_torch") else { return };
    let out = Command::new(python).args(["-c", "import torch; print(torch.ones(2).sum().item())"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&out.stdout), "2.0\n", "{}", String::from_utf8_lossy(&out.stderr));
}
