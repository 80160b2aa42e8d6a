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
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{said}");
    said.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn each_is_refused_in_one_sentence() {
    let sentences = [
        ("quickstart --ranks -1", "error: unexpected argument '--ranks' found"),
        ("quickstart --steps 0", "error: invalid value '0' for '--steps <STEPS>': 0 is not in 100..=1000000"),
        ("quickstart --steps many", "error: invalid value 'many' for '--steps <STEPS>': invalid digit found in string"),
        ("quickstart --seed -1", "error: invalid value '-1' for '--seed <SEED>': invalid digit found in string"),
        ("quickstart --sede 3", "error: unexpected argument '--sede' found"),
        ("quickstart more", "error: unexpected argument 'more' found"),
        ("quickstart rank --steps 0", "error: the following required arguments were not provided:"),
        (
            "pytorch_ddp --steps -100",
            "error: invalid value '-100' for '--steps <STEPS>': invalid digit found in string",
        ),
        ("pytorch_ddp --kills 3", "error: unexpected argument '--kills' found"),
    ];
    for (command_line, sentence) in sentences {
        assert_eq!(refusal(command_line), sentence, "{command_line}");
    }
}
