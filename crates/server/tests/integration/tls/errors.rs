//! Tests that errors about certificates and keys name the file.

use std::fs;
use std::process::Command;

use super::authority::Authority;

/// Checks a configuration with these options. Returns what the program prints.
fn refusal(options: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_weft-server"))
        .args([
            "--check-config",
            "--port",
            "0",
            "--tls-port",
            "7000",
            "--tls-auth-clients",
            "no",
        ])
        .args(options)
        .output()
        .expect("runs");
    assert_eq!(output.status.code(), Some(1), "{options:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn errors_about_certificates_and_keys_name_the_file() {
    let authority = Authority::new();
    for name in ["own", "other"] {
        authority.write(name, &authority.identity(name, &[]));
    }
    fs::write(authority.file("text"), "some text").expect("writes");
    fs::create_dir_all(authority.file("empty")).expect("creates");
    let old = concat!(env!("CARGO_MANIFEST_DIR"), "/../tls/src/tests/version_one.crt");
    fs::copy(old, authority.file("old.crt")).expect("copies");
    let [own, own_key, other_key, text] = ["own.crt", "own.key", "other.key", "text"].map(|name| authority.file(name));
    let [old, missing] = ["old.crt", "missing"].map(|name| authority.file(name));
    let pair = |certificate: &str, key: &str| refusal(&["--tls-cert-file", certificate, "--tls-key-file", key]);
    let cases = [
        (
            pair(&own, &other_key),
            format!("Failed to load private key: {other_key}: it does not belong to the certificate in {own}\n"),
        ),
        (
            pair(&text, &own_key),
            format!("Failed to load certificate: {text}: it contains no certificate\n"),
        ),
        (
            pair(&own, &missing),
            format!("Failed to load private key: {missing}: No such file or directory\n"),
        ),
        (
            pair(&old, &own_key),
            format!(
                "Failed to load certificate: {old}: its certificate has X.509 version 1, but version 3 is required. "
            ),
        ),
        (pair(&old, &own_key), format!(" -extfile v3.ext -out {old}.v3\n")),
        (
            refusal(&[
                "--tls-cert-file",
                &own,
                "--tls-key-file",
                &own_key,
                "--tls-ca-cert-file",
                &text,
            ]),
            format!("Failed to configure CA certificate(s) file/directory: {text}: it contains no certificate\n"),
        ),
        (
            pair(&own, &other_key),
            format!("tls-key-file is '{other_key}': the private key of the certificate in tls-cert-file."),
        ),
        (
            pair(&text, &own_key),
            format!(
                "tls-cert-file is '{text}': a file in PEM format that the user of the server may read. It is set by "
            ),
        ),
        (
            pair(&own, ""),
            "TLS needs both tls-cert-file (set by the option --tls-cert-file), the certificate of the server, and \
             tls-key-file (set by the option --tls-key-file), its private key, "
                .into(),
        ),
        (
            refusal(&[
                "--tls-cert-file",
                &own,
                "--tls-key-file",
                &own_key,
                "--tls-client-cert-file",
                &own,
                "--tls-cluster",
                "yes",
            ]),
            "tls-cluster is 'yes', set by the option --tls-cluster. tls-ca-cert-file is a file, ".into(),
        ),
        (
            refusal(&[
                "--tls-cert-file",
                &own,
                "--tls-key-file",
                &own_key,
                "--tls-client-cert-file",
                &own,
                "--bind",
                "192.0.2.7",
            ]),
            format!("tls-client-cert-file is '{own}': it has no effect without tls-client-key-file, "),
        ),
    ];
    for (printed, expected) in cases {
        assert!(printed.contains(&expected), "{expected:?} is not in {printed:?}");
    }
}
