//! Calendar time for messages.

use std::fmt;

use rustls::pki_types::UnixTime;

/// Seconds since 1970 without leap seconds, displayed as calendar time in UTC: `2026-11-29T14:56:07Z`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Utc(pub u64);

impl From<UnixTime> for Utc {
    fn from(time: UnixTime) -> Self {
        Self(time.as_secs())
    }
}

impl fmt::Display for Utc {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, seconds) = (self.0 / 86_400, self.0 % 86_400);
        let (year, month, day) = civil_from_days(days);
        let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        write!(out, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
    }
}

/// Returns year, month and day of a day since 1970. Source: Howard Hinnant, "chrono-Compatible Low-Level Date
/// Algorithms", `civil_from_days`, for days since 1970 only.
const fn civil_from_days(days: u64) -> (u64, u64, u64) {
    // Eras of 400 years begin on the first of March, so that the leap day is the last of its year.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + if month <= 2 { 1 } else { 0 };
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::Utc;

    #[test]
    fn utc_of_known_seconds_is_the_calendar_time() {
        // From `date -u -d @SECONDS`.
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_709_251_200, "2024-03-01T00:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(Utc(seconds).to_string(), text);
        }
    }
}
