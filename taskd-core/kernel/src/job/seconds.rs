//! Serde format of durations in documents for people: `"1.5s"`.
//!
//! Values are never rounded. In formats that are not human-readable a duration has serde's own form of [`Duration`].

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::time::Duration;

/// Serde format of a duration, for `#[serde(with = "Seconds")]`. It writes decimal seconds with their unit, and also
/// reads other units (`"20ms"`, `"5min"`, `"2h"`, `"1d"`) and plain numbers of seconds.
#[derive(Debug)]
#[doc(hidden)]
pub struct Seconds;

/// Serde format of an optional duration.
#[derive(Debug)]
pub(crate) struct OptionalSeconds;

/// Description of the accepted forms, for error messages.
pub(crate) const FORMS: &str =
    "a duration such as \"90s\", \"20ms\", \"5min\", \"2h\" or \"1d\", or a number of seconds";

const UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("min", 60_000_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];

impl Seconds {
    #[doc(hidden)]
    pub fn serialize<S: Serializer>(time: &Duration, s: S) -> Result<S::Ok, S::Error> {
        if s.is_human_readable() { s.collect_str(&Written(*time)) } else { time.serialize(s) }
    }

    #[doc(hidden)]
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
        if d.is_human_readable() { d.deserialize_any(Reader) } else { Duration::deserialize(d) }
    }
}

impl OptionalSeconds {
    pub(crate) fn serialize<S: Serializer>(time: &Option<Duration>, s: S) -> Result<S::Ok, S::Error> {
        time.map(Whole).serialize(s)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<Whole>::deserialize(d)?.map(|Whole(time)| time))
    }
}

#[derive(Serialize, Deserialize)]
#[serde(transparent)]
struct Whole(#[serde(with = "Seconds")] Duration);

struct Written(Duration);

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.as_secs())?;
        match self.0.subsec_nanos() {
            0 => {}
            nanos => f.write_str(format!(".{nanos:09}").trim_end_matches('0'))?,
        }
        f.write_str("s")
    }
}

/// Parses a decimal number with a unit, exactly. Returns `None` for fractions of a nanosecond and for values too long
/// for a [`Duration`].
fn parse(text: &str) -> Option<Duration> {
    let (number, unit) = UNITS.iter().find_map(|(unit, nanos)| Some((text.strip_suffix(unit)?.trim_end(), *nanos)))?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(fraction) {
        return None;
    }
    let fraction = fraction.trim_end_matches('0');
    let scale = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let numerator = format!("{whole}{fraction}").parse::<u128>().ok()?.checked_mul(u128::from(unit))?;
    let nanos = (numerator % scale == 0).then(|| numerator / scale)?;
    let subsec = u32::try_from(nanos % 1_000_000_000).ok()?;
    Some(Duration::new(u64::try_from(nanos / 1_000_000_000).ok()?, subsec))
}

struct Reader;

impl Visitor<'_> for Reader {
    type Value = Duration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(FORMS)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Duration, E> {
        parse(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }

    fn visit_u64<E: Error>(self, seconds: u64) -> Result<Duration, E> {
        Ok(Duration::from_secs(seconds))
    }

    fn visit_f64<E: Error>(self, seconds: f64) -> Result<Duration, E> {
        Duration::try_from_secs_f64(seconds).map_err(|_| E::invalid_value(Unexpected::Float(seconds), &self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Of(#[serde(with = "Seconds")] Duration);

    fn read(json: &str) -> Result<Duration, String> {
        serde_json::from_str::<Of>(json).map(|of| of.0).map_err(|e| e.to_string())
    }

    #[test]
    fn people_write_numbers_and_units() {
        for (json, ms) in [
            ("10", 10_000),
            ("0.02", 20),
            ("\"20ms\"", 20),
            ("\"1.5s\"", 1500),
            ("\"1.5 min\"", 90_000),
            ("\"5m\"", 300_000),
            ("\"2h\"", 7_200_000),
            ("\"0.5d\"", 43_200_000),
        ] {
            assert_eq!(read(json), Ok(Duration::from_millis(ms)), "{json}");
        }
        assert_eq!(serde_json::to_string(&Of(Duration::from_millis(1500))).expect("it has a form"), "\"1.5s\"");
    }

    #[test]
    fn an_invalid_duration_is_refused_with_the_valid_forms() {
        for json in [
            "\"10\"",
            "\"s\"",
            "\"-1s\"",
            "\"1.s\"",
            "\"1e3s\"",
            "\"0.1ns\"",
            "-1",
            "1e30",
            "null",
            "\"99999999999999999999d\"",
        ] {
            let error = read(json).expect_err(json);
            assert!(error.contains(FORMS), "{json}: {error}");
        }
    }

    proptest! {
        #[test]
        fn every_duration_comes_back_to_the_nanosecond(secs in any::<u64>(), nanos in 0..1_000_000_000_u32) {
            let time = Duration::new(secs, nanos);
            let json = serde_json::to_string(&Of(time)).expect("it has a form");
            prop_assert_eq!(read(&json), Ok(time));
            let bytes = postcard::to_stdvec(&Of(time)).expect("it has a form");
            prop_assert_eq!(bytes, postcard::to_stdvec(&time).expect("it has a form"), "untouched where nobody reads it");
        }

        #[test]
        fn any_text_is_read_or_refused(text in ".*") {
            let _ = parse(&text);
        }
    }
}
