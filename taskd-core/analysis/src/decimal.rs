//! Exact conversion of decimal numbers in trace files to integer nanoseconds.
//!
//! A conversion through floating-point numbers loses nanoseconds: microseconds since 1970 with three decimals need more
//! digits than `f64` has.

/// Converts a decimal number of microseconds, such as `1718000000123456.789`, to nanoseconds. Digits beyond nanoseconds
/// are cut off. `None`: the text is not a decimal number, or the result does not fit.
#[must_use]
pub fn ns_from_us(text: &str) -> Option<i64> {
    scaled(text, 3)
}

/// Converts a decimal number of milliseconds, such as `0.0125`, to nanoseconds. Digits beyond nanoseconds are cut off.
/// `None`: the text is not a decimal number, or the result does not fit.
#[must_use]
pub fn ns_from_ms(text: &str) -> Option<i64> {
    scaled(text, 6)
}

/// Returns the number times ten to the power of `digits`.
fn scaled(text: &str, digits: usize) -> Option<i64> {
    let text = text.trim();
    let (sign, text) = text.strip_prefix('-').map_or((1, text), |rest| (-1, rest));
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if (whole.is_empty() && fraction.is_empty()) || !is_number(whole) || !is_number(fraction) {
        return None;
    }
    let kept = fraction.bytes().chain(std::iter::repeat(b'0')).take(digits);
    let value = whole
        .bytes()
        .chain(kept)
        .try_fold(0_i64, |value, digit| value.checked_mul(10)?.checked_add(i64::from(digit - b'0')))?;
    Some(sign * value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_become_exact_nanoseconds() {
        assert_eq!(ns_from_us("1718000000123456.789"), Some(1_718_000_000_123_456_789));
        assert_eq!(ns_from_us(" 12\t"), Some(12_000));
        assert_eq!(ns_from_us("-0.5"), Some(-500));
        assert_eq!(ns_from_us(".0019"), Some(1));
        assert_eq!(ns_from_ms("0.0125"), Some(12_500));
        for text in ["", ".", "-", "1e6", "N/A", "1.2.3", "99999999999999999999"] {
            assert_eq!(ns_from_us(text), None, "{text}");
        }
    }
}
