//! Command lines that cannot be meant: each is refused at once, in one sentence that names the word and what would do.

use std::path::PathBuf;
use std::process::{Command, Stdio};

/// What an example says to a command line that it refuses: its first line, after which nothing was started.
fn refusal(command_line: &str) -> String {
    let (name, args) = command_line.split_once(' ').expect("a program and its flags");
    let test = std::env::current_exe().expect("a running program has a path");
    let target: PathBuf = test.parent().and_then(|deps| deps.parent()).expect("target/PROFILE/deps").join("examples");
    let program = target.join(name);
    assert!(program.exists(), "{} is not built; `cargo test --workspace` builds it", program.display());
    let output = Command::new(program).args(args.split(' ')).stdin(Stdio::null()).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(64), 0), "{said}");
    said.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn each_is_refused_in_one_sentence() {
    let steps = |given: &str| {
        format!("error: invalid value '{given}' for '--steps <STEPS>': must be a whole number from 100 to 1000000")
    };
    let sentences = [
        ("quickstart --ranks -1", "error: unexpected argument '--ranks' found".to_owned()),
        ("quickstart --steps 0", steps("0")),
        ("quickstart --steps many", steps("many")),
        (
            "quickstart --seed -1",
            "error: invalid value '-1' for '--seed <SEED>': must be a whole number from 0 to 18446744073709551615"
                .into(),
        ),
        ("quickstart --sede 3", "error: unexpected argument '--sede' found".into()),
        ("quickstart more", "error: unexpected argument 'more' found".into()),
        ("quickstart rank --steps 0", "error: the following required arguments were not provided:".into()),
        ("pytorch_ddp --steps -100", steps("-100")),
        ("pytorch_ddp --kills 3", "error: unexpected argument '--kills' found".into()),
        (
            "simulate --seeds -1",
            "error: invalid value '-1' for '--seeds <SEEDS>': must be a whole number from 1 to 10000000".into(),
        ),
        (
            "chaos_pytorch --kills -1",
            "error: invalid value '-1' for '--kills <KILLS>': must be a whole number from 1 to 100000".into(),
        ),
        (
            "chaos_recovery --strategy dump-exit",
            "error: invalid value 'dump-exit' for '--strategy <STRATEGY>': such a job ends by its first fault; choose another strategy".into(),
        ),
        (
            "bench_core --kills 0",
            "error: invalid value '0' for '--kills <KILLS>': must be a whole number from 1 to 100000".into(),
        ),
        (
            "bench_recovery --n 0",
            "error: invalid value '0' for '--n <N>': must be a whole number from 1 to 10000".into(),
        ),
        (
            "bench_recovery --state-mib 9",
            "error: invalid value '9' for '--state-mib <STATE_MIB>': must be a whole number from 1 to 8".into(),
        ),
        (
            "mindspore_train --faults 0",
            "error: invalid value '0' for '--faults <FAULTS>': must be a whole number from 1 to 10000".into(),
        ),
        ("mindspore_train --kills 3", "error: unexpected argument '--kills' found".into()),
        ("embed_host --sede 3", "error: unexpected argument '--sede' found".into()),
        ("embed_host servise /tmp", "error: unrecognized subcommand 'servise'".into()),
        (
            "embed_host --seed -1",
            "error: invalid value '-1' for '--seed <SEED>': must be a whole number from 0 to 18446744073709551615"
                .into(),
        ),
        (
            "observe --ranks 1",
            "error: invalid value '1' for '--ranks <RANKS>': must be a whole number from 2 to 64".into(),
        ),
        (
            "observe --jobs 0",
            "error: invalid value '0' for '--jobs <JOBS>': must be a whole number from 1 to 1000".into(),
        ),
        ("observe --pairs", "error: a value is required for '--pairs <PAIRS>' but none was supplied".into()),
        ("observe --job 3", "error: unexpected argument '--job' found".into()),
        ("observe watch --agent 1", "error: the following required arguments were not provided:".into()),
        ("custom_plugin --jsno", "error: unexpected argument '--jsno' found".into()),
    ];
    for (command_line, sentence) in sentences {
        assert_eq!(refusal(command_line), sentence, "{command_line}");
    }
}

#[test]
fn each_of_gpu_watch_is_refused_in_one_sentence() {
    let sentences = [
        (
            "gpu_watch --interval-ms 0",
            "error: invalid value '0' for '--interval-ms <INTERVAL_MS>': must be a whole number from 20 to 3600000",
        ),
        (
            "gpu_watch --seconds -1",
            "error: invalid value '-1' for '--seconds <SECONDS>': must be a whole number from 0 to 1000000",
        ),
        (
            "gpu_watch --stand-in --library x",
            "error: the argument '--stand-in' cannot be used with '--library <LIBRARY>'",
        ),
        ("gpu_watch trace --json", "error: the following required arguments were not provided:"),
    ];
    for (command_line, sentence) in sentences {
        assert_eq!(refusal(command_line), sentence, "{command_line}");
    }
}

#[test]
fn each_of_chaos_frameworks_is_refused_in_one_sentence() {
    let range = "error: invalid value '0' for '--kills <KILLS>': must be a whole number from 1 to 10000";
    let sentences = [
        ("chaos_frameworks --kills 0", range),
        ("chaos_frameworks --loops ddp,none", "error: invalid value 'none' for '--loops <LOOPS>'"),
    ];
    for (command_line, sentence) in sentences {
        assert_eq!(refusal(command_line), sentence, "{command_line}");
    }
}
