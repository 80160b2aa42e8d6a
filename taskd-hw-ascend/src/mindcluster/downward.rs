//! Parser of downward-API files, which Kubernetes creates from a pod's labels and annotations.
//!
//! There are two formats: a file with all of them, one line `key="value"` each, quoted like Go's `%q`; and a file that
//! has the name of one key and contains its bare value. Values are not interpreted.

use super::{Key, Setting, Source};

/// Parses such a file. On error, returns the line number (from 1) and the problem.
pub(super) fn read(text: &str, name: Option<&str>, source: &Source) -> Result<Vec<Setting>, (usize, String)> {
    if let Some(key) = name.and_then(Key::named) {
        return Ok(vec![Setting::new(key, text, source)]);
    }
    let mut settings = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = || (index + 1, format!("{} is not of the form key=\"value\"", super::setting::shown(line)));
        let (key, value) = line.split_once('=').ok_or_else(wrong)?;
        let value = unquoted(value.trim_end()).ok_or_else(wrong)?;
        if key.trim().is_empty() {
            return Err(wrong());
        }
        settings.extend(Key::named(key.trim()).map(|key| Setting::new(key, &value, source)));
    }
    Ok(settings)
}

/// Returns the text that Go's `strconv.Quote` has quoted; `None` if the quotes or escapes are invalid.
fn unquoted(text: &str) -> Option<String> {
    let inner = text.strip_prefix('"')?.strip_suffix('"')?;
    let (mut bytes, mut rest) = (Vec::new(), inner.chars());
    while let Some(c) = rest.next() {
        match c {
            '"' => return None,
            '\\' => escaped(&mut rest, &mut bytes)?,
            c => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

fn escaped(rest: &mut std::str::Chars<'_>, bytes: &mut Vec<u8>) -> Option<()> {
    let byte = match rest.next()? {
        'a' => 0x07,
        'b' => 0x08,
        'f' => 0x0c,
        'n' => b'\n',
        'r' => b'\r',
        't' => b'\t',
        'v' => 0x0b,
        '\\' => b'\\',
        '"' => b'"',
        'x' => u8::try_from(hex(rest, 2)?).ok()?, // a byte that was not UTF-8
        'u' => return push(char::from_u32(hex(rest, 4)?)?, bytes),
        'U' => return push(char::from_u32(hex(rest, 8)?)?, bytes),
        _ => return None,
    };
    bytes.push(byte);
    Some(())
}

fn push(c: char, bytes: &mut Vec<u8>) -> Option<()> {
    bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
    Some(())
}

fn hex(rest: &mut std::str::Chars<'_>, digits: usize) -> Option<u32> {
    (0..digits).try_fold(0_u32, |number, _| Some((number << 4) | rest.next()?.to_digit(16)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the text in quotes as Go's `strconv.Quote` does, for text that needs no other escapes.
    fn quoted(text: &str) -> String {
        let mut out = String::from("\"");
        for c in text.chars() {
            match c {
                '"' | '\\' => out.extend(['\\', c]),
                '\n' => out.push_str("\\n"),
                c if (c as u32) < 0x20 => out.push_str(&format!("\\x{:02x}", c as u32)),
                c if c.is_control() => out.push_str(&format!("\\u{:04x}", c as u32)),
                c => out.push(c),
            }
        }
        out + "\""
    }

    #[test]
    fn go_escaped_text_is_unquoted_and_malformed_text_is_refused() {
        for (written, value) in [
            (r#""a\"b\\c""#, Some("a\"b\\c")),
            (r#""\tx\u00e9\U0001F600\x41""#, Some("\tx\u{e9}\u{1F600}A")),
            (r#""open"#, None),
            (r#""a"b""#, None),
            (r#""\q""#, None),
            (r#""\ud800""#, None),
            ("bare", None),
            ("\"", None),
        ] {
            assert_eq!(unquoted(written).as_deref(), value, "{written}");
        }
    }

    proptest! {
        #[test]
        fn every_text_comes_back(text in any::<String>()) {
            prop_assert_eq!(unquoted(&quoted(&text)), Some(text));
        }

        #[test]
        fn any_text_is_read_or_refused(text in any::<String>()) {
            let _ = read(&text, None, &Source::Environment);
        }
    }
}
