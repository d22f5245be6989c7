//! The parameters of TLS.

use super::ChangeAction::{EnableTls, Listen, ReloadTls, SetProcessTitle};
use super::{Choices, I32_MAX, boolean, choice, integer, optional_text};

const TLS_AUTH: Choices = &[("no", 0), ("yes", 1), ("optional", 2)];

const TLS_USER_FIELD: Choices = &[("CN", 1), ("URI", 2), ("off", 0)];

super::table! {
    TLS_PORT "tls-port" = integer(0, 0, 65535).on_change(&[EnableTls, Listen, SetProcessTitle]),
        Active, "TLS port; 0 offers no TLS.";
    TLS_CERT_FILE "tls-cert-file" = optional_text().volatile().on_change(&[ReloadTls]),
        Active, "Certificate of the server.";
    TLS_KEY_FILE "tls-key-file" = optional_text().volatile().on_change(&[ReloadTls]),
        Active, "Private key of the server.";
    TLS_KEY_FILE_PASS "tls-key-file-pass" = optional_text().sensitive().on_change(&[ReloadTls]),
        Active, "Passphrase of that key.";
    TLS_CLIENT_CERT_FILE "tls-client-cert-file" = optional_text().volatile().on_change(&[ReloadTls]),
        Active, "Certificate for outgoing connections; empty uses the server's.";
    TLS_CLIENT_KEY_FILE "tls-client-key-file" = optional_text().volatile().on_change(&[ReloadTls]),
        Active, "Private key for outgoing connections.";
    TLS_CLIENT_KEY_FILE_PASS "tls-client-key-file-pass" = optional_text().sensitive().on_change(&[ReloadTls]),
        Active, "Passphrase of that key.";
    TLS_DH_PARAMS_FILE "tls-dh-params-file" = optional_text().volatile().on_change(&[ReloadTls]),
        NotImplemented, "Diffie-Hellman parameters, for old clients.";
    TLS_CA_CERT_FILE "tls-ca-cert-file" = optional_text().volatile().on_change(&[ReloadTls]),
        Active, "Certificates of the authorities to trust.";
    TLS_CA_CERT_DIR "tls-ca-cert-dir" = optional_text().volatile().on_change(&[ReloadTls]),
        Active, "Directory of such certificates.";
    TLS_AUTH_CLIENTS "tls-auth-clients" = choice(TLS_AUTH, "yes"),
        Active, "Ask clients for a certificate: yes, no or optional.";
    TLS_AUTH_CLIENTS_USER "tls-auth-clients-user" = choice(TLS_USER_FIELD, "off"),
        Active, "Field of a client's certificate that names its user: CN, URI or off.";
    TLS_REPLICATION "tls-replication" = boolean(false).on_change(&[ReloadTls]),
        Active, "Use TLS to the primary.";
    TLS_CLUSTER "tls-cluster" = boolean(false).on_change(&[ReloadTls]),
        Active, "Use TLS on the cluster bus.";
    TLS_PROTOCOLS "tls-protocols" = optional_text().on_change(&[ReloadTls]),
        Active, "Versions to offer; empty offers the library's defaults.";
    TLS_CIPHERS "tls-ciphers" = optional_text().on_change(&[ReloadTls]),
        Active, "Ciphers up to TLS 1.2.";
    TLS_CIPHERSUITES "tls-ciphersuites" = optional_text().on_change(&[ReloadTls]),
        Active, "Cipher suites of TLS 1.3.";
    TLS_PREFER_SERVER_CIPHERS "tls-prefer-server-ciphers" = boolean(false).on_change(&[ReloadTls]),
        Active, "Let the server's order of ciphers decide.";
    TLS_SESSION_CACHING "tls-session-caching" = boolean(true).on_change(&[ReloadTls]),
        Active, "Let clients resume sessions.";
    TLS_SESSION_CACHE_SIZE "tls-session-cache-size" = integer(20_480, 0, I32_MAX).on_change(&[ReloadTls]),
        Active, "Sessions kept; 0 sets no limit.";
    TLS_SESSION_CACHE_TIMEOUT "tls-session-cache-timeout" = integer(300, 0, I32_MAX).on_change(&[ReloadTls]),
        Active, "Seconds a session can be resumed.";
    TLS_AUTO_RELOAD_INTERVAL "tls-auto-reload-interval" = integer(0, 0, I32_MAX),
        Active, "Seconds between checks for changed certificates; 0 never checks.";
}
