//! Encoding of values as payloads: by name, or in the compact form of observations.
//!
//! Bytes that are not exactly one value of the expected type are refused with the reason.
//!
//! *Named* (MessagePack, structs as maps, variants by name) is used for everything except observations. A field that a
//! later version adds has a default there, so the later version reads what this one wrote. Types in the log must not
//! change in any other way: a field or variant that is removed, or changes its meaning, makes older logs unreadable.
//!
//! *Compact* (postcard, by position) is used for observations, of which there are millions: a heartbeat takes a dozen
//! bytes. [`Observation`](crate::trace::Observation) and all types in it are frozen, except for new variants at the end
//! of an enum. Any other change needs new record kinds, so that the existing kinds stay readable.
//!
//! Tests with the recorded files in `tests/recorded` detect violations of either rule.

use super::record::EncodeError;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Appends a value with the names of its fields and variants.
pub(super) fn write_named<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) -> Result<(), EncodeError> {
    let mut named = rmp_serde::Serializer::new(out).with_struct_map();
    value.serialize(&mut named).map_err(|e| EncodeError::Form(e.to_string()))
}

/// Reads a value that [`write_named`] wrote. The payload must contain nothing else.
pub(super) fn read_named<T: DeserializeOwned>(payload: &[u8]) -> Result<T, String> {
    let mut rest = payload;
    let value = T::deserialize(&mut rmp_serde::Deserializer::new(&mut rest)).map_err(|e| e.to_string())?;
    if rest.is_empty() { Ok(value) } else { Err(left_over(rest)) }
}

/// Appends a value by position.
pub(super) fn write_compact<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) -> Result<(), EncodeError> {
    postcard::serialize_with_flavor(value, Appended(out)).map_err(|e| EncodeError::Form(e.to_string()))
}

/// Reads a value that [`write_compact`] wrote. The payload must contain nothing else.
pub(super) fn read_compact<T: DeserializeOwned>(payload: &[u8]) -> Result<T, String> {
    let (value, rest) = postcard::take_from_bytes(payload).map_err(|e| e.to_string())?;
    if rest.is_empty() { Ok(value) } else { Err(left_over(rest)) }
}

/// Returns true if two values have the same encoding. Used instead of `==`, because NaN does not equal itself.
pub(super) fn same<T: Serialize + ?Sized>(a: &T, b: &T) -> bool {
    let (mut of_a, mut of_b) = (Vec::new(), Vec::new());
    write_named(&mut of_a, a).is_ok() && write_named(&mut of_b, b).is_ok() && of_a == of_b
}

fn left_over(rest: &[u8]) -> String {
    format!("{} bytes more than its value", rest.len())
}

/// Postcard flavor that appends to a buffer.
struct Appended<'a>(&'a mut Vec<u8>);

impl postcard::ser_flavors::Flavor for Appended<'_> {
    type Output = ();

    #[inline]
    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    #[inline]
    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use std::collections::BTreeMap;

    /// Types as an earlier version has them; the ones below are those of the next version.
    mod before {
        use super::*;

        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        pub(super) struct Policy {
            pub(super) tries: u32,
            pub(super) ranks: BTreeMap<(u8, u8), What>,
        }

        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        pub(super) enum What {
            Stop { grace: f64 },
        }
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Policy {
        #[serde(default)]
        within: Option<u64>,
        ranks: BTreeMap<(u8, u8), What>,
        tries: u32,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum What {
        Hold,
        Stop {
            #[serde(default)]
            hard: bool,
            grace: f64,
        },
    }

    fn named(value: &impl Serialize) -> Vec<u8> {
        let mut bytes = Vec::new();
        write_named(&mut bytes, value).expect("it has a form");
        bytes
    }

    #[test]
    fn a_later_version_reads_what_lacks_its_new_fields_in_whatever_order() {
        let old = before::Policy { tries: 7, ranks: [((1, 2), before::What::Stop { grace: 0.5 })].into() };
        let read: Policy = read_named(&named(&old)).expect("it is read");
        let stop = What::Stop { hard: false, grace: 0.5 };
        assert_eq!(read, Policy { within: None, ranks: [((1, 2), stop)].into(), tries: 7 });
    }

    #[test]
    fn a_variant_that_is_newer_than_its_reader_is_refused_by_name() {
        let new = Policy { within: None, ranks: [((1, 2), What::Hold)].into(), tries: 7 };
        let refusal = read_named::<before::Policy>(&named(&new)).expect_err("no version knows what it means");
        assert_eq!(refusal, "unknown variant `Hold`, expected `Stop`");
    }

    #[test]
    fn bytes_behind_a_value_are_refused() {
        let mut bytes = named(&7_u64);
        bytes.push(0);
        assert_eq!(read_named::<u64>(&bytes), Err("1 bytes more than its value".to_owned()));
    }

    #[test]
    fn figures_that_are_no_numbers_have_the_same_form() {
        assert!(same(&[f64::NAN], &[f64::NAN]) && !same(&[0.0], &[-0.0]));
    }
}
