//! A store for torch's clients, as a process of its own, started by a launcher or manually with `--control PATH`.

use std::process::ExitCode;

fn main() -> ExitCode {
    taskd_pytorch::store::main()
}
