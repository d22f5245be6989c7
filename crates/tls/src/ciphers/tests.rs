//! Compares the meaning of cipher lists with OpenSSL.

use super::*;

fn names(list: &str) -> Vec<&'static str> {
    let name = |suite: SupportedCipherSuite| {
        let found = CIPHERS.iter().find(|cipher| cipher.suite == suite);
        found.map_or("?", |cipher| cipher.name)
    };
    select_ciphers(list).into_iter().map(name).collect()
}

#[test]
fn cipher_lists_select_the_same_as_in_openssl() {
    let all: Vec<&str> = CIPHERS.iter().map(|cipher| cipher.name).collect();
    let cases: &[(&str, &str, &[&str])] = &[
        ("nothing said", "", &all),
        ("classes that all are in", "HIGH:!aNULL:!MD5", &all),
        ("what rustls lacks is left out", "DEFAULT:-AES128-SHA256", &all),
        (
            "names, in the order of the list",
            "ECDHE-RSA-AES128-GCM-SHA256:ECDHE-RSA-AES256-GCM-SHA384",
            &["ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-AES256-GCM-SHA384"],
        ),
        (
            "classes joined",
            "ECDHE+AESGCM+aRSA",
            &["ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-RSA-AES128-GCM-SHA256"],
        ),
        (
            "what is barred does not come back",
            "!CHACHA20:ECDSA:ALL:!aRSA",
            &["ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-ECDSA-AES128-GCM-SHA256"],
        ),
        (
            "what is taken out may come back",
            "aRSA:-AES:AES128+aRSA",
            &["ECDHE-RSA-CHACHA20-POLY1305", "ECDHE-RSA-AES128-GCM-SHA256"],
        ),
        (
            "what is put last",
            "aECDSA:+AES256",
            &[
                "ECDHE-ECDSA-CHACHA20-POLY1305",
                "ECDHE-ECDSA-AES128-GCM-SHA256",
                "ECDHE-ECDSA-AES256-GCM-SHA384",
            ],
        ),
        ("only what rustls lacks", "AES128-SHA256:AES256-SHA256", &[]),
        ("nonsense", "no such cipher", &[]),
    ];
    for (story, list, expected) in cases {
        assert_eq!(names(list), *expected, "{story}: {list}");
    }
}

#[test]
fn suites_of_tls_1_3_have_their_own_list() {
    assert_eq!(select_suites("").len(), 3);
    assert_eq!(
        select_suites("TLS_AES_128_GCM_SHA256:TLS_AES_128_CCM_SHA256:TLS_AES_128_GCM_SHA256"),
        [suite::TLS13_AES_128_GCM_SHA256]
    );
    assert!(select_suites("TLS_AES_128_CCM_SHA256").is_empty());
}

#[test]
fn versions_are_those_that_rustls_offers() {
    let count = |list: &str| parse_versions(list).map(|versions| versions.len());
    let cases = [
        ("", Some(2)),
        ("TLSv1.2", Some(1)),
        ("tlsv1.3 TLSv1.2", Some(2)),
        ("TLSv1 TLSv1.1 TLSv1.2", Some(1)),
        ("TLSv1.1", None),
        ("TLSv1.2 SSLv3", None),
        ("TLSv1.2,TLSv1.3", None),
    ];
    for (list, expected) in cases {
        assert_eq!(count(list), expected, "{list:?}");
    }
}
