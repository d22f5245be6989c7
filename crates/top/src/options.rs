//! The command line: one table row per option serves both the parser and `--help`.

use std::fmt;
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use crate::error::{Result, TopError};

#[cfg(test)]
mod tests;

/// The default seconds between two samples.
const DEFAULT_INTERVAL_S: f64 = 1.0;
/// The shortest and the longest seconds between two samples.
const INTERVAL_S: std::ops::RangeInclusive<f64> = 0.1..=3600.0;
/// The variables that may hold the password. The first that is set counts.
const PASSWORD_VARIABLES: [&str; 2] = ["VALKEYCLI_AUTH", "REDISCLI_AUTH"];

struct OptionRow {
    names: &'static [&'static str],
    /// The name of the value in the help; empty for a switch.
    value: &'static str,
    help: &'static str,
}

const fn row(names: &'static [&'static str], value: &'static str, help: &'static str) -> OptionRow {
    OptionRow { names, value, help }
}

#[rustfmt::skip]
const OPTIONS: &[OptionRow] = &[
    row(&["-h"], "HOST", "Host of the server (default: 127.0.0.1)."),
    row(&["-p"], "PORT", "Port of the server (default: 6379)."),
    row(&["-s"], "PATH", "Unix socket of the server, instead of host and port."),
    row(&["-a", "--pass"], "PASSWORD", "Password. The variables VALKEYCLI_AUTH and REDISCLI_AUTH keep it off the command line."),
    row(&["--user"], "NAME", "User of the password."),
    row(&["--tls"], "", "Use TLS."),
    row(&["--sni"], "NAME", "Name of the server in the handshake of TLS (default: the host)."),
    row(&["--cacert"], "FILE", "Certificates of trusted authorities (default: those of the system)."),
    row(&["--insecure"], "", "Accept any certificate of the server, whatever its issuer, name and version."),
    row(&["--cert"], "FILE", "Certificate of this client, of X.509 version 3."),
    row(&["--key"], "FILE", "Private key of this client's certificate."),
    row(&["-i", "--interval"], "SECONDS", "Time between two samples, 0.1 to 3600 (default: 1)."),
    row(&["--json"], "", "Print one JSON object per interval instead of the dashboard."),
    row(&["--count"], "N", "End after N objects (with --json)."),
    row(&["--once"], "", "Print one object, indented. Like --json --count 1."),
    row(&["--sample-keys"], "", "Search for big keys from the start. It costs the server up to 1 % of its time."),
    row(&["--hot-keys"], "", "Let a Weft server sample the most used keys. It costs the server up to 1 % of its time."),
    row(&["--help"], "", "Print this help."),
    row(&["--version"], "", "Print the version."),
];

/// The address of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerAddress {
    /// Host and port.
    Tcp {
        /// The name or the address of the host.
        host: String,
        /// The port.
        port: u16,
    },
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerAddress::Tcp { host, port } if host.contains(':') => write!(formatter, "[{host}]:{port}"),
            ServerAddress::Tcp { host, port } => write!(formatter, "{host}:{port}"),
            ServerAddress::Unix(path) => write!(formatter, "{}", path.display()),
        }
    }
}

/// The options of TLS.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// The file of trusted authorities.
    pub authorities: Option<PathBuf>,
    /// The file of this client's certificate.
    pub certificate: Option<PathBuf>,
    /// The file of this client's private key.
    pub key: Option<PathBuf>,
    /// The name that the server's certificate must have, if it is not the host.
    pub server_name: Option<String>,
    /// Accepts any certificate.
    pub insecure: bool,
}

/// What is needed to connect.
#[derive(Clone, PartialEq, Eq)]
pub struct ConnectionOptions {
    /// The address.
    pub address: ServerAddress,
    /// The password.
    pub password: Option<String>,
    /// The user of the password.
    pub user: Option<String>,
    /// The options of TLS, if it is used.
    pub tls: Option<TlsOptions>,
}

impl fmt::Debug for ConnectionOptions {
    /// Omits the password.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ConnectionOptions({})", self.address)
    }
}

/// How the figures are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputMode {
    /// On the terminal.
    Dashboard,
    /// As JSON.
    Json {
        /// The number of objects; `None` for no limit.
        count: Option<u64>,
        /// Indents the objects.
        pretty: bool,
    },
}

/// A complete command line.
#[derive(Debug, Clone, PartialEq)]
pub struct TopOptions {
    /// The server.
    pub connection: ConnectionOptions,
    /// The time between two samples.
    pub interval: Duration,
    /// The output.
    pub mode: OutputMode,
    /// Searches for big keys from the start.
    pub sample_keys: bool,
    /// Lets the server sample the most used keys from the start.
    pub hot_keys: bool,
}

/// The result of parsing a command line.
#[derive(Debug, Clone, PartialEq)]
pub enum ParsedCommandLine {
    /// Run with these options.
    Run(Box<TopOptions>),
    /// Print this text and end.
    Print(String),
}

