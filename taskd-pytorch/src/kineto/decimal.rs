//! Numbers of a trace as other tools read them: floats as a JSON parser yields them, and integers.

/// Largest count of nanoseconds that a float holds exactly.
const EXACT_IN_FLOAT: u64 = 1 << 53;

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
    let value = i64::try_from(value).ok()?;
    Some(if is_negative { -value } else { value })
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskd_core::analysis::decimal::ns_from_us;

    #[test]
    fn floats_are_those_of_a_json_parser() {
        for text in ["0.1", "5009734009629.971", "1795100000000000.123", "9007199254740993", "1.2345678", "7e-3", "12"]
        {
            let exact = ns_from_us(text.as_bytes()).unwrap();
            assert_eq!(as_float(text.as_bytes(), exact), text.parse::<f64>().unwrap(), "{text}");
        }
    }
}
