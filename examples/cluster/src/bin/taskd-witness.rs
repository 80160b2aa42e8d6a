//! A voter without ranks: with one on a third machine, a training on two hosts survives the loss of either.
//!
//! ```text
//! taskd-witness --dir /var/lib/taskd --voters h1=10.0.0.1:9601,h2=10.0.0.2:9601 --witness w=10.0.0.3:9601
//! ```
//!
//! The hosts are started with the same `--voters` and `--witness`. Like them, the witness proves that it belongs to the
//! job with a certificate or the job's token (`TASKD_TLS_*`, `TASKD_JOB_TOKEN`).

use std::process::ExitCode;

fn main() -> ExitCode {
    taskd_cluster_example::run_witness()
}
