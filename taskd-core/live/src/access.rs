//! Which requests are answered: pure checks of a request's head.

use std::fs::File;
use std::io::{self, Read};

/// Random bytes of a token.
const TOKEN_BYTES: usize = 20;

/// The random part of the address, in hexadecimal.
pub(crate) struct Token(String);

impl Token {
    /// Returns a new token from the system's random numbers.
    pub(crate) fn new() -> io::Result<Token> {
        let mut bytes = [0; TOKEN_BYTES];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(Token(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns true if the path begins with the token. The time depends on the lengths alone.
    pub(crate) fn begins(&self, path: &str) -> bool {
        let Some((given, _)) = path.strip_prefix('/').and_then(|path| path.split_once('/')) else { return false };
        if given.len() != self.0.len() {
            return false;
        }
        let differences =
            given.bytes().zip(self.0.bytes()).fold(0, |seen, (a, b)| std::hint::black_box(seen | (a ^ b)));
        differences == 0
    }
}

/// Returns true if a `Host` header names this server.
pub(crate) fn is_own_host(host: &str, port: u16) -> bool {
    let name = match host.strip_suffix(&port.to_string()).and_then(|rest| rest.strip_suffix(':')) {
        Some(name) => name,
        None if port == 80 => host, // which browsers leave out
        None => return false,
    };
    matches!(name, "127.0.0.1" | "localhost" | "[::1]")
}

/// Returns true if an `Origin` header names this server.
pub(crate) fn is_own_origin(origin: &str, port: u16) -> bool {
    origin.strip_prefix("http://").is_some_and(|host| is_own_host(host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_has_160_random_bits_and_is_compared_whole() {
        let (token, other) = (Token::new().unwrap(), Token::new().unwrap());
        assert_eq!(token.as_str().len(), 40);
        assert!(token.begins(&format!("/{}/", token.as_str())) && token.begins(&format!("/{}/events", token.as_str())));
        let short = &token.as_str()[1..];
        for path in [
            "/".to_owned(),
            "//".to_owned(),
            format!("/{}", token.as_str()),
            format!("/{short}/"),
            format!("/0{}/", token.as_str()),
            format!("/{}/", other.as_str()),
            format!("/x/{}/", token.as_str()),
        ] {
            assert!(!token.begins(&path), "{path}");
        }
    }

    #[test]
    fn hosts_other_than_loopback_names_with_the_port_are_foreign() {
        for host in ["127.0.0.1:4100", "localhost:4100", "[::1]:4100"] {
            assert!(is_own_host(host, 4100), "{host}");
            assert!(is_own_origin(&format!("http://{host}"), 4100), "{host}");
        }
        for host in [
            "",
            "127.0.0.1",
            "127.0.0.1:410",
            "evil.example:4100",
            "localhost.evil.example:4100",
            ":4100",
            "127.0.0.1:04100",
        ] {
            assert!(!is_own_host(host, 4100), "{host}");
        }
        assert!(is_own_host("localhost", 80) && !is_own_host("evil.example", 80));
        for origin in ["null", "https://127.0.0.1:4100", "http://evil.example:4100", "http://127.0.0.1:4101"] {
            assert!(!is_own_origin(origin, 4100), "{origin}");
        }
    }
}
