//! What is asked for: each of the kinds on or off, and the document that says so.
//!
//! It does not say what becomes of it: that is the part of `rule`.

use crate::job::document_text;
use crate::trace::recorder::Kind;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fmt;

/// One value for each kind that is switched, under their names in the `profilingSwitch` document. That has the first five;
/// what a vendor's trace interface has to be asked for is our own, and nothing is said of it where there is nothing to say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(bound = "T: schemars::JsonSchema + Serialize + PartialEq + Default"))]
#[serde(deny_unknown_fields)]
#[serde(bound(serialize = "T: Serialize + PartialEq + Default", deserialize = "T: Deserialize<'de> + Default"))]
pub struct PerKind<T> {
    /// Collectives and point-to-point operations.
    #[serde(rename = "CommunicationOperator", alias = "Communication")]
    pub communication: T,
    /// Training steps.
    #[serde(rename = "Step")]
    pub step: T,
    /// Saving checkpoints.
    #[serde(rename = "SaveCheckpoint")]
    pub save_checkpoint: T,
    /// The forward pass.
    #[serde(rename = "FP")]
    pub forward: T,
    /// Waiting for the next batch.
    #[serde(rename = "DataLoader")]
    pub data_loader: T,
    /// Work of devices.
    #[serde(rename = "Kernel", default, skip_serializing_if = "is_usual")]
    pub kernel: T,
    /// Copies and fills of devices' memory.
    #[serde(rename = "Copy", default, skip_serializing_if = "is_usual")]
    pub copy: T,
    /// Calls into the vendor's runtime.
    #[serde(rename = "Api", default, skip_serializing_if = "is_usual")]
    pub api: T,
    /// What programs and libraries have named for profilers.
    #[serde(rename = "Marker", default, skip_serializing_if = "is_usual")]
    pub marker: T,
}

/// Whether there is nothing to say.
fn is_usual<T: PartialEq + Default>(value: &T) -> bool {
    *value == T::default()
}

/// Names and kinds, in the order of the document.
const KINDS: PerKind<(&str, Kind)> = PerKind {
    communication: ("CommunicationOperator", Kind::Communication),
    step: ("Step", Kind::Step),
    save_checkpoint: ("SaveCheckpoint", Kind::SaveCheckpoint),
    forward: ("FP", Kind::Forward),
    data_loader: ("DataLoader", Kind::DataLoader),
    kernel: ("Kernel", Kind::Kernel),
    copy: ("Copy", Kind::Copy),
    api: ("Api", Kind::Api),
    marker: ("Marker", Kind::Marker),
};

impl PerKind<Kind> {
    /// The kinds themselves.
    pub const KINDS: PerKind<Kind> = PerKind {
        communication: KINDS.communication.1,
        step: KINDS.step.1,
        save_checkpoint: KINDS.save_checkpoint.1,
        forward: KINDS.forward.1,
        data_loader: KINDS.data_loader.1,
        kernel: KINDS.kernel.1,
        copy: KINDS.copy.1,
        api: KINDS.api.1,
        marker: KINDS.marker.1,
    };
}

impl<T> PerKind<T> {
    /// What becomes of each value.
    pub fn map<U>(self, mut each: impl FnMut(T) -> U) -> PerKind<U> {
        PerKind {
            communication: each(self.communication),
            step: each(self.step),
            save_checkpoint: each(self.save_checkpoint),
            forward: each(self.forward),
            data_loader: each(self.data_loader),
            kernel: each(self.kernel),
            copy: each(self.copy),
            api: each(self.api),
            marker: each(self.marker),
        }
    }

    /// Each value beside another one of the same kind.
    pub fn zip<U>(self, other: PerKind<U>) -> PerKind<(T, U)> {
        PerKind {
            communication: (self.communication, other.communication),
            step: (self.step, other.step),
            save_checkpoint: (self.save_checkpoint, other.save_checkpoint),
            forward: (self.forward, other.forward),
            data_loader: (self.data_loader, other.data_loader),
            kernel: (self.kernel, other.kernel),
            copy: (self.copy, other.copy),
            api: (self.api, other.api),
            marker: (self.marker, other.marker),
        }
    }

    /// All values, those of the document first, in its order.
    pub fn into_array(self) -> [T; 9] {
        let PerKind { communication, step, save_checkpoint, forward, data_loader, kernel, copy, api, marker } = self;
        [communication, step, save_checkpoint, forward, data_loader, kernel, copy, api, marker]
    }

    /// The value of a kind; `None` for a user's own.
    pub const fn get(&self, kind: Kind) -> Option<&T> {
        match kind {
            Kind::Communication => Some(&self.communication),
            Kind::Step => Some(&self.step),
            Kind::SaveCheckpoint => Some(&self.save_checkpoint),
            Kind::Forward => Some(&self.forward),
            Kind::DataLoader => Some(&self.data_loader),
            Kind::Kernel => Some(&self.kernel),
            Kind::Copy => Some(&self.copy),
            Kind::Api => Some(&self.api),
            Kind::Marker => Some(&self.marker),
            Kind::User(_) => None,
        }
    }
}

