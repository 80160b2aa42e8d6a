//! The environment of CANN, as produced by its `set_env.sh`.
//!
//! The script runs in a separate shell, whose resulting environment is read; this process's environment does not
//! change. The script is not parsed, since it tests for files and calls other scripts.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

/// Path at which the vendor's installer puts CANN's `set_env.sh`, the script that sets the environment of CANN.
pub const SET_ENV: &str = "/usr/local/Ascend/ascend-toolkit/set_env.sh";
/// Maximum size of the environment that CANN's `set_env.sh` may produce, in bytes (4 MiB). The part beyond the maximum
/// is not read, so [`CannEnv::read`] returns an error.
pub const VARIABLES_BYTES_MAX: usize = 4 << 20;

/// Variables that a shell sets by itself.
const OF_THE_SHELL: [&str; 4] = ["_", "PWD", "OLDPWD", "SHLVL"];

/// The environment variables that CANN, Ascend's toolkit, needs and that differ from those of this process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CannEnv(BTreeMap<String, String>);

/// Reason why the environment of CANN, Ascend's toolkit, is unavailable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CannError {
    /// The script `set_env.sh` does not exist at this path.
    #[error("{} is not there: install CANN, or name its set_env.sh", .0.display())]
    Missing(PathBuf),
    /// The shell that runs `set_env.sh` could not be started.
    #[error("bash cannot be started to read {}: {error}", path.display())]
    NoShell {
        /// Path of the script `set_env.sh`.
        path: PathBuf,
        /// Error of the operating system.
        error: io::Error,
    },
    /// The script `set_env.sh` did not end in time and was killed.
    #[error("{} did not end within {within:?}: run it by hand and see what it waits for", path.display())]
    TooLate {
        /// Path of the script `set_env.sh`.
        path: PathBuf,
        /// Time within which the script had to end.
        within: Duration,
    },
    /// The script `set_env.sh` ended with an error.
    #[error("{} failed: {told}", path.display())]
    Failed {
        /// Path of the script `set_env.sh`.
        path: PathBuf,
        /// The last part of the output of `set_env.sh`.
        told: String,
    },
    /// The environment that the script `set_env.sh` produced is invalid.
    #[error("the environment from {} cannot be read: {problem}", path.display())]
    Unreadable {
        /// Path of the script `set_env.sh`.
        path: PathBuf,
        /// Description of the problem, such as a variable that is not UTF-8.
        problem: &'static str,
    },
}

impl CannEnv {
    /// Runs CANN's script, such as [`SET_ENV`], with this process's environment, and returns the variables that the
    /// script changes. Blocks for at most `within`.
    ///
    /// # Errors
    /// Returns [`CannError`] if the script is missing, fails, does not end within `within`, or produces an invalid
    /// environment. The job can start nevertheless if CANN's environment is already set in its launcher's process.
    pub fn read(script: impl AsRef<Path>, within: Duration) -> Result<CannEnv, CannError> {
        let path = script.as_ref().to_owned();
        if !path.is_file() {
            return Err(CannError::Missing(path));
        }
        // The script's output goes to stderr; stdout contains only the environment. `$1` prevents that odd names are
        // run as code.
        let mut bash = Command::new("bash");
        bash.args(["--noprofile", "--norc", "-c", "exec 3>&1 1>&2; source \"$1\" || exit; exec env -0 >&3", "bash"]);
        bash.arg(&path).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let child = bash.spawn().map_err(|error| CannError::NoShell { path: path.clone(), error })?;
        let output = read_within(child, within).ok_or_else(|| CannError::TooLate { path: path.clone(), within })?;
        if !output.is_success {
            return Err(CannError::Failed { path, told: output.told });
        }
        let inherited = |name: &str| std::env::var(name).ok();
        CannEnv::of_variables(&output.variables, inherited).map_err(|problem| CannError::Unreadable { path, problem })
    }

