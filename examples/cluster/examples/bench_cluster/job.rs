//! What the processes of one run share: names, times, certificates, and the clock.

use std::path::Path;
use std::time::Duration;
use taskd_cluster::ClusterSettings;
use taskd_cluster::security::{HostPolicy, MutualTls, Security, SecurityContext, TestAuthority, TlsFiles};
use taskd_core::job::{JobSpec, NodeId};
use taskd_examples::program::Failure;
use taskd_testing::testing::doubles::FakeProgram;

/// Name of the job.
pub(crate) const JOB: &str = "bench";
/// Name in the certificate that all processes share.
const SHARED_NAME: &str = "bench.taskd.internal";

/// Writes the certificates of a run into a directory.
pub(crate) fn certify(dir: &Path) -> Result<(), String> {
    let authority = TestAuthority::new("bench").map_err(|error| error.to_string())?;
    authority.write(dir, &[SHARED_NAME]).map_err(|error| error.to_string())?;
    Ok(())
}

/// Opens the security of a process.
pub(crate) async fn security(dir: &Path) -> Result<SecurityContext, Failure> {
    let files = TlsFiles { ca: dir.join("ca.pem"), certificate: dir.join("host.pem"), key: dir.join("host.key") };
    let shared = HostPolicy::Shared { name: SHARED_NAME.into() };
    Ok(Security::MutualTls(MutualTls::new(files).with_hosts(shared)).open(SHARED_NAME).await?)
}

/// Returns the settings for a number of agents, with all times multiplied. Managers call every agent themselves at
/// first.
pub(crate) fn settings(agents: u32, slow: u32) -> ClusterSettings {
    let mut settings = ClusterSettings::for_agents(agents).with_relay_fanout(0);
    for time in [
        &mut settings.lease_interval,
        &mut settings.silent_after,
        &mut settings.lease,
        &mut settings.connect_within,
        &mut settings.hello_within,
        &mut settings.relay_within,
    ] {
        *time *= slow;
    }
    settings
}

/// Returns the name of a host.
pub(crate) fn host(number: u32) -> NodeId {
    NodeId(format!("host-{number:05}").into())
}

/// Returns the job of one rank on each host.
pub(crate) fn spec(agents: u32) -> JobSpec {
    JobSpec::new(JOB, agents, FakeProgram::Runs.spec()).with_nodes((0..agents).map(host))
}

/// Returns the time on the clock that all processes of this machine share, in nanoseconds.
pub(crate) fn now() -> u64 {
    u64::try_from(taskd_core::launch::since_boot().as_nanos()).unwrap_or(u64::MAX)
}

/// Raises the limit of open files to what the system allows.
pub(crate) fn raise_limits() {
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = rustix::process::setrlimit(rustix::process::Resource::Nofile, limit) {
        eprintln!("the limit of open files stays as it is: {error}");
    }
}

/// Time within which a step of a run must end, on a machine that is ten times slower than it should be.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);
