//! What a voter is started with.

use super::store::Simulated;
use super::writer::Takes;
use super::{Connect, EmbeddedSettings, TcpConnect};
use crate::checks::Check;
use crate::consensus::{ConsensusError, Epoch};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use taskd_runtime::job::{Name, NodeId};

/// Numbers of voters that a job can have. Of three, one may be lost, of five, two; one alone is for tests.
pub const VOTER_COUNTS: [usize; 3] = [1, 3, 5];

/// Longest address of a voter, in bytes: a DNS name has 253 at most (RFC 1035), and the port follows.
pub const ADDRESS_BYTES_MAX: usize = 300;

/// Greatest number after which epochs can begin: far below the greatest epoch, and above every time in nanoseconds.
pub const EPOCHS_AFTER_MAX: Epoch = Epoch(u64::MAX / 2);

/// A voter's place: its host, and the address at which the other voters reach it. Voters run on hosts of different
/// fault domains, such as racks, so that one fault ends one voter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[non_exhaustive]
pub struct VoterAddress {
    /// Name of the host.
    pub host: NodeId,
    /// Address, `HOST:PORT`.
    pub address: String,
    /// True for a voter that never becomes the manager: a *witness*, for which a small host is enough.
    pub witness: bool,
}

impl VoterAddress {
    /// Creates the place of a voter that can become the manager.
    pub fn new(host: NodeId, address: impl Into<String>) -> VoterAddress {
        VoterAddress { host, address: address.into(), witness: false }
    }

    /// Makes the voter a witness.
    #[must_use]
    pub fn with_witness(mut self) -> VoterAddress {
        self.witness = true;
        self
    }
}

impl Default for VoterAddress {
    /// No voter: the Raft engine requires a default value, and never connects to it.
    fn default() -> VoterAddress {
        VoterAddress::new(NodeId(Name::new("")), "")
    }
}

impl fmt::Display for VoterAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.host, self.address)
    }
}

/// Configuration of one voter.
#[derive(Clone)]
pub struct EmbeddedConfig {
    pub(super) job: Name,
    pub(super) own: VoterAddress,
    pub(super) listed: Vec<VoterAddress>,
    pub(super) dir: PathBuf,
    pub(super) settings: EmbeddedSettings,
    pub(super) boot: Option<String>,
    pub(super) connect: Arc<dyn Connect>,
    pub(super) after: Epoch,
    /// Time that each write takes, in a simulation; it is then made by a task, not by a thread.
    pub(super) simulated_disk: Option<Takes>,
}

impl fmt::Debug for EmbeddedConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { job, own, listed, dir, settings, boot, connect: _, after, simulated_disk: _ } = self;
        let mut text = f.debug_struct("EmbeddedConfig");
        text.field("job", job).field("own", own).field("listed", listed).field("dir", dir);
        text.field("settings", settings).field("boot", boot).field("after", after).finish_non_exhaustive()
    }
}

impl EmbeddedConfig {
    /// Creates the configuration of the voter `own` of the job `job`. `listed` are the job's first voters, the same
    /// list in the same order on all of them; a voter that is to replace a lost one need not be in it. `dir` holds the
    /// voter's store and nothing else; it may be on a disk that does not outlive a reboot.
    pub fn new(
        job: impl Into<Name>,
        own: VoterAddress,
        listed: impl IntoIterator<Item = VoterAddress>,
        dir: impl Into<PathBuf>,
    ) -> EmbeddedConfig {
        EmbeddedConfig {
            job: job.into(),
            own,
            listed: listed.into_iter().collect(),
            dir: dir.into(),
            settings: EmbeddedSettings::default(),
            boot: None,
            connect: Arc::new(TcpConnect::default()),
            after: Epoch(0),
            simulated_disk: None,
        }
    }

    /// Sets the times. All voters use the same.
    #[must_use]
    pub fn with_settings(mut self, settings: EmbeddedSettings) -> EmbeddedConfig {
        self.settings = settings;
        self
    }

