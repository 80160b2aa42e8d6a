//! Builds `libtaskd_mspti.so` of `src/mspti/probe`, which travels inside every program that uses this crate.

use taskd_probe::library::Library;

const PROBE: Library = Library {
    name: "taskd_mspti",
    root: "src/mspti/probe/lib.rs",
    sources: &["build.rs", "src/mspti/probe"],
    without: "ranks record no activity of their devices",
};

fn main() {
    PROBE.build();
}
