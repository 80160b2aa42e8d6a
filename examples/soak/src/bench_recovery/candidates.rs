//! The systems that are compared, and what is to be seen of each once it has recovered.
//!
//! It starts nothing; how each is started is in `ours` and `peers`.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// A system in one of its variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Candidate {
    /// taskd, where a rank raises an exception: all processes live, and repeat the step.
    TaskdRetry,
    /// taskd, where a rank is killed: a standby takes its place, the others keep their processes.
    TaskdRecoverInPlace,
    /// taskd on two hosts with a guard each, where a rank's guard is killed, and the rank with it: a standby of the
    /// other host takes its place. All processes run on this machine.
    TaskdRecover,
    /// taskd, where a rank is killed: the others train without it. The job allows no cheaper strategy.
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

/// What is done to one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// SIGKILL to its process.
    Kill,
    /// SIGKILL to the guard of its host.
    KillHost,
    /// An exception in its script.
    Exception,
}

/// Which of the steps after a fault show that the job has recovered: the first that as many ranks as `world` have
/// completed in a world of that size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recovered {
    /// How many ranks go on.
    pub(crate) world: u32,
    /// Every rank's loop begins again: what loops do that were there before does not count.
    pub(crate) anew: bool,
}

impl Candidate {
    /// The system, as the account calls it.
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

    /// Its variant, as the account calls it.
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

    /// Whether it is one of taskd's.
    pub(crate) fn is_ours(self) -> bool {
        self.system() == "taskd"
    }

    /// Returns true if it is a system of another vendor.
    pub(crate) fn is_peer(self) -> bool {
        !self.is_ours() && self != Candidate::Floor
    }

    /// What it is hit by.
    pub(crate) fn fault(self) -> Fault {
        match self {
            Candidate::TaskdRetry => Fault::Exception,
            Candidate::TaskdRecover => Fault::KillHost,
            _ => Fault::Kill,
        }
    }

    /// Whether as many ranks as before train once it has recovered.
    pub(crate) fn keeps_world(self) -> bool {
        !matches!(self, Candidate::TaskdShrink | Candidate::NvrxShrink | Candidate::TorchftShrink)
    }

    /// Whether it can have the undisturbed run's state: in no step fewer ranks have trained.
    pub(crate) fn can_have_same_state(self) -> bool {
        self.keeps_world() && self != Candidate::TorchftRejoin
    }

    /// What shows that it has recovered, of so many ranks.
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
