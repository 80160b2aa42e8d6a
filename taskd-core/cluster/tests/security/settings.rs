//! Settings from the environment.

use std::collections::BTreeMap;
use std::ffi::OsString;

use taskd_cluster::security::{Security, SecurityError};

use super::SECRET;

fn read(variables: &[(&str, &str)]) -> Result<Security, SecurityError> {
    let variables: BTreeMap<&str, &str> = variables.iter().copied().collect();
    Security::from_variables(|name| variables.get(name).map(OsString::from))
}

#[test]
fn settings_select_the_security_of_the_job() {
    let tls = [("TASKD_TLS_CA", "/ca"), ("TASKD_TLS_CERTIFICATE", "/cert"), ("TASKD_TLS_KEY", "/key")];
    let token = ("TASKD_JOB_TOKEN", SECRET);
    let insecure = ("TASKD_INSECURE", "1");
    assert!(matches!(read(&tls), Ok(Security::MutualTls(_))));
    // Insecure by accident does not turn off TLS.
    assert!(matches!(read(&[tls[0], tls[1], tls[2], insecure, token]), Ok(Security::MutualTls(_))));
    assert!(matches!(read(&[token]), Ok(Security::Token(_))));
    assert!(matches!(read(&[token, ("TASKD_INSECURE", "0")]), Ok(Security::Token(_))));
    assert!(matches!(read(&[token, insecure]), Ok(Security::Insecure(_))));
    assert!(matches!(read(&[]), Err(SecurityError::NotConfigured)));
    assert!(!format!("{:?}", read(&[token, insecure])).contains(SECRET));
}

#[test]
fn settings_that_contradict_are_refused_by_name() {
    let token = ("TASKD_JOB_TOKEN", SECRET);
    let ca = ("TASKD_TLS_CA", "/ca");
    let key = ("TASKD_TLS_KEY", "/key");
    let certificate = ("TASKD_TLS_CERTIFICATE", "/cert");
    for (variables, part) in [
        (vec![("TASKD_INSECURE", "1")], "set TASKD_JOB_TOKEN or TASKD_JOB_TOKEN_FILE"),
        (vec![token, ("TASKD_INSECURE", "yes")], "TASKD_INSECURE=yes is not understood"),
        (vec![token, ("TASKD_JOB_TOKEN_FILE", "/token")], "both set"),
        (vec![("TASKD_JOB_TOKEN", "short")], "TASKD_JOB_TOKEN is not usable: it has 5 characters"),
        (vec![("TASKD_JOB_TOKEN_FILE", "/no/such/token")], "cannot read the token file /no/such/token"),
        (vec![ca, token], "needs TASKD_TLS_CERTIFICATE and TASKD_TLS_KEY too"),
        (vec![ca, certificate, key, ("TASKD_TLS_WILDCARD", "1"), ("TASKD_TLS_SHARED_NAME", "job")], "both set"),
    ] {
        let error = read(&variables).expect_err("refused").to_string();
        assert!(error.contains(part), "{error}");
        assert!(!error.contains(SECRET), "{error}");
    }
}
