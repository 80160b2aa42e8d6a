//! Invalid command lines: each is refused at once, in one sentence that names the argument and the valid values.

mod support;

use support::refusal;

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
        (
            "host_history --top 0",
            "error: invalid value '0' for '--top <TOP>': must be a whole number from 1 to 4096".into(),
        ),
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
