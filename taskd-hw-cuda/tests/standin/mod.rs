//! The stand-in for NVML, compiled once and copied for every test: each copy is a library of its own, with its own script.

#![allow(dead_code)] // every test binary uses a part of it

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use tempfile::TempDir;

/// A library that stands in for NVML, and what it is to say.
pub(crate) struct StandIn {
    dir: TempDir,
    lines: Vec<(String, String)>,
}

impl StandIn {
    /// Two healthy cards.
    pub(crate) fn new() -> StandIn {
        let dir = tempfile::tempdir().unwrap();
        std::fs::copy(compiled(), dir.path().join("libnvidia-ml.so.1")).unwrap();
        std::fs::write(dir.path().join("kernel.log"), "").unwrap();
        let mut stand_in = StandIn { dir, lines: Vec::new() };
        stand_in.set("devices", 2).set("driver", "580.82.07");
        for device in 0..2 {
            for (name, value) in [
                ("temperature", 45),
                ("slowdown", 95),
                ("shutdown", 100),
                ("gpu_max", 90),
                ("memory_max", 105),
                ("power_mw", 310_500),
                ("power_limit_mw", 700_000),
                ("utilization", 97),
                ("memory_used", 60 << 20),
                ("memory_total", 80 << 20),
                ("field.82", 60),
            ] {
                stand_in.set(&format!("{device}.{name}"), value);
            }
        }
        stand_in
    }

    /// The library's path.
    pub(crate) fn library(&self) -> PathBuf {
        self.dir.path().join("libnvidia-ml.so.1")
    }

    /// A file that takes the place of the kernel's log.
    pub(crate) fn kernel_log(&self) -> PathBuf {
        self.dir.path().join("kernel.log")
    }

    /// The driver writes a line into the kernel's log.
    pub(crate) fn log(&self, line: &str) {
        use std::io::Write;
        let mut file = std::fs::OpenOptions::new().append(true).open(self.kernel_log()).unwrap();
        file.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    /// From now on this is so.
    pub(crate) fn set(&mut self, key: &str, value: impl ToString) -> &mut StandIn {
        self.lines.retain(|(known, _)| known != key);
        self.lines.push((key.to_owned(), value.to_string()));
        self.write();
        self
    }

    /// From now on nothing is said of this.
    pub(crate) fn unset(&mut self, key: &str) -> &mut StandIn {
        self.lines.retain(|(known, _)| known != key);
        self.write();
        self
    }

    fn write(&self) {
        let text: String = self.lines.iter().map(|(key, value)| format!("{key} {value}\n")).collect();
        let (next, script) = (self.dir.path().join("next"), self.dir.path().join("libnvidia-ml.so.1.script"));
        std::fs::write(&next, text).unwrap();
        std::fs::rename(next, script).unwrap();
    }
}

/// The library, compiled once for each test binary.
fn compiled() -> &'static Path {
    static COMPILED: OnceLock<PathBuf> = OnceLock::new();
    COMPILED.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/standin/nvml.c");
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let (new, library) = (dir.join(format!("nvml-{}.so", std::process::id())), dir.join("nvml.so"));
        let mut cc = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".into()));
        cc.args(["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]).arg(&new).arg(&source).arg("-ldl");
        assert!(cc.status().expect("a C compiler").success(), "the stand-in does not compile");
        std::fs::rename(new, &library).unwrap();
        library
    })
}
