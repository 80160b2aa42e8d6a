//! What a request comes to.
//!
//! Pure: the same request gives the same switches, whatever was before.

use super::requested::{PerKind, Requested, Switch};
use crate::trace::recorder::{Kind, Switches, USER_KINDS_MAX};
use serde::{Deserialize, Serialize};

/// How a request is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// As MindCluster does. It has two switches, not five: steps, checkpoints, forward passes and data loading are off when
    /// all five kinds are asked to be off, else they are on together. Communication is as it is asked, so it is never on
    /// alone. What it does not have, kernels and the like, is as it is asked.
    Compatible,
    /// Every kind for itself.
    #[default]
    Native,
}

/// Which kinds are recorded when this is asked for.
#[must_use]
pub fn by_rule(requested: &Requested, mode: Mode) -> Requested {
    match mode {
        Mode::Native => *requested,
        Mode::Compatible => {
            let together = Switch::from(requested.has_any_of_five());
            PerKind {
                step: together,
                save_checkpoint: together,
                forward: together,
                data_loader: together,
                ..*requested
            }
        }
    }
}

/// What is switched in a recorder when this is asked for. Users' own kinds are on, all of them, as long as anything is.
#[must_use]
pub fn effective(requested: &Requested, mode: Mode) -> Switches {
    let named = by_rule(requested, mode).zip(PerKind::KINDS).into_array();
    let users = (0..USER_KINDS_MAX).map(|which| (Switch::from(requested.has_any()), Kind::User(which)));
    let on = named.into_iter().chain(users).filter(|(switch, _)| switch.is_on());
    on.fold(Switches::NONE, |all, (_, kind)| all.with(kind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// The compatible rule, row by row, as the platform's guide puts it: C communication, S steps, K checkpoints, F forward
    /// passes, D data loading. On the left what is asked for, on the right what is recorded.
    const COMPATIBLE: &str = "
        ..... .....
        ....D .SKFD
        ...F. .SKFD
        ...FD .SKFD
        ..K.. .SKFD
        ..K.D .SKFD
        ..KF. .SKFD
        ..KFD .SKFD
        .S... .SKFD
        .S..D .SKFD
        .S.F. .SKFD
        .S.FD .SKFD
        .SK.. .SKFD
        .SK.D .SKFD
        .SKF. .SKFD
        .SKFD .SKFD
        C.... CSKFD
        C...D CSKFD
        C..F. CSKFD
        C..FD CSKFD
        C.K.. CSKFD
        C.K.D CSKFD
        C.KF. CSKFD
        C.KFD CSKFD
        CS... CSKFD
        CS..D CSKFD
        CS.F. CSKFD
        CS.FD CSKFD
        CSK.. CSKFD
        CSK.D CSKFD
        CSKF. CSKFD
        CSKFD CSKFD
    ";

    fn rows() -> impl Iterator<Item = (&'static str, &'static str)> {
        COMPATIBLE.lines().filter_map(|line| line.trim().split_once(' '))
    }

    fn asked(letters: &str) -> Requested {
        let [communication, step, save_checkpoint, forward, data_loader] =
            ["C", "S", "K", "F", "D"].map(|letter| Switch::from(letters.contains(letter)));
        Requested { communication, step, save_checkpoint, forward, data_loader, ..Requested::NONE }
    }

    /// The recorder's switches, without the help of what is tested.
    fn recorded(letters: &str) -> Switches {
        let kinds = [
            ('C', Kind::Communication),
            ('S', Kind::Step),
            ('K', Kind::SaveCheckpoint),
            ('F', Kind::Forward),
            ('D', Kind::DataLoader),
        ];
        let five = kinds.into_iter().filter(|(letter, _)| letters.contains(*letter)).map(|(_, kind)| kind);
        let users = (0..USER_KINDS_MAX).map(Kind::User).filter(|_| letters != ".....");
        five.chain(users).fold(Switches::NONE, Switches::with)
    }

    #[test]
    fn all_32_combinations_are_as_the_compatible_rule_says() {
        let seen: BTreeSet<&str> = rows().map(|(left, _)| left).collect();
        assert_eq!((seen.len(), rows().count()), (32, 32), "each once");
        for (left, right) in rows() {
            assert_eq!(by_rule(&asked(left), Mode::Compatible), asked(right), "{left}");
            assert_eq!(effective(&asked(left), Mode::Compatible), recorded(right), "{left}");
        }
    }

    #[test]
    fn what_devices_do_is_as_it_was_asked_and_brings_nothing_else() {
        let kernels = Requested { kernel: Switch::On, ..Requested::NONE };
        for mode in [Mode::Compatible, Mode::Native] {
            assert_eq!(by_rule(&kernels, mode), kernels);
            assert!(effective(&kernels, mode).has(Kind::Kernel) && !effective(&kernels, mode).has(Kind::Step));
        }
    }

    #[test]
    fn in_native_mode_every_kind_is_as_it_was_asked() {
        for (left, _) in rows() {
            assert_eq!(by_rule(&asked(left), Mode::Native), asked(left));
            assert_eq!(effective(&asked(left), Mode::Native), recorded(left), "{left}");
        }
    }
}
