//! The example's training script: checkpoints, resumption, the same result.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod support;

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

/// The ranks of one start of the example's script, as torchrun would start them.
fn start(python: &Path, dir: &Path, world: u16, steps: u32) -> Vec<Child> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/python/train_digits.py");
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let rank = |rank: u16| {
        Command::new(python)
            .args([script, "--checkpoint-every", "10", "--steps", &steps.to_string(), "--dir"])
            .arg(dir)
            .envs([("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &port), ("OMP_NUM_THREADS", "1")])
            .envs([("WORLD_SIZE", world.to_string()), ("RANK", rank.to_string())])
            .envs([("TASKD_GENERATION", steps.to_string())])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    (0..world).map(rank).collect()
}

/// Waits for all ranks and gives what they wrote to stderr.
fn finish(ranks: Vec<Child>) -> String {
    let outs = ranks.into_iter().map(|rank| rank.wait_with_output().unwrap());
    outs.map(|out| {
        let stderr = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(out.status.success(), "{stderr}");
        stderr
    })
    .collect()
}

fn result(dir: &Path) -> Value {
    serde_json::from_slice(&fs::read(dir.join("result.json")).unwrap()).unwrap()
}

#[test]
fn a_resumed_training_ends_as_an_undisturbed_one() {
    let Some(python) = support::torch_python("a_resumed_training_ends_as_an_undisturbed_one") else { return };
    let dir = tempfile::tempdir().unwrap();
    let (whole, resumed) = (dir.path().join("whole"), dir.path().join("resumed"));
    finish(start(&python, &whole, 3, 40));

    finish(start(&python, &resumed, 3, 30));
    let newest = resumed.join("checkpoint-00000030.pt");
    fs::File::options().write(true).open(&newest).unwrap().set_len(1000).unwrap();
    let output = finish(start(&python, &resumed, 3, 40));
    assert_eq!(output.matches("checkpoint-00000030.pt is passed over: ").count(), 1, "{output}");

    assert_eq!(result(&whole), result(&resumed));
    assert_eq!(result(&whole)["ranks_equal"], true);
    let metrics = fs::read_to_string(resumed.join("metrics.jsonl")).unwrap();
    let lines: Vec<Value> = metrics.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let steps: Vec<_> = lines.iter().map(|line| (&line["step"], &line["generation"])).collect();
    assert_eq!(steps.len(), 50, "30 steps, then 20 from the checkpoint of step 20");
    assert_eq!((steps[30].0.as_u64(), steps[30].1.as_u64()), (Some(21), Some(40)));
}

#[test]
fn a_full_disk_costs_checkpoints_and_metrics_but_not_the_training() {
    let Some(python) = support::torch_python("a_full_disk_costs_checkpoints_and_metrics_but_not_the_training") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let (whole, full) = (dir.path().join("whole"), dir.path().join("full"));
    finish(start(&python, &whole, 2, 40));

    fs::create_dir(&full).unwrap();
    for name in ["metrics.jsonl", "checkpoint-00000010.pt.tmp", "checkpoint-00000020.pt.tmp"] {
        std::os::unix::fs::symlink("/dev/full", full.join(name)).unwrap(); // every write: no space left on device
    }
    let output = finish(start(&python, &full, 2, 40));
    let sentences = ["metrics of step 1 not written, training goes on: ", "checkpoint of step 10 not written, "];
    assert!(sentences.iter().all(|sentence| output.matches(sentence).count() == 1), "{output}");
    assert_eq!(output.matches("not written").count(), 2, "each is printed once: {output}");

    assert_eq!(result(&whole), result(&full));
    let written = ["checkpoint-00000030.pt", "checkpoint-00000040.pt"].map(|name| full.join(name).exists());
    assert_eq!(written, [true; 2], "as soon as there is room");
}
