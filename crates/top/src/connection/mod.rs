//! The connection to the server: sends commands and reads their replies.
//!
//! It uses RESP2, which all servers speak, and one timeout for each request.

mod certificate;
pub mod reply;
mod tls;
mod transport;

use std::io::{BufReader, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::ClientConfig;

use crate::error::{Result, TopError};
use crate::escape::printable;
use crate::options::{ConnectionOptions, ServerAddress};
use reply::{RespValue, read_reply};
use transport::Transport;

/// The time limit of a request, and of connecting.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest text of a server's error that is shown.
const ERROR_CHARACTERS: usize = 200;

/// The way to the server. It is prepared once and used for each attempt to connect.
#[derive(Debug, Clone)]
pub struct Connector {
    options: ConnectionOptions,
    tls: Option<Arc<ClientConfig>>,
}

impl Connector {
    /// Prepares connections; reads the files of TLS.
    ///
    /// # Errors
    /// Fails if a file of TLS cannot be used.
    pub fn new(options: ConnectionOptions) -> Result<Connector> {
        let tls = match &options.tls {
            Some(tls) => Some(tls::client_config(tls)?),
            None => None,
        };
        Ok(Connector { options, tls })
    }

    /// The address as text.
    pub fn address(&self) -> String {
        self.options.address.to_string()
    }

    /// Connects and authenticates.
    ///
    /// # Errors
    /// Fails if the server is not reached or refuses the password.
    pub fn connect(&self) -> Result<ServerConnection> {
        let name = match (&self.options.tls, &self.options.address) {
            (Some(tls), _) if tls.server_name.is_some() => tls.server_name.clone().unwrap_or_default(),
            (_, ServerAddress::Tcp { host, .. }) => host.clone(),
            (_, ServerAddress::Unix(_)) => "localhost".to_owned(),
        };
        let tls = self.tls.as_ref().map(|config| (config, name.as_str()));
        let transport = Transport::connect(&self.options.address, tls, REQUEST_TIMEOUT)?;
        let mut connection = ServerConnection {
            stream: BufReader::with_capacity(64 << 10, transport),
        };
        if let Some(password) = &self.options.password {
            let reply = match &self.options.user {
                Some(user) => connection.call(&["AUTH", user, password])?,
                None => connection.call(&["AUTH", password])?,
            };
            if let RespValue::Error(text) = reply {
                let text = printable(&text, ERROR_CHARACTERS);
                return Err(TopError::Server(format!("the server refused the password: {text}")));
            }
        }
        // Old servers and restricted users do without the name.
        connection.call(&["CLIENT", "SETNAME", "weft-top"])?;
        Ok(connection)
    }
}

/// An open connection. After an error of the network it must be dropped, because replies may be out of step.
#[derive(Debug)]
pub struct ServerConnection {
    stream: BufReader<Transport>,
}

impl ServerConnection {
    /// Sends one command and reads its reply, which may be an error of the server.
    ///
    /// # Errors
    /// Fails if the connection breaks, the time is over or the reply is malformed.
    pub fn call(&mut self, words: &[&str]) -> Result<RespValue> {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        let mut replies = self.pipeline(&[words])?;
        replies.pop().ok_or_else(|| TopError::Server("no reply".to_owned()))
    }

    /// Sends commands together and reads their replies, one for each.
    ///
    /// # Errors
    /// Fails like [`Self::call`].
    pub fn pipeline(&mut self, commands: &[Vec<&[u8]>]) -> Result<Vec<RespValue>> {
        let mut request = Vec::new();
        for command in commands {
            request.extend_from_slice(format!("*{}\r\n", command.len()).as_bytes());
            for word in command {
                request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
                request.extend_from_slice(word);
                request.extend_from_slice(b"\r\n");
            }
        }
        let transport = self.stream.get_mut();
        transport.set_deadline(Instant::now() + REQUEST_TIMEOUT);
        transport
            .write_all(&request)
            .and_then(|()| transport.flush())
            .map_err(TopError::system("sending a command"))?;
        commands
            .iter()
            .map(|_| read_reply(&mut self.stream).map_err(TopError::system("reading a reply")))
            .collect()
    }
}

/// Returns the reply as it is, or the text of the server's error.
pub fn accepted(reply: RespValue) -> std::result::Result<RespValue, String> {
    match reply {
        RespValue::Error(text) => Err(printable(&text, ERROR_CHARACTERS)),
        other => Ok(other),
    }
}