/// On or off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Switch {
    /// Not to be recorded.
    #[default]
    Off,
    /// To be recorded.
    On,
}

impl Switch {
    /// Whether it is on.
    #[must_use]
    pub const fn is_on(self) -> bool {
        matches!(self, Switch::On)
    }
}

impl From<bool> for Switch {
    fn from(on: bool) -> Switch {
        if on { Switch::On } else { Switch::Off }
    }
}

/// What is asked for, kind by kind.
pub type Requested = PerKind<Switch>;

/// Some kinds on or off; those that are `None` keep what they have.
pub type Changed = PerKind<Option<Switch>>;

impl Changed {
    /// Whether no kind is named.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Changed::default()
    }

    /// What is asked for when these kinds change and the others keep what they have in `before`.
    #[must_use]
    pub fn over(self, before: Requested) -> Requested {
        self.zip(before).map(|(asked, kept)| asked.unwrap_or(kept))
    }
}

impl Requested {
    /// Everything off.
    pub const NONE: Requested = Requested {
        communication: Switch::Off,
        step: Switch::Off,
        save_checkpoint: Switch::Off,
        forward: Switch::Off,
        data_loader: Switch::Off,
        kernel: Switch::Off,
        copy: Switch::Off,
        api: Switch::Off,
        marker: Switch::Off,
    };

    /// The five kinds of the document on, which cost next to nothing.
    pub const USUAL: Requested = Requested {
        communication: Switch::On,
        step: Switch::On,
        save_checkpoint: Switch::On,
        forward: Switch::On,
        data_loader: Switch::On,
        ..Requested::NONE
    };

    /// Everything on, which is a lot: every kernel, copy and call.
    pub const ALL: Requested =
        Requested { kernel: Switch::On, copy: Switch::On, api: Switch::On, marker: Switch::On, ..Requested::USUAL };

    /// Reads a `profilingSwitch` document, which names five kinds:
    /// `{"CommunicationOperator":"off","Step":"on","SaveCheckpoint":"on","FP":"on","DataLoader":"on"}`. `Communication`
    /// is taken for `CommunicationOperator`, which it is called in some places. It may name `Kernel`, `Copy`, `Api` and
    /// `Marker` besides; what it does not name of these is off. Returned beside it are the keys that mean nothing here, in
    /// their order.
    ///
    /// # Errors
    /// [`SwitchError`] when it does not say of each of the five whether it is on or off. A kind that is not there is not
    /// guessed: what is half written switches nothing.
    pub fn parse(document: &[u8]) -> Result<(Requested, Vec<String>), SwitchError> {
        let text = document_text(document).map_err(|why| SwitchError::NoObject(format!("it {why}")))?;
        let object: Result<Map<String, Value>, _> = serde_json::from_str(text);
        let mut object = object.map_err(|error| SwitchError::NoObject(error.to_string()))?;
        if let Some(value) = object.remove("Communication") {
            object.entry(KINDS.communication.0).or_insert(value);
        }
        let mut take = |(name, _)| match object.remove(name) {
            Some(Value::String(text)) if text == "on" => Ok(Switch::On),
            Some(Value::String(text)) if text == "off" => Ok(Switch::Off),
            Some(value) => Err(SwitchError::NoSwitch { name, value: cut(value.to_string()) }),
            None => Err(SwitchError::Missing(name)),
        };
        let mut requested = Requested {
            communication: take(KINDS.communication)?,
            step: take(KINDS.step)?,
            save_checkpoint: take(KINDS.save_checkpoint)?,
            forward: take(KINDS.forward)?,
            data_loader: take(KINDS.data_loader)?,
            ..Requested::NONE
        };
        let of_devices = [
            (KINDS.kernel, &mut requested.kernel),
            (KINDS.copy, &mut requested.copy),
            (KINDS.api, &mut requested.api),
            (KINDS.marker, &mut requested.marker),
        ];
        for (kind, switch) in of_devices {
            match take(kind) {
                Ok(told) => *switch = told,
                Err(SwitchError::Missing(_)) => (),
                Err(error) => return Err(error),
            }
        }
        Ok((requested, object.into_iter().map(|(name, _)| name).collect()))
    }

    /// Whether any kind is on.
    #[must_use]
    pub fn has_any(&self) -> bool {
        *self != Requested::NONE
    }

    /// Whether any kind of the document is on.
    pub(super) fn has_any_of_five(&self) -> bool {
        let [five @ .., _, _, _, _] = self.into_array();
        five.contains(&Switch::On)
    }
}

impl fmt::Display for Requested {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let on = self.zip(KINDS).into_array().into_iter().filter(|(switch, _)| switch.is_on());
        let names: Vec<&str> = on.map(|(_, (name, _))| name).collect();
        f.write_str(if names.is_empty() { "nothing" } else { "" })?;
        f.write_str(&names.join(", "))
    }
}

