//! Reads fields of certificates: the subject's names, the serial number and the validity.

use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate, X509Version};

/// The serial number and expiry time of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateInfo {
    /// The serial number in hexadecimal digits.
    pub serial: String,
    /// The expiry time, in seconds since the Unix epoch.
    pub expires_s: i64,
}

/// Reads the serial number and the expiry time; `None` if `der` is not a certificate.
pub fn read_info(der: &[u8]) -> Option<CertificateInfo> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let serial = hex::encode_upper(certificate.raw_serial());
    // A leading zero byte only marks the number as non-negative.
    let digits = serial.strip_prefix("00").filter(|rest| !rest.is_empty());
    Some(CertificateInfo {
        serial: digits.unwrap_or(&serial).to_owned(),
        expires_s: certificate.validity().not_after.timestamp(),
    })
}

/// Returns `true` if a certificate is valid at `now_s`, in seconds since the Unix epoch.
pub fn is_valid_at(der: &[u8], now_s: i64) -> bool {
    X509Certificate::from_der(der).is_ok_and(|(_, certificate)| {
        let validity = certificate.validity();
        (validity.not_before.timestamp()..=validity.not_after.timestamp()).contains(&now_s)
    })
}

/// Returns `true` if a certificate has X.509 version 1.
pub fn is_version_one(der: &[u8]) -> bool {
    X509Certificate::from_der(der).is_ok_and(|(_, certificate)| certificate.version() == X509Version::V1)
}

/// Returns `true` if a certificate names its own subject as its issuer.
pub fn is_self_issued(der: &[u8]) -> bool {
    X509Certificate::from_der(der)
        .is_ok_and(|(_, certificate)| certificate.subject().as_raw() == certificate.issuer().as_raw())
}

/// Returns the common name of a certificate's subject.
pub fn common_name(der: &[u8]) -> Option<String> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let name = certificate.subject().iter_common_name().next()?;
    Some(name.as_str().ok()?.to_owned())
}

/// Returns the URIs among a certificate's subject alternative names, in their order.
pub fn uris(der: &[u8]) -> Vec<String> {
    let Ok((_, certificate)) = X509Certificate::from_der(der) else {
        return Vec::new();
    };
    let Ok(Some(names)) = certificate.subject_alternative_name() else {
        return Vec::new();
    };
    let uri = |name: &GeneralName<'_>| match name {
        GeneralName::URI(uri) => Some((*uri).to_owned()),
        _ => None,
    };
    names.value.general_names.iter().filter_map(uri).collect()
}
