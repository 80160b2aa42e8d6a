//! The request: each kind on or off, the document that contains it, and the rule by which it is applied.

use crate::job::document_text;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fmt;

/// One value for each kind of trace record that can be switched on or off. The kinds have the names that they have
/// in the `profilingSwitch` document, which defines the first five kinds. The other four kinds are an extension: a
/// vendor's trace interface records them, and they are omitted from JSON if they have the default value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(bound = "T: schemars::JsonSchema + Serialize + PartialEq + Default"))]
#[serde(deny_unknown_fields)]
#[serde(bound(serialize = "T: Serialize + PartialEq + Default", deserialize = "T: Deserialize<'de> + Default"))]
pub struct PerKind<T> {
    /// Value for records of collectives and point-to-point operations.
    #[serde(rename = "CommunicationOperator", alias = "Communication")]
    pub communication: T,
    /// Value for records of training steps.
    #[serde(rename = "Step")]
    pub step: T,
    /// Value for records of saving checkpoints.
    #[serde(rename = "SaveCheckpoint")]
    pub save_checkpoint: T,
    /// Value for records of the forward pass.
    #[serde(rename = "FP")]
    pub forward: T,
    /// Value for records of waiting for the next batch.
    #[serde(rename = "DataLoader")]
    pub data_loader: T,
    /// Value for records of GPU or NPU kernels: work that devices do.
    #[serde(rename = "Kernel", default, skip_serializing_if = "is_usual")]
    pub kernel: T,
    /// Value for records of copies and fills of device memory.
    #[serde(rename = "Copy", default, skip_serializing_if = "is_usual")]
    pub copy: T,
    /// Value for records of calls into the runtime library of the device's vendor.
    #[serde(rename = "Api", default, skip_serializing_if = "is_usual")]
    pub api: T,
    /// Value for records of the named ranges and marks that programs and libraries make for profilers.
    #[serde(rename = "Marker", default, skip_serializing_if = "is_usual")]
    pub marker: T,
}

/// Returns true for the default value, which is not serialized.
fn is_usual<T: PartialEq + Default>(value: &T) -> bool {
    *value == T::default()
}

/// Names, in the order of the document.
const NAMES: PerKind<&str> = PerKind {
    communication: "CommunicationOperator",
    step: "Step",
    save_checkpoint: "SaveCheckpoint",
    forward: "FP",
    data_loader: "DataLoader",
    kernel: "Kernel",
    copy: "Copy",
    api: "Api",
    marker: "Marker",
};

impl<T> PerKind<T> {
    /// Applies a function to the value of each kind of trace record.
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

    /// Pairs the value of each kind of trace record with the value of the same kind in `other`.
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

    /// Returns the values of all kinds of trace record: first the five kinds of the `profilingSwitch` document, in the
    /// document's order, then the four others.
    pub fn into_array(self) -> [T; 9] {
        let PerKind { communication, step, save_checkpoint, forward, data_loader, kernel, copy, api, marker } = self;
        [communication, step, save_checkpoint, forward, data_loader, kernel, copy, api, marker]
    }
}

/// Switch for one kind of trace record: on or off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Switch {
    /// No trace records of this kind are made.
    #[default]
    Off,
    /// Trace records of this kind are made.
    On,
}

impl Switch {
    /// Returns true if the switch is on.
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

/// A full request for tracing: a switch for every kind of record.
pub type Requested = PerKind<Switch>;

/// A partial request for tracing: kinds of record that are `None` keep their switch.
pub type Changed = PerKind<Option<Switch>>;

impl Changed {
    /// Returns true if the request sets no switch.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Changed::default()
    }

    /// Returns a full request: the switches that this request sets, and the switches of `before` for the other kinds.
    #[must_use]
    pub fn over(self, before: Requested) -> Requested {
        self.zip(before).map(|(asked, kept)| asked.unwrap_or(kept))
    }
}

impl Requested {
    /// Request that switches all kinds of trace record off.
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

    /// Request that switches on the five kinds of trace record of the `profilingSwitch` document, whose cost is
    /// negligible.
    pub const USUAL: Requested = Requested {
        communication: Switch::On,
        step: Switch::On,
        save_checkpoint: Switch::On,
        forward: Switch::On,
        data_loader: Switch::On,
        ..Requested::NONE
    };

    /// Request that switches all kinds of trace record on. Every device kernel, memory copy and runtime call is then
    /// recorded: a large amount of data.
    pub const ALL: Requested =
        Requested { kernel: Switch::On, copy: Switch::On, api: Switch::On, marker: Switch::On, ..Requested::USUAL };

