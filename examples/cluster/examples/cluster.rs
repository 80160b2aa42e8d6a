//! A PyTorch training on many hosts: `cluster train` on every host, or `cluster manager` on one and `cluster agent` on the
//! others.
//!
//! ```text
//! cargo run --release -p taskd-cluster-example --example cluster -- manager --dir /tmp/a --address 10.0.0.1 \
//!     --hosts 2 --ranks 2 -- python3 train.py
//! cargo run --release -p taskd-cluster-example --example cluster -- agent --dir /tmp/b --manager 10.0.0.1:9601
//! ```

use std::process::ExitCode;
use taskd_core::launch::guard;
use taskd_pytorch::store;

fn main() -> ExitCode {
    guard::init(); // this program is also the guard, in which this call does not return
    store::init(); // nor does it return in the store
    taskd_cluster_example::run()
}