/// Parses the words after the program's name. `variable` reads a variable of the environment.
///
/// # Errors
/// Fails for unknown or repeated options, and for values that cannot be used.
pub fn parse(words: &[String], variable: impl Fn(&str) -> Option<String>) -> Result<ParsedCommandLine> {
    let given = GivenOptions::parse(words)?;
    if given.has("--help") {
        return Ok(ParsedCommandLine::Print(help()));
    }
    if given.has("--version") {
        let version = concat!("weft-top ", env!("CARGO_PKG_VERSION"), "\n");
        return Ok(ParsedCommandLine::Print(version.to_owned()));
    }
    let environment = || PASSWORD_VARIABLES.iter().find_map(|name| variable(name));
    let connection = ConnectionOptions {
        address: given.address()?,
        password: given.text("-a").or_else(environment),
        user: given.text("--user"),
        tls: given.tls()?,
    };
    if connection.user.is_some() && connection.password.is_none() {
        return Err(TopError::Usage("--user needs a password".to_owned()));
    }
    let options = TopOptions {
        connection,
        interval: given.interval()?,
        mode: given.mode()?,
        sample_keys: given.has("--sample-keys"),
        hot_keys: given.has("--hot-keys"),
    };
    Ok(ParsedCommandLine::Run(Box::new(options)))
}

/// The options that were given, by the first name of their row.
struct GivenOptions(Vec<(&'static str, String)>);

impl GivenOptions {
    fn parse(words: &[String]) -> Result<GivenOptions> {
        let mut given: Vec<(&'static str, String)> = Vec::new();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let (name, attached) = match word.split_once('=') {
                Some((name, value)) if name.starts_with("--") => (name, Some(value.to_owned())),
                _ => (word.as_str(), None),
            };
            let known = OPTIONS.iter().find(|row| row.names.contains(&name));
            let row = known.ok_or_else(|| TopError::Usage(format!("unknown argument {word:?}")))?;
            let value = match (row.value, attached) {
                ("", None) => String::new(),
                ("", Some(_)) => return Err(TopError::Usage(format!("{name} takes no value"))),
                (_, Some(value)) => value,
                (kind, None) => words
                    .next()
                    .ok_or_else(|| TopError::Usage(format!("{name} needs {kind}")))?
                    .clone(),
            };
            let first = row.names[0];
            if given.iter().any(|(name, _)| *name == first) {
                return Err(TopError::Usage(format!("{name} is given twice")));
            }
            given.push((first, value));
        }
        Ok(GivenOptions(given))
    }

    fn text(&self, name: &str) -> Option<String> {
        let found = self.0.iter().find(|(given, _)| *given == name);
        found.map(|(_, value)| value.clone())
    }

    fn has(&self, name: &str) -> bool {
        self.text(name).is_some()
    }

    fn address(&self) -> Result<ServerAddress> {
        let Some(path) = self.text("-s") else {
            let port = self.text("-p").unwrap_or_else(|| "6379".to_owned());
            return Ok(ServerAddress::Tcp {
                host: self.text("-h").unwrap_or_else(|| "127.0.0.1".to_owned()),
                port: port.parse().map_err(|_| unreadable("-p", &port))?,
            });
        };
        if self.has("-h") || self.has("-p") {
            return Err(TopError::Usage("-s excludes -h and -p".to_owned()));
        }
        Ok(ServerAddress::Unix(path.into()))
    }

    fn tls(&self) -> Result<Option<TlsOptions>> {
        let options = TlsOptions {
            authorities: self.text("--cacert").map(Into::into),
            certificate: self.text("--cert").map(Into::into),
            key: self.text("--key").map(Into::into),
            server_name: self.text("--sni"),
            insecure: self.has("--insecure"),
        };
        match self.has("--tls") {
            true => Ok(Some(options)),
            false if options == TlsOptions::default() => Ok(None),
            false => Err(TopError::Usage(
                "--cacert, --cert, --key, --sni and --insecure need --tls".to_owned(),
            )),
        }
    }

    fn interval(&self) -> Result<Duration> {
        let text = self.text("-i").unwrap_or_else(|| DEFAULT_INTERVAL_S.to_string());
        match text.parse() {
            Ok(seconds) if INTERVAL_S.contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
            _ => Err(unreadable("--interval", &text)),
        }
    }

    fn mode(&self) -> Result<OutputMode> {
        let count = match self.text("--count") {
            None => None,
            Some(text) => match text.parse() {
                Ok(count) if count > 0 => Some(count),
                _ => return Err(unreadable("--count", &text)),
            },
        };
        match (self.has("--once"), self.has("--json"), count) {
            (true, _, Some(count)) if count != 1 => Err(TopError::Usage("--once prints one object".to_owned())),
            (true, _, _) => Ok(OutputMode::Json {
                count: Some(1),
                pretty: true,
            }),
            (false, true, count) => Ok(OutputMode::Json { count, pretty: false }),
            (false, false, None) => Ok(OutputMode::Dashboard),
            (false, false, Some(_)) => Err(TopError::Usage("--count needs --json".to_owned())),
        }
    }
}

fn unreadable(name: &str, value: &str) -> TopError {
    TopError::Usage(format!("{name}: cannot use {value:?}"))
}

fn help() -> String {
    let mut text = String::from("Usage: weft-top [OPTION]...\n\nShows what a Weft, Valkey or Redis server does.\n\n");
    for row in OPTIONS {
        let left = format!("{} {}", row.names.join(", "), row.value);
        let _ = writeln!(text, "  {left:<24} {}", row.help);
    }
    text
}
