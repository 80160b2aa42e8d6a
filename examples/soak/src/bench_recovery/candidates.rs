//! The compared systems, and the condition for the recovery of each.
//!
//! It starts nothing: `ours` and `peers` start the systems.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// A system in one of its variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Candidate {
    /// taskd: a rank raises an exception, all processes stay alive and repeat the step.
    TaskdRetry,
    /// taskd: a rank is killed and a standby takes its place, the others keep their processes.
    TaskdRecoverInPlace,
    /// taskd on two hosts with a guard each: a rank's guard is killed, and the rank with it; a standby of the other
    /// host takes its place. All processes run on this machine.
    TaskdRecover,
    /// taskd: a rank is killed and the others train without it. The job allows no cheaper strategy.
    TaskdShrink,
    /// taskd and an unmodified script: all ranks restart, from standbys.
    TaskdRestartStandby,
    /// The same without standbys.
    TaskdRestart,
    /// torchrun: all ranks restart.
    Torchrun,
    /// NVIDIA's launcher: all ranks restart.
    FtLauncher,
    /// NVIDIA's in-process restart: the world loses one rank.
    NvrxShrink,
    /// The same with a reserve rank that replaces a lost one.
    NvrxReserve,
    /// torchft: until the surviving replicas continue without the lost one.
    TorchftShrink,
    /// torchft: until the lost replica has restarted and joined again.
    TorchftRejoin,
    /// No launcher: a shell loop restarts all ranks.
    Floor,
}

/// The fault that is injected into one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// SIGKILL to its process.
    Kill,
    /// SIGKILL to the guard of its host.
    KillHost,
    /// An exception in its script.
    Exception,
}

/// The condition for a recovery: the first step after a fault that `world` ranks have completed in a world of that
/// size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recovered {
    /// Number of ranks that continue.
    pub(crate) world: u32,
    /// True if every rank's loop starts again: steps of loops that existed before the fault do not count.
    pub(crate) anew: bool,
}

impl Candidate {
    /// Returns the name of the system in the account.
    #[must_use]
    pub fn system(self) -> &'static str {
        match self {
            Candidate::TaskdRetry
            | Candidate::TaskdRecoverInPlace
            | Candidate::TaskdRecover
            | Candidate::TaskdShrink
            | Candidate::TaskdRestartStandby
            | Candidate::TaskdRestart => "taskd",
            Candidate::Torchrun => "torchrun",
            Candidate::FtLauncher => "ft_launcher",
            Candidate::NvrxShrink | Candidate::NvrxReserve => "nvrx-inprocess",
            Candidate::TorchftShrink | Candidate::TorchftRejoin => "torchft",
            Candidate::Floor => "floor",
        }
    }

    /// Returns the name of the variant in the account.
    #[must_use]
    pub fn variant(self) -> &'static str {
        match self {
            Candidate::TaskdRetry => "retry",
            Candidate::TaskdRecoverInPlace => "recover-in-place",
            Candidate::TaskdRecover => "recover",
            Candidate::TaskdShrink => "shrink",
            Candidate::TaskdRestartStandby => "restart-standby",
            Candidate::TaskdRestart => "restart",
            Candidate::Torchrun | Candidate::FtLauncher => "tuned",
            Candidate::NvrxShrink | Candidate::TorchftShrink => "tuned-shrink",
            Candidate::NvrxReserve => "tuned-reserve",
            Candidate::TorchftRejoin => "tuned-rejoin",
            Candidate::Floor => "shell-loop",
        }
    }

    /// Returns true if the system is taskd.
    pub(crate) fn is_ours(self) -> bool {
        self.system() == "taskd"
    }

    /// Returns true if it is a system of another vendor.
    pub(crate) fn is_peer(self) -> bool {
        !self.is_ours() && self != Candidate::Floor
    }

    /// Returns the fault that is injected.
    pub(crate) fn fault(self) -> Fault {
        match self {
            Candidate::TaskdRetry => Fault::Exception,
            Candidate::TaskdRecover => Fault::KillHost,
            _ => Fault::Kill,
        }
    }

    /// Returns true if as many ranks as before train after the recovery.
    pub(crate) fn keeps_world(self) -> bool {
        !matches!(self, Candidate::TaskdShrink | Candidate::NvrxShrink | Candidate::TorchftShrink)
    }

    /// Returns true if it can have the undisturbed run's state: fewer ranks train in no step.
    pub(crate) fn can_have_same_state(self) -> bool {
        self.keeps_world() && self != Candidate::TorchftRejoin
    }

    /// Returns the condition for its recovery in a job of `ranks` ranks.
    pub(crate) fn recovered(self, ranks: u32) -> Recovered {
        let keeps_loops = matches!(
            self,
            Candidate::TaskdRetry
                | Candidate::TaskdRecoverInPlace
                | Candidate::TaskdRecover
                | Candidate::TaskdShrink
                | Candidate::TorchftShrink
                | Candidate::TorchftRejoin
        );
        Recovered { world: if self.keeps_world() { ranks } else { ranks - 1 }, anew: !keeps_loops }
    }
}
