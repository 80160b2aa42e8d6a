//! Builds `libtaskd.so` of `src/worker/abi`, which travels inside every program that uses this crate.

use taskd_probe::library::Library;

const LIBTASKD: Library = Library {
    name: "taskd",
    root: "src/worker/abi/lib.rs",
    sources: &["build.rs", "src/worker/abi", "src/trace/recorder"],
    without: "ranks record nothing",
};

fn main() {
    LIBTASKD.build();
}
