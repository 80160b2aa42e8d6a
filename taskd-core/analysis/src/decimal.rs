//! Exact conversion of decimal numbers in trace files to integer nanoseconds.
//!
//! A conversion through floating-point numbers loses nanoseconds: microseconds since 1970 with three decimals need more
//! digits than `f64` has.

/// Largest magnitude of a decimal exponent that is read: more is not a time.
const EXPONENT_MAX: i32 = 30;

/// Converts a decimal number of microseconds, such as `1718000000123456.789` or `1.5e-3`, to nanoseconds, rounded to the
/// nearest (a half rounds away from zero). `None`: the bytes are not a decimal number, or the result does not fit.
#[inline]
#[must_use]
pub fn ns_from_us(text: &[u8]) -> Option<i64> {
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
        Some(_) => return general(digits, 3).and_then(|value| signed(value, is_negative)),
    };
    let mut thousandths = 0;
    for index in 0..3 {
        let digit = fraction.get(index).map_or(0, |byte| byte.wrapping_sub(b'0'));
        if digit > 9 {
            return general(digits, 3).and_then(|value| signed(value, is_negative));
        }
        thousandths = thousandths * 10 + u64::from(digit);
    }
    signed(whole.checked_mul(1000)?.checked_add(thousandths)?, is_negative)
}

fn signed(magnitude: u64, is_negative: bool) -> Option<i64> {
    let value = i64::try_from(magnitude).ok()?;
    Some(if is_negative { -value } else { value })
}

/// Converts a decimal number of milliseconds, such as `0.0125`, to nanoseconds, as [`ns_from_us`] does.
#[must_use]
pub fn ns_from_ms(text: &[u8]) -> Option<i64> {
    let (is_negative, digits) = text.strip_prefix(b"-").map_or((false, text), |digits| (true, digits));
    general(digits, 6).and_then(|value| signed(value, is_negative))
}

/// Returns the number times ten to the power of `scale`.
#[cold]
fn general(digits: &[u8], scale: i32) -> Option<u64> {
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
    let cut = i32::try_from(whole.len()).ok()?.checked_add(exponent)?.checked_add(scale)?;
    let Ok(cut) = usize::try_from(cut) else { return Some(0) };
    let mut all = whole.bytes().chain(fraction.bytes()).chain(std::iter::repeat(b'0'));
    let mut value = 0_u64;
    for digit in all.by_ref().take(cut) {
        value = value.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
    }
    let rounds_up = all.next().is_some_and(|digit| digit >= b'5');
    value.checked_add(u64::from(rounds_up))
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
            assert_eq!(ns_from_us(text.as_bytes()), *expected, "{text}");
        }
    }

    #[test]
    fn decimal_milliseconds_become_exact_nanoseconds() {
        for (text, expected) in [("0.0125", Some(12_500)), ("-2", Some(-2_000_000)), ("1e-5", Some(10)), ("x", None)] {
            assert_eq!(ns_from_ms(text.as_bytes()), expected, "{text}");
        }
    }
}
