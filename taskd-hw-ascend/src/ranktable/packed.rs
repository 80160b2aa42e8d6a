//! Rank tables as values of a ConfigMap: as JSON, or as base64 of gzip-compressed JSON.
//!
//! The content is parsed elsewhere.

use super::{Problems, RankTable};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use flate2::Compression;
use flate2::read::{GzDecoder, GzEncoder};
use std::io::{self, Read as _};
use taskd_core::job::{NotText, document_text};

/// Maximum size of the decompressed table in bytes: HCCL accepts no more than 1 GB.
pub(super) const BYTES_MAX: u64 = 1_000_000_000;

impl RankTable {
    /// Reads a rank table from JSON, or from base64 of gzip-compressed JSON.
    ///
    /// # Errors
    /// Returns [`Problems`] if the bytes are empty, have neither form, decompress to more than 1 GB, or contain an
    /// invalid table.
    pub fn from_bytes(bytes: &[u8]) -> Result<RankTable, Problems> {
        let wrong = |what: String| Problems::one("$", what);
        if let Err(why @ (NotText::Empty | NotText::ByteOrderMark(_))) = document_text(bytes) {
            return Err(wrong(why.to_string()));
        }
        let bytes = bytes.trim_ascii();
        if TEMPLATES.iter().any(|begin| bytes.starts_with(begin)) {
            return Err(wrong("a template that was not rendered: name the file submitted to the cluster".into()));
        }
        let text = match bytes.first() {
            Some(b'{') => String::from_utf8(bytes.to_vec()).map_err(|error| wrong(format!("no JSON: {error}")))?,
            _ => unpacked(bytes).map_err(|error| wrong(format!("neither JSON nor gzip in base64: {error}")))?,
        };
        RankTable::from_json(&text)
    }

    /// Returns the rank table as base64 of gzip-compressed JSON.
    #[must_use]
    pub fn to_packed(&self) -> String {
        let mut packed = Vec::new();
        let json = self.to_json();
        let read = GzEncoder::new(json.as_bytes(), Compression::default()).read_to_end(&mut packed);
        debug_assert!(read.is_ok(), "it reads from memory, into memory");
        BASE64_STANDARD.encode(packed)
    }
}

/// Prefixes of templates that were not rendered. No table starts with them.
const TEMPLATES: [&[u8]; 4] = [b"{{", b"{%", b"${", b"$("];

fn unpacked(bytes: &[u8]) -> io::Result<String> {
    let packed = BASE64_STANDARD.decode(bytes).map_err(io::Error::other)?;
    let mut text = String::new();
    let length = GzDecoder::new(packed.as_slice()).take(BYTES_MAX + 1).read_to_string(&mut text)?;
    if length as u64 > BYTES_MAX {
        return Err(io::Error::other(format!("it has more than {BYTES_MAX} bytes")));
    }
    Ok(text)
}
