//! What an error of a handshake means, and what to do about it.

use std::io;

use rustls::pki_types::UnixTime;
use rustls::{AlertDescription, CertificateError, Error, InvalidMessage};

use super::clock::Utc;
use super::config::TlsFiles;
use super::rejections::RejectReason;

/// Returns the TLS library's error inside an error of a stream.
pub(super) fn tls_error(error: &io::Error) -> Option<&Error> {
    error.get_ref().and_then(|inner| inner.downcast_ref())
}

/// Returns the reason for which a server rejects a peer, with an explanation for the log.
pub(super) fn server_side(error: &io::Error) -> (RejectReason, String) {
    let Some(tls) = tls_error(error) else {
        return (RejectReason::Disconnected, format!("it ended the connection in the handshake: {error}"));
    };
    let (reason, message) = match tls {
        Error::NoCertificatesPresented => {
            (RejectReason::NoCertificate, "it presented no certificate: configure mutual TLS for it".to_owned())
        }
        Error::InvalidCertificate(certificate) => certificate_of_client(certificate),
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            (RejectReason::NotTls, "it does not speak TLS: configure mutual TLS for it".to_owned())
        }
        Error::AlertReceived(alert) => {
            (RejectReason::RefusedByPeer, format!("it refused this server ({alert:?}): its own log has the reason"))
        }
        other => (RejectReason::Protocol, format!("it does not complete a TLS 1.3 handshake: {other}")),
    };
    (reason, message)
}

fn certificate_of_client(error: &CertificateError) -> (RejectReason, String) {
    match error {
        // A CA of the same name with another key shows as a bad signature.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => (
            RejectReason::UnknownAuthority,
            "its certificate is of another CA than this job's: it belongs to another job, or the CA was replaced"
                .to_owned(),
        ),
        _ => match validity(error) {
            Some(sentence) => (RejectReason::Expired, sentence),
            None => (RejectReason::BadCertificate, format!("its certificate is not usable: {error}")),
        },
    }
}

/// Returns the reason for which a client has no connection to a server that it dialed as `name`.
pub(super) fn client_side(error: &io::Error, name: &str, files: &TlsFiles) -> String {
    match tls_error(error) {
        Some(Error::InvalidCertificate(certificate)) => certificate_of_server(certificate, name, files),
        Some(Error::InvalidMessage(InvalidMessage::InvalidContentType)) => {
            "it answers in plaintext: check the address, and configure mutual TLS on both sides".to_owned()
        }
        Some(Error::AlertReceived(alert)) => refused(*alert, files),
        Some(other) => format!("it does not complete a TLS 1.3 handshake: {other}"),
        None => format!(
            "it ended the connection in the handshake ({error}): it may serve without TLS; its log has the reason"
        ),
    }
}

fn certificate_of_server(error: &CertificateError, name: &str, files: &TlsFiles) -> String {
    match error {
        CertificateError::NotValidForNameContext { presented, .. } => {
            let names = if presented.is_empty() { "none".to_owned() } else { presented.join(", ") };
            format!(
                "its certificate does not name {name}: its names are {names}; dial it by one of them, or issue its \
                 certificate with {name} as subjectAltName"
            )
        }
        CertificateError::UnknownIssuer | CertificateError::BadSignature => format!(
            "its certificate is of another CA than {}: check the address, and use the CA file of one job on both sides",
            files.ca.display()
        ),
        _ => validity(error).unwrap_or_else(|| format!("its certificate is not usable: {error}")),
    }
}

/// Returns the sentence for a certificate that is not valid at this time.
fn validity(error: &CertificateError) -> Option<String> {
    let clock = |time: UnixTime| format!("the clock of this host may be wrong: it shows {}", Utc::from(time));
    match error {
        CertificateError::ExpiredContext { time, not_after } => {
            Some(format!("its certificate has expired at {}: renew it; or {}", Utc::from(*not_after), clock(*time)))
        }
        CertificateError::NotValidYetContext { time, not_before } => {
            Some(format!("its certificate is not valid before {}: {}", Utc::from(*not_before), clock(*time)))
        }
        CertificateError::Expired | CertificateError::NotValidYet => {
            Some(format!("its certificate is not valid now: renew it; or {}", clock(UnixTime::now())))
        }
        _ => None,
    }
}

/// Returns the sentence for an alert with which a server refused this client.
pub(super) fn refused(alert: AlertDescription, files: &TlsFiles) -> String {
    let certificate = files.certificate.display();
    match alert {
        AlertDescription::CertificateRequired => {
            "it requires a certificate, and this process presented none".to_owned()
        }
        AlertDescription::UnknownCA | AlertDescription::DecryptError => format!(
            "it does not trust the CA of {certificate}: check the address, and use the CA file of one job on both sides"
        ),
        AlertDescription::CertificateExpired => format!(
            "by its clock {certificate} has expired or is not yet valid: renew it; or a clock may be wrong: this \
             host's shows {}",
            Utc::from(UnixTime::now())
        ),
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateUnknown
        | AlertDescription::AccessDenied => {
            format!("it refuses {certificate} ({alert:?}): its log has the reason")
        }
        AlertDescription::ProtocolVersion | AlertDescription::HandshakeFailure => {
            format!("it does not speak TLS 1.3 ({alert:?}): check the address")
        }
        other => format!("it ended the TLS connection ({other:?}): its log has the reason"),
    }
}
