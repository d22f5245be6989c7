//! `set-proc-title` and `proc-title-template`: the title that `ps` shows.

use std::os::unix::ffi::{OsStrExt, OsStringExt};

use crate::observability::log;
use weft_base::files::error_text;
use weft_config::{Config, id, title};

/// Sets the process title if one is configured.
pub fn set_process_title(config: &Config) {
    if !config.boolean(id::SET_PROC_TITLE) {
        return;
    }
    let template = config.text(id::PROC_TITLE_TEMPLATE);
    let Some(title) = title::expand_template(&template, |variable| template_value(config, variable)) else {
        return;
    };
    if let Err(error) = weft_reactor::set_process_title(&title) {
        log::debug!("The process title could not be set: {}", error_text(&error));
    }
}

fn template_value(config: &Config, variable: &[u8]) -> Option<Vec<u8>> {
    let number = |id| config.integer(id).to_string().into_bytes();
    Some(match variable {
        b"title" => std::env::args_os().next().unwrap_or_default().into_vec(),
        b"listen-addr" => listen_address(config),
        b"server-mode" if config.boolean(id::CLUSTER_ENABLED) => b"[cluster]".to_vec(),
        b"server-mode" => Vec::new(),
        b"port" => number(id::PORT),
        b"tls-port" => number(id::TLS_PORT),
        b"unixsocket" => config.text(id::UNIXSOCKET).to_vec(),
        b"config-file" => config
            .file()
            .map_or_else(|| b"-".to_vec(), |file| file.as_os_str().as_bytes().to_vec()),
        _ => return None,
    })
}

/// Returns the first address with the port, or the Unix socket if there is no port.
fn listen_address(config: &Config) -> Vec<u8> {
    let ports = [id::PORT, id::TLS_PORT].map(|id| config.integer(id));
    match ports.into_iter().find(|port| *port != 0) {
        Some(port) => {
            let addresses = config.addresses(id::BIND);
            let first = addresses.first().map_or("*", |address| address);
            format!("{first}:{port}").into_bytes()
        }
        None => [b"unixsocket:", &*config.text(id::UNIXSOCKET)].concat(),
    }
}