    /// Sets what opens connections to other voters; plain TCP by default.
    #[must_use]
    pub fn with_connect(mut self, connect: impl Connect) -> EmbeddedConfig {
        self.connect = Arc::new(connect);
        self
    }

    /// Sets a number that all epochs of this voter's candidates are greater than; 0 by default. Voters that form a job
    /// again have forgotten its epochs, and other hosts have not: the job passes the time of its start, in seconds
    /// since 1970.
    #[must_use]
    pub fn with_epochs_after(mut self, after: Epoch) -> EmbeddedConfig {
        self.after = after;
        self
    }

    /// Sets the identifier of the machine's boot, instead of the kernel's (`/proc/sys/kernel/random/boot_id`).
    #[must_use]
    pub fn with_boot(mut self, boot: impl Into<String>) -> EmbeddedConfig {
        self.boot = Some(boot.into());
        self
    }

    /// Makes a write take as long as `takes` returns for it, in the time of the voter's runtime.
    #[cfg(feature = "test-util")]
    #[doc(hidden)]
    #[must_use]
    pub fn with_simulated_disk(
        mut self,
        takes: impl Fn() -> std::time::Duration + Send + Sync + 'static,
    ) -> EmbeddedConfig {
        self.simulated_disk = Some(Arc::new(takes));
        self
    }

    /// Returns what a simulation changes of the store.
    pub(super) fn simulated(&self) -> Simulated {
        let checks = self.settings.checks;
        // Of the host's name: a voter that has lost its store votes on.
        let name = self.own.host.0.as_str().bytes();
        let voter = (!checks.has(Check::Admission))
            .then(|| name.fold(1, |id: u64, byte| id.wrapping_mul(257).wrapping_add(byte.into())));
        Simulated { voter, takes: self.simulated_disk.clone(), checks }
    }

    /// Returns the place of this voter.
    #[must_use]
    pub fn own(&self) -> &VoterAddress {
        &self.own
    }

    /// Returns an error if the list of voters cannot form a job.
    pub(super) fn check(&self) -> Result<(), ConsensusError> {
        let refuse = |text: String| Err(ConsensusError::Refused(format!("the job's list of voters: {text}")));
        if !VOTER_COUNTS.contains(&self.listed.len()) {
            return refuse(format!("it has {} voters; 3 or 5 are possible, and 1 for tests", self.listed.len()));
        }
        let hosts: BTreeSet<_> = self.listed.iter().map(|voter| &voter.host).collect();
        let addresses: BTreeSet<_> = self.listed.iter().map(|voter| &voter.address).collect();
        if hosts.len() < self.listed.len() || addresses.len() < self.listed.len() {
            return refuse("two voters have the same host or the same address".into());
        }
        for voter in self.listed.iter().chain([&self.own]) {
            if voter.address.is_empty() || voter.address.len() > ADDRESS_BYTES_MAX {
                return refuse(format!("{} has an address of {} bytes", voter.host, voter.address.len()));
            }
        }
        if self.listed.first().is_some_and(|first| first.witness) {
            return refuse("the first voter forms the job and leads it at first: it cannot be a witness".into());
        }
        if self.after > EPOCHS_AFTER_MAX {
            let text = format!("epochs cannot begin after {}, which is above {EPOCHS_AFTER_MAX}", self.after);
            return Err(ConsensusError::Refused(text));
        }
        match self.listed.iter().find(|voter| voter.host == self.own.host) {
            Some(listed) if *listed != self.own => {
                refuse(format!("this voter is {}, and the list has {listed} for this host", self.own))
            }
            _ => Ok(()),
        }
    }

    /// True if this voter forms the job.
    pub(super) fn is_first(&self) -> bool {
        self.listed.first().is_some_and(|first| first.host == self.own.host)
    }
}
