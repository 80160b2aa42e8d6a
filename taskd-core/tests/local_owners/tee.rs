//! Output with its rank in front, on the supervisor's own.

use crate::harness::tests;
use crate::support::*;
use std::io::Read;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;
use taskd_core::launch::*;

tests![every_line_comes_once_with_its_rank_in_front, a_line_is_shown_ahead_of_its_end, unread_output_delays_no_rank,];

/// Is a supervisor that prints what its ranks print.
pub(crate) fn run(dir: &str, script: &str) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let launcher = builder(dir.as_ref()).log_bytes_max(1 << 20).tee(true).build().await.unwrap();
        for incarnation in 1..=2 {
            let orders = batch(incarnation, [sh(script), sh(script)]);
            launcher.start(&orders).await.unwrap();
            for order in &orders.starts {
                exit_of(&launcher, &order.proc).await;
            }
        }
        std::fs::write(format!("{dir}/exited"), "").unwrap();
        launcher.shutdown(Duration::ZERO).await.unwrap();
    });
    std::process::exit(0) // the thread that prints may hang in its output
}

fn supervisor(dir: &str, script: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["tee", dir, script]).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

async fn every_line_comes_once_with_its_rank_in_front() {
    let dir = tempfile::tempdir().unwrap();
    // An earlier job's output is not this one's.
    std::fs::create_dir_all(dir.path().join("procs/rank-0.1")).unwrap();
    let old = dir.path().join("procs/rank-0.1/stdout.log");
    std::fs::write(&old, "of an earlier job\n").unwrap();
    Command::new("touch").arg("-d").arg("2000-01-01").arg(&old).status().unwrap();

    let script = "echo I am $TASKD_PROC; i=0; while [ $i -lt 500 ]; do echo line $i; i=$((i+1)); done; \
                  echo oh >&2; printf 'no end'";
    let output = supervisor(dir.path().to_str().unwrap(), script).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for rank in [0, 1] {
        let prefix = format!("[rank {rank}] ");
        let mine: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix(&prefix)).collect();
        let expected = (1..=2).flat_map(|incarnation| {
            let lines = (0..500).map(|i| format!("line {i}"));
            [format!("I am rank-{rank}.{incarnation}")].into_iter().chain(lines).chain(["no end".to_owned()])
        });
        assert_eq!(mine, expected.collect::<Vec<_>>());
    }
    assert_eq!(text.lines().count(), 4 * 502);
    let mut errors: Vec<_> = output.stderr.split(|b| *b == b'\n').filter(|line| !line.is_empty()).collect();
    errors.sort();
    let (zero, one) = (&b"[rank 0] oh"[..], &b"[rank 1] oh"[..]);
    assert_eq!(errors, [zero, zero, one, one]);
}

/// The rank continues only after the printed part of a line was seen.
async fn a_line_is_shown_ahead_of_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let wait = |file: &str| format!("until [ -e {path}/{file} ]; do sleep 0.01; done");
    let script = format!(
        "[ $TASKD_PROC = rank-0.1 ] || exit 0; printf '\\r 0%%'; {}; printf '\\r 50%%\\r'; {}; printf '\\r100%%\\n'",
        wait("begun"),
        wait("half")
    );
    let mut supervisor = supervisor(path, &script).spawn().unwrap();
    let mut output = supervisor.stdout.take().unwrap();
    let mut printed = Vec::new();
    for (shown, next) in [("[rank 0]  0%", "begun"), ("[rank 0]  50%", "half")] {
        while !String::from_utf8_lossy(&printed).contains(shown) {
            let mut byte = [0; 1];
            assert_eq!(output.read(&mut byte).unwrap(), 1, "{shown} is not there");
            printed.extend(byte);
        }
        std::fs::write(dir.path().join(next), "").unwrap();
    }
    output.read_to_end(&mut printed).unwrap();
    assert!(supervisor.wait().unwrap().success());
    assert_eq!(String::from_utf8(printed).unwrap(), "[rank 0]  0%\n[rank 0]  50%\n[rank 0] 100%\n");
}

async fn unread_output_delays_no_rank() {
    let dir = tempfile::tempdir().unwrap();
    let mut supervisor =
        supervisor(dir.path().to_str().unwrap(), "head -c 500000 /dev/zero | tr '\\0' x").spawn().unwrap();
    eventually("all have exited", || dir.path().join("exited").exists().then_some(())).await;
    assert!(supervisor.wait().unwrap().success());
    let mut printed = Vec::new();
    supervisor.stdout.take().unwrap().read_to_end(&mut printed).unwrap();
    assert!(printed.len() < 2_000_000);
}
