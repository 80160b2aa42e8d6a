//! The recorded kinds of a request: its effective switches.
//!
//! Pure functions: the result depends on the request only, not on the previous switches.

use crate::trace::recorder::{Kind, Switches, USER_KINDS_MAX};
use taskd_kernel::trace::switches::{Mode, PerKind, Requested, Switch, by_rule};

/// The [`Kind`] of trace records that each trace switch turns on or off.
pub const KINDS: PerKind<Kind> = PerKind {
    communication: Kind::Communication,
    step: Kind::Step,
    save_checkpoint: Kind::SaveCheckpoint,
    forward: Kind::Forward,
    data_loader: Kind::DataLoader,
    kernel: Kind::Kernel,
    copy: Kind::Copy,
    api: Kind::Api,
    marker: Kind::Marker,
};

/// Returns the element of `values` for a trace kind; `None` for a user-defined kind.
pub const fn of_kind<T>(values: &PerKind<T>, kind: Kind) -> Option<&T> {
    match kind {
        Kind::Communication => Some(&values.communication),
        Kind::Step => Some(&values.step),
        Kind::SaveCheckpoint => Some(&values.save_checkpoint),
        Kind::Forward => Some(&values.forward),
        Kind::DataLoader => Some(&values.data_loader),
        Kind::Kernel => Some(&values.kernel),
        Kind::Copy => Some(&values.copy),
        Kind::Api => Some(&values.api),
        Kind::Marker => Some(&values.marker),
        Kind::User(_) => None,
    }
}

/// Returns the trace kinds that a recorder records for a request under the rule `mode`. All user-defined kinds are
/// on if the request turns any kind on.
#[must_use]
pub fn effective(requested: &Requested, mode: Mode) -> Switches {
    let named = by_rule(requested, mode).zip(KINDS).into_array();
    let users = (0..USER_KINDS_MAX).map(|which| (Switch::from(requested.has_any()), Kind::User(which)));
    let on = named.into_iter().chain(users).filter(|(switch, _)| switch.is_on());
    on.fold(Switches::NONE, |all, (_, kind)| all.with(kind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// The compatible rule, row by row, as in the platform's guide: C communication, S steps, K checkpoints, F forward
    /// passes, D data loading. The request is on the left, the recorded kinds on the right.
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

    /// Computes the recorder's switches independently of the tested code.
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
    fn all_32_combinations_follow_the_compatible_rule() {
        let seen: BTreeSet<&str> = rows().map(|(left, _)| left).collect();
        assert_eq!((seen.len(), rows().count()), (32, 32), "each once");
        for (left, right) in rows() {
            assert_eq!(by_rule(&asked(left), Mode::Compatible), asked(right), "{left}");
            assert_eq!(effective(&asked(left), Mode::Compatible), recorded(right), "{left}");
        }
    }

    #[test]
    fn device_kinds_are_switched_as_requested_and_imply_no_other() {
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
