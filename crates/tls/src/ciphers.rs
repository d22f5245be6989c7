//! Maps OpenSSL's names of ciphers and protocol versions to those that rustls supports.
//!
//! `tls-ciphers` is a cipher list in OpenSSL's language: names and classes, joined by `+`. A prefix `!` excludes a
//! selection permanently, `-` removes it, and `+` moves it to the end. The list applies to TLS 1.2. The suites of TLS
//! 1.3 have their own list.

use rustls::crypto::ring::cipher_suite as suite;
use rustls::{SupportedCipherSuite, SupportedProtocolVersion, version};

/// A cipher of TLS 1.2: its name in OpenSSL, and its classes in addition to [`CLASSES_WITH_ALL`].
struct Cipher {
    name: &'static str,
    classes: &'static [&'static str],
    suite: SupportedCipherSuite,
}

/// All supported ciphers of TLS 1.2, in the order of preference.
static CIPHERS: &[Cipher] = &[
    Cipher {
        name: "ECDHE-ECDSA-AES256-GCM-SHA384",
        classes: &["aECDSA", "ECDSA", "AES", "AES256", "AESGCM"],
        suite: suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    },
    Cipher {
        name: "ECDHE-RSA-AES256-GCM-SHA384",
        classes: &["aRSA", "AES", "AES256", "AESGCM"],
        suite: suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
    },
    Cipher {
        name: "ECDHE-ECDSA-CHACHA20-POLY1305",
        classes: &["aECDSA", "ECDSA", "CHACHA20"],
        suite: suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    },
    Cipher {
        name: "ECDHE-RSA-CHACHA20-POLY1305",
        classes: &["aRSA", "CHACHA20"],
        suite: suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
    },
    Cipher {
        name: "ECDHE-ECDSA-AES128-GCM-SHA256",
        classes: &["aECDSA", "ECDSA", "AES", "AES128", "AESGCM"],
        suite: suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    },
    Cipher {
        name: "ECDHE-RSA-AES128-GCM-SHA256",
        classes: &["aRSA", "AES", "AES128", "AESGCM"],
        suite: suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
    },
];

/// The classes that contain every supported cipher.
const CLASSES_WITH_ALL: &[&str] = &[
    "ALL", "DEFAULT", "HIGH", "TLSv1.2", "ECDHE", "EECDH", "kECDHE", "kEECDH", "FIPS",
];

/// The known classes that contain no supported cipher: obsolete, weak or rare ciphers.
const CLASSES_WITH_NONE: &[&str] = &[
    "COMPLEMENTOFALL",
    "COMPLEMENTOFDEFAULT",
    "MEDIUM",
    "LOW",
    "EXP",
    "EXPORT",
    "NULL",
    "eNULL",
    "aNULL",
    "ADH",
    "AECDH",
    "RSA",
    "kRSA",
    "DH",
    "DHE",
    "EDH",
    "kDHE",
    "kEDH",
    "aDSS",
    "DSS",
    "PSK",
    "kPSK",
    "kDHEPSK",
    "kECDHEPSK",
    "kRSAPSK",
    "aPSK",
    "SRP",
    "kSRP",
    "aSRP",
    "DES",
    "3DES",
    "RC2",
    "RC4",
    "IDEA",
    "SEED",
    "CAMELLIA",
    "CAMELLIA128",
    "CAMELLIA256",
    "ARIA",
    "ARIA128",
    "ARIA256",
    "ARIAGCM",
    "AESCCM",
    "AESCCM8",
    "MD5",
    "SHA",
    "SHA1",
    "SHA256",
    "SHA384",
    "SSLv3",
    "TLSv1",
    "TLSv1.0",
    "kGOST",
    "aGOST",
    "aGOST01",
    "GOST94",
    "GOST89MAC",
    "STRENGTH",
];

/// The supported suites of TLS 1.3, in the order of preference.
static SUITES: &[(&str, SupportedCipherSuite)] = &[
    ("TLS_AES_256_GCM_SHA384", suite::TLS13_AES_256_GCM_SHA384),
    ("TLS_CHACHA20_POLY1305_SHA256", suite::TLS13_CHACHA20_POLY1305_SHA256),
    ("TLS_AES_128_GCM_SHA256", suite::TLS13_AES_128_GCM_SHA256),
];