    /// Parses a `profilingSwitch` document, which names five kinds of trace record:
    /// `{"CommunicationOperator":"off","Step":"on","SaveCheckpoint":"on","FP":"on","DataLoader":"on"}`. `Communication`
    /// is accepted for `CommunicationOperator`, as some documents use it. The document may also name `Kernel`, `Copy`,
    /// `Api` and `Marker`; each of these four kinds is off if the document does not name it. The second value that is
    /// returned contains the unknown keys, in alphabetical order.
    ///
    /// # Errors
    /// Returns [`SwitchError`] if the document is not a JSON object, lacks one of the five kinds, or has a value other
    /// than `on` or `off` for a kind. A missing kind is not guessed: a partly written document changes no switch.
    pub fn parse(document: &[u8]) -> Result<(Requested, Vec<String>), SwitchError> {
        let text = document_text(document).map_err(|why| SwitchError::NoObject(format!("it {why}")))?;
        let object: Result<Map<String, Value>, _> = serde_json::from_str(text);
        let mut object = object.map_err(|error| SwitchError::NoObject(error.to_string()))?;
        if let Some(value) = object.remove("Communication") {
            object.entry(NAMES.communication).or_insert(value);
        }
        let mut take = |name| match object.remove(name) {
            Some(Value::String(text)) if text == "on" => Ok(Switch::On),
            Some(Value::String(text)) if text == "off" => Ok(Switch::Off),
            Some(value) => Err(SwitchError::NoSwitch { name, value: cut(value.to_string()) }),
            None => Err(SwitchError::Missing(name)),
        };
        let mut requested = Requested {
            communication: take(NAMES.communication)?,
            step: take(NAMES.step)?,
            save_checkpoint: take(NAMES.save_checkpoint)?,
            forward: take(NAMES.forward)?,
            data_loader: take(NAMES.data_loader)?,
            ..Requested::NONE
        };
        let of_devices = [
            (NAMES.kernel, &mut requested.kernel),
            (NAMES.copy, &mut requested.copy),
            (NAMES.api, &mut requested.api),
            (NAMES.marker, &mut requested.marker),
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

    /// Returns true if the request switches at least one kind of trace record on.
    #[must_use]
    pub fn has_any(&self) -> bool {
        *self != Requested::NONE
    }

    /// Returns true if any of the document's five kinds is on.
    pub(super) fn has_any_of_five(&self) -> bool {
        let [five @ .., _, _, _, _] = self.into_array();
        five.contains(&Switch::On)
    }
}

impl fmt::Display for Requested {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let on = self.zip(NAMES).into_array().into_iter().filter(|(switch, _)| switch.is_on());
        let names: Vec<&str> = on.map(|(_, name)| name).collect();
        f.write_str(if names.is_empty() { "nothing" } else { "" })?;
        f.write_str(&names.join(", "))
    }
}

/// Cuts a text to the length that fits in a message, and marks the cut.
#[doc(hidden)]
pub fn cut(mut text: String) -> String {
    const CHARS_MAX: usize = 40;
    if let Some((end, _)) = text.char_indices().nth(CHARS_MAX) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// Reasons why a `profilingSwitch` document was rejected; a rejected document changes no switch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SwitchError {
    /// The document is not a JSON object.
    #[error(
        "it is not a JSON object ({0}): write all five kinds, such as {{\"CommunicationOperator\":\"off\",\"Step\":\"on\",\
         \"SaveCheckpoint\":\"on\",\"FP\":\"on\",\"DataLoader\":\"on\"}}"
    )]
    NoObject(String),
    /// The document lacks a required kind of trace record; contains the name of the kind.
    #[error("{0} is missing: write \"on\" or \"off\" for each of the five kinds")]
    Missing(&'static str),
    /// The value of a kind of trace record is neither `on` nor `off`.
    #[error("{name} is {value}: write \"on\" or \"off\"")]
    NoSwitch {
        /// Name of the kind of trace record in the document.
        name: &'static str,
        /// The invalid value, cut if it is long.
        value: String,
    },
}

/// The rule by which a request determines which kinds of trace record are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The rule of MindCluster, which has two switches instead of five. Records of steps, checkpoints, forward passes
    /// and data loading are switched together: off if all five kinds are requested off, otherwise on. Communication
    /// follows its own request, so communication is never recorded alone. Kinds that MindCluster does not have, such as
    /// device kernels, follow their own request.
    Compatible,
    /// The rule that the records of each kind are made if the request switches this kind on.
    #[default]
    Native,
}

/// Returns the switches that are in effect for the request `requested` under the rule `mode`.
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
    fn unknown_keys_are_returned_and_switch_nothing() {
        let more = DOCUMENT.replace("\"Step\"", "\"Kernels\":\"on\",\"Acl\":[1],\"Step\"");
        let unknown = vec!["Acl".to_owned(), "Kernels".to_owned()];
        assert_eq!(Requested::parse(more.as_bytes()), Ok((requested(), unknown)));
    }

    #[test]
    fn device_kinds_not_named_in_the_document_are_off() {
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
        assert!(told("").starts_with("it is not a JSON object (it is empty): write all five"), "{}", told(""));
        let marked = told(&format!("\u{feff}{DOCUMENT}"));
        assert!(
            marked.starts_with("it is not a JSON object (it begins with a byte-order mark of UTF-8: save"),
            "{marked}"
        );
        assert!(told(&DOCUMENT[..50]).ends_with("\"FP\":\"on\",\"DataLoader\":\"on\"}"), "{}", told(&DOCUMENT[..50]));
        assert!(told("[]").starts_with("it is not a JSON object (invalid type: sequence"), "{}", told("[]"));
        let sentence = "DataLoader is missing: write \"on\" or \"off\" for each of the five kinds";
        assert_eq!(told(&DOCUMENT.replace("DataLoader", "Dataloader")), sentence);
        assert_eq!(told(&DOCUMENT.replace("\"on\"", "true")), "Step is true: write \"on\" or \"off\"");
        assert_eq!(told(&DOCUMENT.replace("\"on\"", "\"On\"")), "Step is \"On\": write \"on\" or \"off\"");
        let long = told(&DOCUMENT.replace("\"on\"", &format!("\"{}\"", "é".repeat(99))));
        assert_eq!(long, format!("Step is \"{}…: write \"on\" or \"off\"", "é".repeat(39)));
    }

    #[test]
    fn a_request_displays_the_names_of_the_kinds_that_are_on() {
        assert_eq!(requested().to_string(), "Step, SaveCheckpoint, DataLoader");
        assert_eq!(Requested::NONE.to_string(), "nothing");
    }
}