/// As much of a text as a sentence has room for.
pub(super) fn cut(mut text: String) -> String {
    const CHARS_MAX: usize = 40;
    if let Some((end, _)) = text.char_indices().nth(CHARS_MAX) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// Why a document switches nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SwitchError {
    /// It is no JSON object.
    #[error(
        "it is no JSON object ({0}): write all five kinds, such as {{\"CommunicationOperator\":\"off\",\"Step\":\"on\",\
         \"SaveCheckpoint\":\"on\",\"FP\":\"on\",\"DataLoader\":\"on\"}}"
    )]
    NoObject(String),
    /// A kind is not there.
    #[error("{0} is missing: write \"on\" or \"off\" for each of the five kinds")]
    Missing(&'static str),
    /// A value is neither on nor off.
    #[error("{name} is {value}: write \"on\" or \"off\"")]
    NoSwitch {
        /// Which kind.
        name: &'static str,
        /// Its value, cut if it is long.
        value: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str =
        r#"{"CommunicationOperator":"off","Step":"on","SaveCheckpoint":"on","FP":"off","DataLoader":"on"}"#;

    fn requested() -> Requested {
        Requested { communication: Switch::Off, forward: Switch::Off, ..Requested::USUAL }
    }

    #[test]
    fn a_document_is_read_and_written_with_the_names_that_the_platform_has() {
        assert_eq!(Requested::parse(DOCUMENT.as_bytes()), Ok((requested(), Vec::new())));
        assert_eq!(serde_json::to_string(&requested()).expect("it has a form"), DOCUMENT);
        assert_eq!(serde_json::from_str::<Requested>(DOCUMENT).expect("its own form"), requested());
        let short = DOCUMENT.replace("CommunicationOperator", "Communication");
        assert_eq!(Requested::parse(short.as_bytes()), Ok((requested(), Vec::new())));
    }

    #[test]
    fn unknown_keys_are_told_and_switch_nothing() {
        let more = DOCUMENT.replace("\"Step\"", "\"Kernels\":\"on\",\"Acl\":[1],\"Step\"");
        let unknown = vec!["Acl".to_owned(), "Kernels".to_owned()];
        assert_eq!(Requested::parse(more.as_bytes()), Ok((requested(), unknown)));
    }

    #[test]
    fn what_devices_do_is_off_unless_it_is_named() {
        let more = DOCUMENT.replace("\"Step\"", "\"Kernel\":\"on\",\"Marker\":\"off\",\"Step\"");
        let with_kernels = Requested { kernel: Switch::On, ..requested() };
        assert_eq!(Requested::parse(more.as_bytes()), Ok((with_kernels, Vec::new())));
        let written = serde_json::to_string(&with_kernels).expect("it has a form");
        assert_eq!(Requested::parse(written.as_bytes()), Ok((with_kernels, Vec::new())));
        let wrong = DOCUMENT.replace("\"Step\"", "\"Api\":true,\"Step\"");
        let told = Requested::parse(wrong.as_bytes()).expect_err("refused").to_string();
        assert_eq!(told, "Api is true: write \"on\" or \"off\"");
    }

    #[test]
    fn a_document_that_leaves_something_open_is_refused_with_what_to_do() {
        let told = |document: &str| Requested::parse(document.as_bytes()).expect_err("refused").to_string();
        assert!(told("").starts_with("it is no JSON object (it is empty): write all five"), "{}", told(""));
        let marked = told(&format!("\u{feff}{DOCUMENT}"));
        assert!(
            marked.starts_with("it is no JSON object (it begins with a byte-order mark of UTF-8: save"),
            "{marked}"
        );
        assert!(told(&DOCUMENT[..50]).ends_with("\"FP\":\"on\",\"DataLoader\":\"on\"}"), "{}", told(&DOCUMENT[..50]));
        assert!(told("[]").starts_with("it is no JSON object (invalid type: sequence"), "{}", told("[]"));
        let sentence = "DataLoader is missing: write \"on\" or \"off\" for each of the five kinds";
        assert_eq!(told(&DOCUMENT.replace("DataLoader", "Dataloader")), sentence);
        assert_eq!(told(&DOCUMENT.replace("\"on\"", "true")), "Step is true: write \"on\" or \"off\"");
        assert_eq!(told(&DOCUMENT.replace("\"on\"", "\"On\"")), "Step is \"On\": write \"on\" or \"off\"");
        let long = told(&DOCUMENT.replace("\"on\"", &format!("\"{}\"", "é".repeat(99))));
        assert_eq!(long, format!("Step is \"{}…: write \"on\" or \"off\"", "é".repeat(39)));
    }

    #[test]
    fn what_is_on_is_told_by_name() {
        assert_eq!(requested().to_string(), "Step, SaveCheckpoint, DataLoader");
        assert_eq!(Requested::NONE.to_string(), "nothing");
    }
}
