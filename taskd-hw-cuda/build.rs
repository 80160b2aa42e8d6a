//! Builds `libtaskd_cupti.so` of `src/cupti/probe`, which travels inside every program that uses this crate.

use taskd_probe::library::Library;

const PROBE: Library = Library {
    name: "taskd_cupti",
    root: "src/cupti/probe/lib.rs",
    sources: &["build.rs", "src/cupti/probe"],
    without: "ranks record no activity of their GPUs",
};

fn main() {
    PROBE.build();
}
