//! The form of bodies: MessagePack with named fields, bounded in length and depth.

use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};

/// Longest body of a frame, in bytes: a start batch for a world of 100,000 ranks has some 10 MiB.
pub(crate) const BODY_BYTES_MAX: usize = 64 << 20;

/// Nesting of a body's values that is still read. The types of taskd nest less than half as deep.
const DEPTH_MAX: usize = 64;

/// Error of a body that cannot be sent or read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BodyError {
    #[error("it has {0} bytes, and {BODY_BYTES_MAX} are the limit")]
    TooLong(usize),
    #[error("it has no form: {0}")]
    Unencodable(String),
    #[error("it is not what was expected ({0}): the peer may run another version of taskd")]
    Undecodable(String),
}

/// Encodes a body.
pub(crate) fn encode<T: Serialize>(value: &T) -> Result<Bytes, BodyError> {
    let bytes = rmp_serde::to_vec_named(value).map_err(|error| BodyError::Unencodable(error.to_string()))?;
    match bytes.len() {
        ..=BODY_BYTES_MAX => Ok(bytes.into()),
        length => Err(BodyError::TooLong(length)),
    }
}

/// Decodes a body. Bytes after the value are an error.
pub(crate) fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, BodyError> {
    if body.len() > BODY_BYTES_MAX {
        return Err(BodyError::TooLong(body.len()));
    }
    let mut reader = rmp_serde::Deserializer::new(std::io::Cursor::new(body));
    reader.set_max_depth(DEPTH_MAX);
    let value = T::deserialize(&mut reader).map_err(|error| BodyError::Undecodable(error.to_string()))?;
    match reader.position() {
        read if read == body.len() as u64 => Ok(value),
        read => Err(BodyError::Undecodable(format!("{} bytes follow its end", body.len() as u64 - read))),
    }
}

/// Encodes and compresses a value: the hosts of a world repeat their names.
pub(crate) fn pack<T: Serialize>(value: &T) -> Result<Bytes, BodyError> {
    Ok(lz4_flex::block::compress_prepend_size(&encode(value)?).into())
}

/// Decodes what [`pack`] returned.
pub(crate) fn unpack<T: DeserializeOwned>(packed: &[u8]) -> Result<T, BodyError> {
    let undecodable = |error: lz4_flex::block::DecompressError| BodyError::Undecodable(error.to_string());
    let (length, _) = lz4_flex::block::uncompressed_size(packed).map_err(undecodable)?;
    if length > BODY_BYTES_MAX {
        return Err(BodyError::TooLong(length));
    }
    decode(&lz4_flex::block::decompress_size_prepended(packed).map_err(undecodable)?)
}
