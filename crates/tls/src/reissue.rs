//! The commands of OpenSSL that issue a certificate again with X.509 version 3.

use std::path::{Path, PathBuf};

use super::certificate;

/// The time for which the new certificate is valid, in days.
const DAYS: u32 = 365;

/// The files that a new certificate is issued from.
#[derive(Clone, Copy, Debug)]
pub struct CertificateFiles<'a> {
    /// The certificate that this server presents.
    pub certificate: &'a Path,
    /// Its private key.
    pub key: &'a Path,
    /// The certificates of authorities, if a file is configured.
    pub authorities: Option<&'a Path>,
}

impl CertificateFiles<'_> {
    /// Returns a line for a shell that issues the certificate `own` again, with version 3. The new file has the name of
    /// the old one with `.v3` at the end. What the server does not know is in capitals.
    pub fn version_three_commands(&self, own: &[u8]) -> String {
        let [old, key] = [self.certificate, self.key].map(quote);
        let mut new = self.certificate.as_os_str().to_owned();
        new.push(".v3");
        let new = quote(&PathBuf::from(new));
        // Without an extension, OpenSSL writes version 1.
        let extension = "echo basicConstraints=CA:FALSE > v3.ext &&";
        let end = format!("-days {DAYS} -extfile v3.ext -out {new}");
        if certificate::is_self_issued(own) {
            return format!("{extension} openssl x509 -in {old} -signkey {key} {end}");
        }
        let authority = self.authorities.map_or_else(|| "CA_CERTIFICATE".into(), quote);
        format!(
            "{extension} openssl x509 -x509toreq -in {old} -signkey {key} | openssl x509 -req -CA {authority} -CAkey \
             CA_KEY -CAcreateserial {end}"
        )
    }
}

/// Returns a path as a word of a shell.
fn quote(path: &Path) -> String {
    let path = path.display().to_string();
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-+,:@%".contains(letter);
    match path.chars().all(is_plain) {
        true => path,
        false => format!("'{}'", path.replace('\'', "'\\''")),
    }
}
