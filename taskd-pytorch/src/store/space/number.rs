//! Numbers in torch's form: decimal text, read in the way of C++'s `stoll`.

/// Parses the number at the beginning of a value. `None` if there is none, or if it exceeds 64 bits.
pub(super) fn decimal(text: &[u8]) -> Option<i64> {
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t'..=b'\r');
    let text = &text[text.iter().position(|byte| !is_space(byte))?..];
    let (is_negative, text) = match text.first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit());
    let mut number = None;
    for digit in digits {
        let (digit, so_far) = (i64::from(digit - b'0'), number.unwrap_or(0i64).checked_mul(10)?);
        number = Some(if is_negative { so_far.checked_sub(digit)? } else { so_far.checked_add(digit)? });
    }
    number
}

/// Formats a number as text, in `room`.
pub(super) fn to_decimal(number: i64, room: &mut [u8; 20]) -> &[u8] {
    let (mut at, mut rest) = (room.len(), number.unsigned_abs());
    loop {
        at -= 1;
        room[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if number < 0 {
        at -= 1;
        room[at] = b'-';
    }
    &room[at..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_read_as_torch_reads_it() {
        let read = |text: &str| decimal(text.as_bytes());
        assert_eq!(read("0"), Some(0));
        assert_eq!(read("-2"), Some(-2));
        assert_eq!(read("+3"), Some(3));
        assert_eq!(read(" \t\n\x0b\x0c\r12abc"), Some(12));
        assert_eq!(read("1\x002"), Some(1));
        assert_eq!(read("9223372036854775807"), Some(i64::MAX));
        assert_eq!(read("-9223372036854775808"), Some(i64::MIN));
        for none in ["", " ", "-", "+-1", "abc", "9223372036854775808", "-9223372036854775809"] {
            assert_eq!(read(none), None, "{none:?}");
        }
    }

    #[test]
    fn decimal_text_written_is_parsed_back() {
        for number in [0, 7, -7, 10, 100, -99, i64::MAX, i64::MIN] {
            let mut room = [0; 20];
            let text = to_decimal(number, &mut room);
            assert_eq!(text, number.to_string().as_bytes());
            assert_eq!(decimal(text), Some(number));
        }
    }
}
