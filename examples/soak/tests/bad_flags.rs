//! Invalid command lines: each is refused at once, in one sentence that names the argument and the valid values.

#[path = "../../tests/support/mod.rs"]
mod support;

use support::refusal;

#[test]
fn each_is_refused_in_one_sentence() {
    let sentences = [
        (
            "chaos_pytorch --kills -1",
            "error: invalid value '-1' for '--kills <KILLS>': must be a whole number from 1 to 100000",
        ),
        (
            "chaos_recovery --strategy dump-exit",
            "error: invalid value 'dump-exit' for '--strategy <STRATEGY>': it ends the job; choose another strategy",
        ),
        (
            "bench_core --kills 0",
            "error: invalid value '0' for '--kills <KILLS>': must be a whole number from 1 to 100000",
        ),
        (
            "bench_diagnosis --runs -1",
            "error: invalid value '-1' for '--runs <RUNS>': must be a whole number from 0 to 10000",
        ),
        ("bench_analysis --mib 0", "error: invalid value '0' for '--mib <MIB>': must be a whole number from 1 to 4096"),
        ("bench_recovery --n 0", "error: invalid value '0' for '--n <N>': must be a whole number from 1 to 10000"),
        (
            "bench_recovery --state-mib 9",
            "error: invalid value '9' for '--state-mib <STATE_MIB>': must be a whole number from 1 to 8",
        ),
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
