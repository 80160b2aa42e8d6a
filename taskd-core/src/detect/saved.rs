//! Detector states as bytes: a version, then the state.
//!
//! It never migrates: a state of another version is refused, and its detector starts cold.

use crate::trace::Malformed;
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A state as bytes.
pub(super) fn save<T: Serialize>(version: u8, state: &T) -> Option<Bytes> {
    postcard::to_stdvec(&(version, state)).ok().map(Bytes::from)
}

/// A state that [`save`] wrote with the same version, and nothing behind it.
pub(super) fn load<T: DeserializeOwned>(version: u8, saved: &[u8]) -> Result<T, Malformed> {
    let (&found, state) = saved.split_first().ok_or(Malformed)?;
    if found != version {
        return Err(Malformed);
    }
    match postcard::take_from_bytes(state) {
        Ok((state, [])) => Ok(state),
        _ => Err(Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_states_of_the_same_version_are_taken() {
        let state = (7_u64, "text".to_owned());
        let saved = save(1, &state).expect("plain data");
        assert_eq!(load::<(u64, String)>(1, &saved), Ok(state));
        assert_eq!(load::<(u64, String)>(2, &saved), Err(Malformed), "another version");
        assert_eq!(load::<(u64, String)>(1, &saved[..saved.len() - 1]), Err(Malformed), "cut short");
        assert_eq!(load::<(u64, String)>(1, &[&saved[..], &[0]].concat()), Err(Malformed), "too long");
        assert_eq!(load::<(u64, String)>(1, &[]), Err(Malformed), "empty");
    }
}
