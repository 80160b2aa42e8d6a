//! What several example programs share.
