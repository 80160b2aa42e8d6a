//! Decides which names of variables and options are those of secrets.
//!
//! It considers names only, never values.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Strings that mark a secret anywhere in a name, with or without `_` between their words.
const ANYWHERE: [&str; 9] = [
    "ACCESSKEY",
    "APIKEY",
    "CONNECTIONSTRING",
    "CREDENTIAL",
    "PASSPHRASE",
    "PASSWD",
    "PASSWORD",
    "PRIVATEKEY",
    "SECRET",
];

/// Strings that mark a secret if they are a word of a name.
const WORDS: [&str; 10] =
    ["AUTH", "AUTHORIZATION", "BEARER", "COOKIE", "COOKIES", "JWT", "PASS", "PWD", "SESSION", "SESSIONS"];

/// Names of environment variables and command-line options that hold secrets, in addition to the names recognised by
/// default.
///
/// Names are compared without case, and `_`, `-` and `.` are equal: `api_key` matches `API_KEY` and `--api-key`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct SecretNames {
    /// Names whose values are secrets, in addition to the names recognised by default.
    pub also: BTreeSet<String>,
    /// Names whose values are not secrets, even if a default rule or `also` matches them.
    pub except: BTreeSet<String>,
}

impl SecretNames {
    /// Adds a name whose value is a secret.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>) -> SecretNames {
        self.also.insert(name.into());
        self
    }

    /// Exempts a name: its value is not a secret.
    #[must_use]
    pub fn without(mut self, name: impl Into<String>) -> SecretNames {
        self.except.insert(name.into());
        self
    }

    /// Returns true if no name was added or exempted.
    pub fn is_empty(&self) -> bool {
        self.also.is_empty() && self.except.is_empty()
    }

    /// Returns true if a variable or option of this name holds a secret.
    ///
    /// By default such names are: names that contain `SECRET`, `PASSWORD`, `PASSWD`, `PASSPHRASE`, `CREDENTIAL`,
    /// `API_KEY`, `ACCESS_KEY`, `PRIVATE_KEY` or `CONNECTION_STRING`; names with a word that ends with `TOKEN`; names
    /// with one of the words `AUTH`, `AUTHORIZATION`, `BEARER`, `COOKIE`, `JWT`, `PASS`, `PWD` and `SESSION`; and names
    /// with `KEY` or `KEYS` as the last word. Not included are `PWD` and `OLDPWD`, which are directories, and
    /// `MAX_TOKENS`, which is a number of words.
    ///
    /// ```
    /// # mod taskd_core { pub use taskd_kernel::redact as secrets; }
    /// use taskd_core::secrets::SecretNames;
    ///
    /// let names = SecretNames::default().with("ACME_LICENCE").without("SORT_KEY");
    /// assert!(["HF_TOKEN", "pgpassword", "AWS_ACCESS_KEY_ID", "--api-key", "acme_licence"].iter().all(|name| names.cover(name)));
    /// assert!(!["PATH", "PWD", "TOKENIZERS_PARALLELISM", "MAX_TOKENS", "--sort-key"].iter().any(|name| names.cover(name)));
    /// ```
    #[must_use]
    pub fn cover(&self, name: &str) -> bool {
        let name = plain(name);
        let among = |names: &BTreeSet<String>| names.iter().any(|known| plain(known) == name);
        !among(&self.except) && (among(&self.also) || is_known(&name))
    }

    /// Returns true if this name is exempt.
    pub(super) fn exempt(&self, name: &str) -> bool {
        let name = plain(name);
        self.except.iter().any(|known| plain(known) == name)
    }
}

/// Normalises a name: upper case, with `_` between words.
fn plain(name: &str) -> String {
    let mut plain = String::with_capacity(name.len() + 4);
    let mut before_is_small = false;
    for c in name.trim_matches(['-', '+', '.', '_', ' ']).chars() {
        if before_is_small && c.is_ascii_uppercase() {
            plain.push('_'); // authToken
        }
        before_is_small = c.is_ascii_lowercase() || c.is_ascii_digit();
        plain.push(if matches!(c, '-' | '.' | ' ') { '_' } else { c.to_ascii_uppercase() });
    }
    plain
}

fn is_known(name: &str) -> bool {
    if matches!(name, "PWD" | "OLDPWD") {
        return false;
    }
    let words = || name.split('_');
    let whole: String = words().collect();
    ANYWHERE.iter().any(|part| whole.contains(part))
        || words().any(|word| word.ends_with("TOKEN") || WORDS.contains(&word))
        || words().next_back().is_some_and(|last| matches!(last, "KEY" | "KEYS"))
}
