//! A store for torch's clients, as a process of its own. Started by a launcher, or by hand with `--control PATH`.

use std::process::ExitCode;

fn main() -> ExitCode {
    taskd_pytorch::store::main()
}
