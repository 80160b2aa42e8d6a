//! The job's token: a secret that all processes of one job share, and that distinguishes jobs.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use subtle::ConstantTimeEq;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::{Request, Status};

use super::error::SecurityError;
use super::files;
use super::identity::Peer;
use super::rejections::{RejectReason, Rejections};

/// Shortest secret of a [`JobToken`], in characters.
pub const TOKEN_CHARS_MIN: usize = 16;
/// Longest secret of a [`JobToken`], in characters. Each request carries the token.
pub const TOKEN_CHARS_MAX: usize = 512;
/// Random bytes of a generated token; its secret has two hexadecimal digits for each.
const GENERATED_BYTES: usize = 32;
const METADATA_KEY: &str = "authorization";
const SCHEME: &str = "Bearer ";
const WHAT: &str = "the token file";

/// Secret that all processes of a job share. Its `Debug` output hides the secret, and no error contains it.
#[derive(Clone)]
pub struct JobToken(Arc<str>);

impl JobToken {
    /// Creates a token from a secret of [`TOKEN_CHARS_MIN`] to [`TOKEN_CHARS_MAX`] visible ASCII characters. White
    /// space at both ends is removed.
    ///
    /// # Errors
    /// Returns [`SecurityError::Token`] if the secret is shorter or longer, or has another character.
    pub fn new(secret: &str) -> Result<Self, SecurityError> {
        Self::checked(secret, "the program")
    }

    /// Creates a token of 32 random bytes, in hexadecimal digits.
    ///
    /// # Errors
    /// Returns [`SecurityError::Library`] if the operating system provides no random bytes.
    pub fn generate() -> Result<Self, SecurityError> {
        let mut bytes = [0; GENERATED_BYTES];
        let random = rustls::crypto::ring::default_provider().secure_random;
        random.fill(&mut bytes).map_err(|_| rustls::Error::FailedToGetRandomBytes)?;
        Ok(Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into()))
    }

    /// Reads a token from a file that only its owner can read.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, if other users can read it, or if [`JobToken::new`] refuses its
    /// content.
    pub fn read(path: &Path) -> Result<Self, SecurityError> {
        let file = files::read(WHAT, path, files::Access::Secret)?;
        let text =
            std::str::from_utf8(&file.content).map_err(|_| unusable(&path.display().to_string(), "it is no text"))?;
        Self::checked(text, &path.display().to_string())
    }

    /// Returns the secret, to pass it to another process of the job.
    #[must_use]
    pub fn secret(&self) -> &str {
        &self.0
    }

    pub(super) fn checked(secret: &str, origin: &str) -> Result<Self, SecurityError> {
        let secret = secret.trim();
        let length = secret.chars().count();
        if length < TOKEN_CHARS_MIN {
            let reason = format!(
                "it has {length} characters, and needs {TOKEN_CHARS_MIN}: create one with `openssl rand -hex 32`"
            );
            return Err(unusable(origin, &reason));
        }
        if length > TOKEN_CHARS_MAX {
            return Err(unusable(
                origin,
                &format!("it has {length} characters, and at most {TOKEN_CHARS_MAX} are allowed"),
            ));
        }
        if !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(unusable(
                origin,
                "it has a character other than visible ASCII: create one with `openssl rand -hex 32`",
            ));
        }
        Ok(Self(secret.into()))
    }

    /// Compares in a time that depends on the lengths only.
    fn matches(&self, presented: &str) -> bool {
        self.0.as_bytes().ct_eq(presented.as_bytes()).into()
    }

    fn metadata(&self) -> Option<MetadataValue<Ascii>> {
        let mut value = MetadataValue::try_from(format!("{SCHEME}{}", self.0)).ok()?;
        // Keeps the token out of `Debug` output and out of the compression tables of HTTP/2.
        value.set_sensitive(true);
        Some(value)
    }
}

impl fmt::Debug for JobToken {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("JobToken(redacted)")
    }
}

fn unusable(origin: &str, reason: &str) -> SecurityError {
    SecurityError::Token { origin: origin.to_owned(), reason: reason.to_owned() }
}

/// Interceptor of a client: presents the job's token with each request.
#[derive(Debug, Clone)]
pub struct PresentToken {
    value: Option<MetadataValue<Ascii>>,
}

impl PresentToken {
    pub(super) fn new(token: Option<&JobToken>) -> Self {
        Self { value: token.and_then(JobToken::metadata) }
    }
}

impl Interceptor for PresentToken {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(value) = &self.value {
            request.metadata_mut().insert(METADATA_KEY, value.clone());
        }
        Ok(request)
    }
}

/// Interceptor of a server: refuses each request that does not present the job's token, and counts it.
#[derive(Debug, Clone)]
pub struct RequireToken {
    token: Option<JobToken>,
    rejections: Arc<Rejections>,
}

impl RequireToken {
    pub(super) const fn new(token: Option<JobToken>, rejections: Arc<Rejections>) -> Self {
        Self { token, rejections }
    }
}

impl Interceptor for RequireToken {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        let Some(token) = &self.token else { return Ok(request) };
        let presented = request.metadata().get(METADATA_KEY).and_then(|value| value.to_str().ok());
        let (reason, sentence) = match presented.and_then(|value| value.strip_prefix(SCHEME)) {
            Some(presented) if token.matches(presented) => return Ok(request),
            Some(_) => (
                RejectReason::WrongToken,
                "the request presents the token of another job: give this process the token of the job that it belongs \
                 to, or check the address of its manager",
            ),
            None => (
                RejectReason::MissingToken,
                "the request presents no job token: set TASKD_JOB_TOKEN or TASKD_JOB_TOKEN_FILE for this process",
            ),
        };
        let address = request.extensions().get::<Peer>().and_then(Peer::address);
        self.rejections.record(reason, address, sentence);
        Err(Status::unauthenticated(sentence))
    }
}

#[cfg(test)]
mod tests {
    use super::JobToken;

    #[test]
    fn token_debug_output_and_errors_hide_the_secret() {
        let token = JobToken::new(" 0123456789abcdef\n").expect("16 characters");
        assert_eq!(token.secret(), "0123456789abcdef");
        assert_eq!(format!("{token:?}"), "JobToken(redacted)");
        assert!(!format!("{:?}", token.metadata()).contains("0123456789abcdef"));
        for secret in ["hunter2", "with spaces in it, too long", "ümlaut-ümlaut-ümlaut", &"x".repeat(513)] {
            let error = JobToken::new(secret).expect_err("refused").to_string();
            assert!(!error.contains(secret), "{error}");
        }
    }

    #[test]
    fn token_generated_twice_differs_and_has_64_digits() {
        let (one, other) = (JobToken::generate().expect("random"), JobToken::generate().expect("random"));
        assert_eq!(one.secret().len(), 64);
        assert!(one.matches(one.secret()) && !one.matches(other.secret()) && !one.matches(""));
    }
}
