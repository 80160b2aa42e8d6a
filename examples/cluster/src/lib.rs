//! What the program `cluster` consists of: the agent of a host, and the manager of a job. And what its tests and
//! benchmarks need: hosts in namespaces of this machine, trainings on them, and scenarios of faults.

mod agent;
mod elastic;
mod engine;
pub mod etcd_server;
mod hold;
pub mod hosts;
mod manager;
mod options;
pub mod scenarios;
pub mod shards;
mod shown;
mod train;
pub mod training;
mod witness;

pub use agent::{HostAgent, serve_agent};
pub use manager::manage;
pub use options::{
    AgentOptions, EngineOptions, HostRange, ManagerOptions, Options, Role, StartIs, TrainOptions, WitnessOptions,
};
pub use train::train;
pub use witness::witness;

use std::process::ExitCode;
use taskd_examples::program;

/// Runs this process in the role that its command line names.
#[must_use]
pub fn run() -> ExitCode {
    let options: Options = program::options();
    program::run(
        "cluster",
        Box::pin(async move {
            match &options.role {
                Role::Train(options) => Box::pin(train(options)).await,
                Role::Witness(options) => witness(options).await,
                Role::Manager(options) => Box::pin(manage(options)).await,
                Role::Agent(options) => serve_agent(options).await,
            }
        }),
    )
}

/// Runs this process in the role that its command line names, if it names one. So a test can start its own program on a
/// host. Must be called after `guard::init` and `store::init`, before anything else.
#[must_use]
pub fn run_if_role() -> Option<ExitCode> {
    let first = std::env::args().nth(1);
    first.is_some_and(|word| ["train", "witness", "manager", "agent"].contains(&&*word)).then(run)
}

/// Runs this process as the witness of a job, as its command line states.
#[must_use]
pub fn run_witness() -> ExitCode {
    let options: WitnessOptions = program::options();
    program::run("taskd-witness", Box::pin(async move { witness(&options).await }))
}
