//! Serialises detector states: a version byte, then the state.
//!
//! There is no migration: a state of another version is refused, and its detector starts without state.

use crate::trace::DecodeError;
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Serialises a state.
pub(super) fn save<T: Serialize>(version: u8, state: &T) -> Option<Bytes> {
    postcard::to_stdvec(&(version, state)).ok().map(Bytes::from)
}

/// Parses a state that [`save`] wrote with the same version; trailing bytes are an error.
pub(super) fn load<T: DeserializeOwned>(version: u8, saved: &[u8]) -> Result<T, DecodeError> {
    let (&found, state) = saved.split_first().ok_or(DecodeError)?;
    if found != version {
        return Err(DecodeError);
    }
    match postcard::take_from_bytes(state) {
        Ok((state, [])) => Ok(state),
        _ => Err(DecodeError),
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
        assert_eq!(load::<(u64, String)>(2, &saved), Err(DecodeError), "another version");
        assert_eq!(load::<(u64, String)>(1, &saved[..saved.len() - 1]), Err(DecodeError), "cut short");
        assert_eq!(load::<(u64, String)>(1, &[&saved[..], &[0]].concat()), Err(DecodeError), "too long");
        assert_eq!(load::<(u64, String)>(1, &[]), Err(DecodeError), "empty");
    }
}
