//! What the program `cluster` consists of: the agent of a host, and the manager of a job.

mod agent;
mod manager;
mod options;
mod train;

pub use agent::{HostAgent, serve_agent};
pub use manager::manage;
pub use options::{AgentOptions, ManagerOptions, Options, Role, TrainOptions};
pub use train::train;