    /// Parses the output of `env -0`, and returns the variables that differ from the `inherited` ones.
    ///
    /// # Errors
    /// Returns a description of the problem if the output is cut off, or contains a variable without a name, without a
    /// value, or that is not UTF-8.
    pub fn of_variables(printed: &[u8], inherited: impl Fn(&str) -> Option<String>) -> Result<CannEnv, &'static str> {
        let Some((&0, printed)) = printed.split_last() else { return Err("its last variable is cut off") };
        let mut variables = BTreeMap::new();
        for variable in printed.split(|byte| *byte == 0) {
            let variable = str::from_utf8(variable).map_err(|_| "a variable is not UTF-8")?;
            let (name, value) = variable.split_once('=').ok_or("a variable has no value")?;
            if name.is_empty() {
                return Err("a variable has no name");
            }
            let is_function = name.ends_with("%%"); // exported functions of bash
            let is_new = !is_function && !OF_THE_SHELL.contains(&name) && inherited(name).as_deref() != Some(value);
            if is_new {
                variables.insert(name.to_owned(), value.to_owned());
            }
        }
        Ok(CannEnv(variables))
    }

    /// Returns the variables by name.
    #[must_use]
    pub const fn variables(&self) -> &BTreeMap<String, String> {
        &self.0
    }
}

/// Output of the shell.
struct Printed {
    variables: Vec<u8>,
    told: String,
    is_success: bool,
}

/// Reads stdout and stderr of the child to their ends. On timeout, kills the child's process group and returns `None`.
fn read_within(mut child: Child, within: Duration) -> Option<Printed> {
    let (send, receive) = channel();
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let limit = VARIABLES_BYTES_MAX as u64;
    thread::spawn(move || {
        let other = thread::spawn(move || stderr.map(|stderr| all_of(stderr, limit)).unwrap_or_default());
        let variables = stdout.map(|stdout| all_of(stdout, limit)).unwrap_or_default();
        let _ = send.send((variables, other.join().unwrap_or_default()));
    });
    let read = receive.recv_timeout(within).ok();
    if read.is_none() {
        let group = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
        if let Some(group) = group {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
    }
    let status = child.wait();
    let (variables, told) = read?;
    let told = String::from_utf8_lossy(&told[told.len().saturating_sub(1000)..]).trim().to_owned();
    Some(Printed { variables, told, is_success: status.is_ok_and(|status| status.success()) })
}

fn all_of(stream: impl Read, limit: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut stream = stream.take(limit);
    let _ = stream.read_to_end(&mut bytes); // a failed read keeps the bytes until then
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    const WITHIN: Duration = Duration::from_secs(20);

    fn script(text: &str) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("set env.sh");
        std::fs::write(&path, text).unwrap();
        (dir, path)
    }

    #[test]
    fn cann_environment_contains_only_variables_the_script_changed() {
        let (_dir, path) = script(
            "echo chatter; export ASCEND_HOME_PATH=/cann; export PATH=/cann/bin:$PATH; local_only=1; cd /; \
             export ODD=$'a\\nb=c'; f() { :; }; export -f f",
        );
        let env = CannEnv::read(&path, WITHIN).unwrap();
        let names: Vec<&str> = env.variables().keys().map(String::as_str).collect();
        assert_eq!(names, ["ASCEND_HOME_PATH", "ODD", "PATH"]);
        assert_eq!(env.variables()["ODD"], "a\nb=c");
        assert!(env.variables()["PATH"].starts_with("/cann/bin:"));
    }

    #[test]
    fn cann_script_that_fails_hangs_or_is_missing_is_an_error() {
        let (_dir, path) = script("echo 'no such driver' >&2; return 3");
        let error = CannEnv::read(&path, WITHIN).unwrap_err().to_string();
        assert!(error.ends_with("failed: no such driver"), "{error}");
        let (_dir, path) = script("sleep 600 & sleep 600");
        let begun = Instant::now();
        let error = CannEnv::read(&path, Duration::from_millis(200)).unwrap_err();
        assert!(matches!(error, CannError::TooLate { .. }) && begun.elapsed() < WITHIN, "{error}");
        assert!(matches!(CannEnv::read("/no/set_env.sh", WITHIN), Err(CannError::Missing(_))));
    }
}
