//! The guard of a local job, for programs that cannot start themselves as one. Started by a launcher, never by hand.

use std::process::ExitCode;

fn main() -> ExitCode {
    taskd_core::launch::guard::main()
}
