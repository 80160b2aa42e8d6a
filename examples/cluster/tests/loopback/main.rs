//! `cluster train` on loopback: real processes of several hosts, which are killed, with each consensus engine.
//!
//! Every host has an address of its own in 127.0.0.0/8. The ranks are a shell script, so that no test waits for torch.

#![allow(clippy::unwrap_used, reason = "this is a test")]

mod etcd;
mod hosts;
mod scenarios;

use std::process::ExitCode;
use taskd_cluster_example::run_if_role;
use taskd_core::launch::guard;
use taskd_pytorch::store;
use taskd_testing::testing::guarded_test;

fn main() -> ExitCode {
    guard::init(); // this program is also the guard
    store::init(); // and the store
    if let Some(code) = run_if_role() {
        return code; // and every host
    }
    // At the same time: they wait most of the time.
    std::thread::scope(|scope| {
        scope.spawn(|| guarded_test("a_job_survives_two_hosts_lost_one_after_the_other", scenarios::two_hosts_lost));
        scope.spawn(|| guarded_test("two_hosts_and_a_witness_survive_the_loss_of_the_manager", scenarios::witness));
        scope.spawn(|| guarded_test("a_job_trains_on_while_etcd_is_stopped", scenarios::etcd_stopped));
        guarded_test("a_single_manager_states_that_it_has_no_standby", scenarios::single)
    })
}
