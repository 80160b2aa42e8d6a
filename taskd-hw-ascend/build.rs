//! Builds `libtaskd_mspti.so` of `src/mspti/probe`, which travels inside every program that uses this crate.

#[path = "build/library.rs"]
mod library;

use library::Library;

const PROBE: Library = Library {
    name: "taskd_mspti",
    root: "src/mspti/probe/lib.rs",
    sources: &["build.rs", "build/library.rs", "src/mspti/probe"],
    without: "ranks record nothing of what their devices do",
};

fn main() {
    PROBE.build();
}
