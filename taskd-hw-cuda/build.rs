//! Builds `libtaskd_cupti.so` of `src/cupti/probe`, which travels inside every program that uses this crate.

#[path = "build/library.rs"]
mod library;

use library::Library;

const PROBE: Library = Library {
    name: "taskd_cupti",
    root: "src/cupti/probe/lib.rs",
    sources: &["build.rs", "build/library.rs", "src/cupti/probe"],
    without: "ranks record nothing of what their GPUs do",
};

fn main() {
    PROBE.build();
}
