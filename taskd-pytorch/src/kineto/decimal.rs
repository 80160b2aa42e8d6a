//! Microseconds in decimal notation, as traces have them, become integer nanoseconds without a detour over floats.

/// Largest count of nanoseconds that a float holds exactly.
const EXACT_IN_FLOAT: u64 = 1 << 53;

/// Largest magnitude of a decimal exponent that is read: more is not a time.
const EXPONENT_MAX: i32 = 30;

/// Returns the nanoseconds of a decimal number of microseconds, rounded to the nearest (a half rounds away from zero);
/// `None` if the bytes are not a decimal number or the result does not fit.
#[inline]
pub(super) fn nanoseconds(text: &[u8]) -> Option<i64> {
    let (is_negative, digits) = match text.split_first()? {
        (b'-', rest) => (true, rest),
        (b'+', rest) => (false, rest),
        _ => (false, text),
    };
    let mut whole = 0_u64;
    let mut at = 0;
    while let Some(digit) = digits.get(at).map(|byte| byte.wrapping_sub(b'0')).filter(|digit| *digit < 10) {
        whole = whole.checked_mul(10)?.checked_add(u64::from(digit))?;
        at += 1;
    }
    let rest = digits.get(at..).filter(|_| at > 0)?;
    let fraction = match rest.split_first() {
        None => return signed(whole.checked_mul(1000)?, is_negative),
        Some((b'.', fraction)) if fraction.len() <= 3 => fraction,
        Some(_) => return general(digits).and_then(|value| signed(value, is_negative)),
    };
    let mut thousandths = 0;
    for index in 0..3 {
        let digit = fraction.get(index).map_or(0, |byte| byte.wrapping_sub(b'0'));
        if digit > 9 {
            return general(digits).and_then(|value| signed(value, is_negative));
        }
        thousandths = thousandths * 10 + u64::from(digit);
    }
    signed(whole.checked_mul(1000)?.checked_add(thousandths)?, is_negative)
}

fn signed(magnitude: u64, is_negative: bool) -> Option<i64> {
    let value = i64::try_from(magnitude).ok()?;
    Some(if is_negative { -value } else { value })
}

/// The same for numbers with an exponent, or with more than three digits after the point.
#[cold]
fn general(digits: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(digits).ok()?;
    let (number, exponent) = match text.split_once(['e', 'E']) {
        Some((number, exponent)) => (number, exponent.parse::<i32>().ok()?),
        None => (text, 0),
    };
    if exponent.abs() > EXPONENT_MAX {
        return None;
    }
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || !whole.bytes().chain(fraction.bytes()).all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // The digit at this index is the first one below a nanosecond.
    let cut = i32::try_from(whole.len()).ok()?.checked_add(exponent)?.checked_add(3)?;
    let Ok(cut) = usize::try_from(cut) else { return Some(0) };
    let mut all = whole.bytes().chain(fraction.bytes()).chain(std::iter::repeat(b'0'));
    let mut value = 0_u64;
    for digit in all.by_ref().take(cut) {
        value = value.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
    }
    let rounds_up = all.next().is_some_and(|digit| digit >= b'5');
    value.checked_add(u64::from(rounds_up))
}

/// Returns the float that a JSON parser yields for the number, in microseconds. `nanoseconds` is the exact value of the
/// same bytes.
#[inline]
pub(super) fn as_float(text: &[u8], nanoseconds: i64) -> f64 {
    let fraction = text.iter().rev().position(|byte| *byte == b'.').unwrap_or(0);
    let is_exact = nanoseconds.unsigned_abs() < EXACT_IN_FLOAT && fraction <= 3 && !is_scientific(text);
    #[allow(clippy::cast_precision_loss, reason = "exact below 2^53; above, the digits are parsed")]
    if is_exact {
        nanoseconds as f64 / 1000.0 // a division of two exact floats is rounded once, as parsing is
    } else {
        std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).unwrap_or(nanoseconds as f64 / 1000.0)
    }
}

fn is_scientific(text: &[u8]) -> bool {
    text.iter().any(|byte| matches!(byte, b'e' | b'E'))
}

/// Returns true if a JSON parser yields a float, not an integer, for the number.
#[inline]
pub(super) fn is_float(text: &[u8]) -> bool {
    text.iter().any(|byte| matches!(byte, b'.' | b'e' | b'E'))
}

/// Returns the integer in the bytes, if they are one.
#[inline]
pub(super) fn integer(text: &[u8]) -> Option<i64> {
    let (is_negative, digits) = match text.split_first()? {
        (b'-', rest) => (true, rest),
        _ => (false, text),
    };
    if digits.is_empty() {
        return None;
    }
    let mut value = 0_u64;
    for byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    signed(value, is_negative)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_microseconds_become_exact_nanoseconds() {
        let cases: &[(&str, Option<i64>)] = &[
            ("0", Some(0)),
            ("12", Some(12_000)),
            ("12.5", Some(12_500)),
            ("12.", Some(12_000)),
            ("5009734009629.971", Some(5_009_734_009_629_971)),
            ("-1.001", Some(-1_001)),
            ("1.0004999", Some(1_000)),
            ("1.0005", Some(1_001)),
            ("1e3", Some(1_000_000)),
            ("1.7951e15", Some(1_795_100_000_000_000_000)),
            ("1.5E-3", Some(2)),
            ("4e-4", Some(0)),
            ("9223372036854775.807", Some(i64::MAX)),
            ("9223372036854775.808", None),
            ("99999999999999999999999", None),
            ("1e31", None),
            (".5", None),
            ("-", None),
            ("", None),
            ("1.x", None),
            ("nan", None),
        ];
        for (text, expected) in cases {
            assert_eq!(nanoseconds(text.as_bytes()), *expected, "{text}");
        }
    }

    #[test]
    fn floats_are_those_of_a_json_parser() {
        for text in ["0.1", "5009734009629.971", "1795100000000000.123", "9007199254740993", "1.2345678", "7e-3", "12"]
        {
            let exact = nanoseconds(text.as_bytes()).unwrap();
            assert_eq!(as_float(text.as_bytes(), exact), text.parse::<f64>().unwrap(), "{text}");
        }
    }
}
