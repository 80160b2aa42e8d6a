//! The Python process that runs scenarios (`fork_server.py`): started by the first, used by all, one at a time.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;

use serde_json::json;
use taskd_core::launch::python::write_helper;
use taskd_pytorch::PYTHON_FILES;

const DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/recovery");

/// Scenarios need both cores of a small machine, so the lock is held for as long as one runs.
static SERVER: Mutex<Option<ForkServer>> = Mutex::new(None);

struct ForkServer {
    process: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl ForkServer {
    fn start(python: &Path) -> ForkServer {
        // The process removes the helper's directory at its end, because nothing drops a static.
        let helper = tempfile::tempdir().unwrap().keep();
        write_helper(&helper, PYTHON_FILES).unwrap();
        let mut command = Command::new(python);
        command.arg(format!("{DIRECTORY}/fork_server.py")).arg(&helper).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.env("REFERENCES", &helper); // removed with it
        command.env("PYTHONPATH", &helper).env("PYTHONDONTWRITEBYTECODE", "1").env("OMP_NUM_THREADS", "1");
        for name in ["TASKD_CONTROL", "TASKD_LIFELINE", "TASKD_LIB", "TASKD_HANDOFF"] {
            command.env_remove(name);
        }
        let mut process = command.spawn().unwrap();
        let (requests, answers) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        ForkServer { process, requests, answers: BufReader::new(answers) }
    }

    /// Runs a program to its end, and returns its exit code; a negative number is the signal that has ended it.
    fn run(&mut self, program: &str, arguments: &[&str], output: &Path) -> Option<i32> {
        let program = format!("{DIRECTORY}/{program}");
        let request = json!({ "program": program, "arguments": arguments, "output": output });
        writeln!(self.requests, "{request}").ok()?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer).ok()?;
        answer.trim().parse().ok()
    }
}

impl Drop for ForkServer {
    fn drop(&mut self) {
        let _ = self.process.kill(); // it may have ended
        let _ = self.process.wait();
    }
}

/// Runs a program of this directory with `arguments`, and fails the test with its output unless it succeeds.
pub(super) fn run(python: &Path, program: &str, arguments: &[&str]) {
    let mut server = SERVER.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let output = tempfile::NamedTempFile::new().unwrap();
    let code = server.get_or_insert_with(|| ForkServer::start(python)).run(program, arguments, output.path());
    if code.is_none() {
        *server = None; // the next test starts another one
    }
    drop(server);
    let message = String::from_utf8_lossy(&std::fs::read(output.path()).unwrap()).into_owned();
    assert_eq!(code, Some(0), "{program} {arguments:?}\n{message}");
}
