//! Calendar time, for people: it relates events to the entries of other logs.
//!
//! No decision depends on calendar time, and this module reads no clock: the shell supplies the time.

use serde::de::{Error as _, Unexpected};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// A calendar time in milliseconds of Unix time, written as in RFC 3339 in UTC: `2026-07-01T03:12:44.123Z`.
///
/// ```
/// # extern crate taskd_kernel as taskd_core;
/// use taskd_core::job::WallTime;
///
/// let at = WallTime::from_unix_ms(1_782_875_564_123);
/// assert_eq!(at.to_string(), "2026-07-01T03:12:44.123Z");
/// assert_eq!("2026-07-01T03:12:44.123Z".parse(), Ok(at));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WallTime(u64);

/// Error: a text is not a calendar time such as `2026-07-01T03:12:44.123Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write a time as in RFC 3339 in UTC, with milliseconds: 2026-07-01T03:12:44.123Z")]
pub struct ParseWallTimeError;

const MS_PER_DAY: u64 = 86_400_000;
/// Days in 400 years, the period after which the calendar repeats.
const ERA_DAYS: u64 = 146_097;
/// Days from 0000-03-01 to 1970-01-01. Years begin on 1 March here, so that the leap day is the last day of a year.
const EPOCH_DAYS: u64 = 719_468;
/// Last millisecond of the year 9999, in Unix time: RFC 3339 has four digits for a year.
const UNIX_MS_MAX: u64 = 253_402_300_799_999;

impl WallTime {
    /// Converts milliseconds of Unix time; a time after the year 9999 becomes the last millisecond of that year.
    #[must_use]
    pub const fn from_unix_ms(unix_ms: u64) -> WallTime {
        WallTime(if unix_ms > UNIX_MS_MAX { UNIX_MS_MAX } else { unix_ms })
    }

    /// Returns the time in milliseconds of Unix time.
    #[must_use]
    pub const fn as_unix_ms(self) -> u64 {
        self.0
    }
}

impl fmt::Display for WallTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, ms) = (self.0 / MS_PER_DAY + EPOCH_DAYS, self.0 % MS_PER_DAY);
        // Years begin in March; the corrections are for the extra or missing day at the end of 4, 100 and 400 years.
        let (era, day) = (days / ERA_DAYS, days % ERA_DAYS);
        let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153; // five months have 153 days, from March on
        let day = day - (153 * month + 2) / 5 + 1;
        let (year, month) = (400 * era + year + u64::from(month >= 10), if month < 10 { month + 3 } else { month - 9 });
        let (hour, minute, second) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", ms % 1000)
    }
}

impl FromStr for WallTime {
    type Err = ParseWallTimeError;

    fn from_str(text: &str) -> Result<WallTime, ParseWallTimeError> {
        let number = |from: usize, to: usize| text.get(from..to).and_then(|digits| digits.parse::<u64>().ok());
        let fields =
            [(0, 4), (5, 7), (8, 10), (11, 13), (14, 16), (17, 19), (20, 23)].map(|(from, to)| number(from, to));
        let [Some(year), Some(month @ 1..=12), Some(day @ 1..=31), Some(hour), Some(minute), Some(second), Some(ms)] =
            fields
        else {
            return Err(ParseWallTimeError);
        };
        let (year, month) =
            if month > 2 { (year, month - 3) } else { (year.checked_sub(1).ok_or(ParseWallTimeError)?, month + 9) };
        let days =
            year / 400 * ERA_DAYS + year % 400 * 365 + year % 400 / 4 - year % 400 / 100 + (153 * month + 2) / 5 + day
                - 1;
        let days = days.checked_sub(EPOCH_DAYS).ok_or(ParseWallTimeError)?;
        let at = WallTime(days * MS_PER_DAY + hour * 3_600_000 + minute * 60_000 + second * 1000 + ms);
        // A date that does not exist, or a text in another format, does not round-trip.
        if at.to_string() == text { Ok(at) } else { Err(ParseWallTimeError) }
    }
}

impl Serialize for WallTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for WallTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<WallTime, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse()
            .map_err(|_| D::Error::invalid_value(Unexpected::Str(&text), &"a time such as 2026-07-01T03:12:44.123Z"))
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for WallTime {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "WallTime".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "A point in time as in RFC 3339, in UTC: `2026-07-01T03:12:44.123Z`.",
            "type": "string",
            "format": "date-time"
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn days_around_leap_days_and_ends_of_years() {
        for (unix_s, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (951_868_799, "2000-02-29T23:59:59.000Z"),
            (951_868_800, "2000-03-01T00:00:00.000Z"),
            (1_709_164_800, "2024-02-29T00:00:00.000Z"),
            (1_735_689_599, "2024-12-31T23:59:59.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
            (253_402_300_799, "9999-12-31T23:59:59.000Z"),
        ] {
            assert_eq!(WallTime::from_unix_ms(unix_s * 1000).to_string(), text);
        }
        assert_eq!(WallTime::from_unix_ms(u64::MAX).to_string(), "9999-12-31T23:59:59.999Z");
    }

    #[test]
    fn an_invalid_wall_time_is_refused() {
        for text in [
            "",
            "2026-07-01",
            "2026-02-30T00:00:00.000Z",
            "2026-07-01T25:00:00.000Z",
            "1969-12-31T23:59:59.999Z",
            "2026-07-01T03:12:44.123+02:00",
            "2026-13-01T00:00:00.000Z",
            "0000-01-01T00:00:00.000Z",
            "é026-07-01T03:12:44.123Z",
        ] {
            assert_eq!(text.parse::<WallTime>(), Err(ParseWallTimeError), "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_moment_comes_back_and_later_ones_sort_later(one in 0..=UNIX_MS_MAX, other in 0..=UNIX_MS_MAX) {
            let (one, other) = (WallTime::from_unix_ms(one), WallTime::from_unix_ms(other));
            prop_assert_eq!(one.to_string().parse(), Ok(one));
            prop_assert_eq!(one.cmp(&other), one.to_string().cmp(&other.to_string()));
            let json = serde_json::to_string(&one).expect("it has a form");
            prop_assert_eq!(serde_json::from_str::<WallTime>(&json).expect("its own form"), one);
        }
    }
}