/// Returns the ciphers of TLS 1.2 that a cipher list selects, in its order. The result is empty if the list selects
/// none. An empty list selects all.
pub fn select_ciphers(list: &str) -> Vec<SupportedCipherSuite> {
    let mut chosen: Vec<usize> = Vec::new();
    let mut barred: Vec<usize> = Vec::new();
    let list = if list.is_empty() { "DEFAULT" } else { list };
    for word in list.split([':', ',', ' ', ';']).filter(|word| !word.is_empty()) {
        if word.starts_with('@') {
            // Commands such as `@STRENGTH` and `@SECLEVEL` have no effect: all supported ciphers are strong, and
            // sorted.
            continue;
        }
        let (sign, selector) = match word.split_at(1) {
            (sign @ ("!" | "-" | "+"), rest) => (sign, rest),
            _ => ("", word),
        };
        let matched: Vec<usize> = (0..CIPHERS.len())
            .filter(|at| matches_class(selector, &CIPHERS[*at]))
            .collect();
        if sign.is_empty() && matched.is_empty() && !selector.split('+').all(is_class) {
            log::warn!("tls-ciphers: {selector} is not available");
        }
        match sign {
            "!" => {
                chosen.retain(|at| !matched.contains(at));
                barred.extend(matched);
            }
            "-" => chosen.retain(|at| !matched.contains(at)),
            "+" => chosen.sort_by_key(|at| matched.contains(at)),
            _ => {
                let new = |at: &usize| !chosen.contains(at) && !barred.contains(at);
                let added: Vec<usize> = matched.into_iter().filter(new).collect();
                chosen.extend(added);
            }
        }
    }
    chosen.into_iter().map(|at| CIPHERS[at].suite).collect()
}

fn is_class(word: &str) -> bool {
    CLASSES_WITH_ALL.contains(&word)
        || CLASSES_WITH_NONE.contains(&word)
        || CIPHERS.iter().any(|cipher| cipher.classes.contains(&word))
}

fn matches_class(selector: &str, cipher: &Cipher) -> bool {
    let is_in = |word: &str| cipher.name == word || CLASSES_WITH_ALL.contains(&word) || cipher.classes.contains(&word);
    selector.split('+').all(is_in)
}

/// Returns the suites of TLS 1.3 that a list names, in its order. The result is empty if none is supported. An empty
/// list selects all.
pub fn select_suites(list: &str) -> Vec<SupportedCipherSuite> {
    if list.is_empty() {
        return SUITES.iter().map(|(_, suite)| *suite).collect();
    }
    let mut chosen = Vec::new();
    for word in list.split(':').filter(|word| !word.is_empty()) {
        match SUITES.iter().find(|(name, _)| *name == word) {
            Some((_, suite)) if !chosen.contains(suite) => chosen.push(*suite),
            Some(_) => {}
            None => log::warn!("tls-ciphersuites: {word} is not available"),
        }
    }
    chosen
}

/// Parses a list of protocol versions; `None` if it contains an unknown word or no usable version.
pub fn parse_versions(list: &str) -> Option<Vec<&'static SupportedProtocolVersion>> {
    if list.is_empty() {
        return Some(vec![&version::TLS13, &version::TLS12]);
    }
    let mut chosen: Vec<&'static SupportedProtocolVersion> = Vec::new();
    for word in list.split(' ').filter(|word| !word.is_empty()) {
        match word.to_ascii_lowercase().as_str() {
            "tlsv1" | "tlsv1.1" => log::warn!("{word} in tls-protocols is obsolete and not supported."),
            "tlsv1.2" => chosen.push(&version::TLS12),
            "tlsv1.3" => chosen.push(&version::TLS13),
            _ => {
                log::warn!(
                    "Invalid tls-protocols specified. Use a combination of 'TLSv1', 'TLSv1.1', 'TLSv1.2' and 'TLSv1.3'."
                );
                return None;
            }
        }
    }
    if chosen.is_empty() {
        log::warn!("tls-protocols contains no supported version.");
        return None;
    }
    Some(chosen)
}

#[cfg(test)]
mod tests;
