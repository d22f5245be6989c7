//! What the server reads in certificates: who a client is, serial numbers, how long they are valid.

use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Serial number and end of validity of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// In hexadecimal digits.
    pub serial: String,
    /// Its end, seconds since the epoch.
    pub expires_s: i64,
}

/// Reads serial number and end; `None` of what is no certificate.
pub fn label(der: &[u8]) -> Option<Label> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let serial = hex::encode_upper(certificate.raw_serial());
    // A leading zero byte only says that the number is not negative.
    let digits = serial.strip_prefix("00").filter(|rest| !rest.is_empty());
    Some(Label {
        serial: digits.unwrap_or(&serial).to_owned(),
        expires_s: certificate.validity().not_after.timestamp(),
    })
}

/// Whether a certificate is valid at this time, seconds since the epoch.
pub fn is_valid_at(der: &[u8], now_s: i64) -> bool {
    X509Certificate::from_der(der).is_ok_and(|(_, certificate)| {
        let validity = certificate.validity();
        (validity.not_before.timestamp()..=validity.not_after.timestamp()).contains(&now_s)
    })
}

/// The common name of a certificate's subject.
pub fn common_name(der: &[u8]) -> Option<String> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let name = certificate.subject().iter_common_name().next()?;
    Some(name.as_str().ok()?.to_owned())
}

/// The URIs among a certificate's alternative names, in their order.
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
