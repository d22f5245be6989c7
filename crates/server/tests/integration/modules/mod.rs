//! Modules. The tests load modules in C, of `tests/modules` and of the examples of the crate of modules, which they
//! compile against the header for authors.

mod blocking;
mod calls;
mod engines;
mod fork;
mod functions;
mod home_way;
mod hooks;
mod interpreter;
pub mod key_events;
mod keys;
mod lifecycle;
mod memory;
mod misuse;
mod moments;
mod parallel_events;
mod parameters;
mod registry;
mod relied_on;
mod replies;
mod serial;
mod slot_safe;
mod types;
mod users;
mod value_failures;
mod value_loading;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use crate::harness::client::Client;
use crate::harness::server::Server;

/// Compiles a module, unless this process has done so. Returns the path of its file.
pub fn module(name: &str) -> String {
    static COMPILED: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    let path = compiled.entry(name.to_owned()).or_insert_with(|| compile(name));
    path.to_string_lossy().into_owned()
}

fn compile(name: &str) -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("modules");
    fs::create_dir_all(&directory).expect("makes a directory");
    // Other processes may load the file while this one compiles it.
    let new = directory.join(format!("{name}.{}.so", std::process::id()));
    let target = directory.join(format!("{name}.so"));
    let example = package.join(format!("../modules/examples/{name}.c"));
    let several = package.join(format!("tests/modules/{name}"));
    let sources: Vec<PathBuf> = match (example.exists(), fs::read_dir(several)) {
        (true, _) => vec![example],
        (false, Ok(entries)) => {
            let paths = entries.map(|entry| entry.expect("reads an entry").path());
            paths
                .filter(|path| path.extension().is_some_and(|extension| extension == "c"))
                .collect()
        }
        (false, Err(_)) => vec![package.join(format!("tests/modules/{name}.c"))],
    };
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let output = Command::new(compiler)
        .args([
            "-std=gnu11",
            "-O1",
            "-g",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-shared",
            "-fPIC",
            "-pthread",
        ])
        .arg("-I")
        .arg(package.join("../modules/include"))
        .arg("-o")
        .arg(&new)
        .args(sources)
        .output()
        .expect("starts the C compiler");
    assert!(
        output.status.success(),
        "{name} does not compile: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    fs::rename(&new, &target).expect("moves the file");
    target
}

/// Starts a server with this many workers, all active, and these modules, each with its arguments.
pub fn start_with(workers: u8, modules: &[&[&str]], arguments: &[&str]) -> Server {
    let mut all: Vec<String> = vec!["--io-threads".into(), workers.to_string()];
    for words in modules {
        let (name, parameters) = words.split_first().expect("a name");
        all.extend(["--loadmodule".to_owned(), module(name)]);
        all.extend(parameters.iter().map(|word| (*word).to_owned()));
    }
    all.extend(arguments.iter().map(|word| (*word).to_owned()));
    let server = Server::start(&all.iter().map(String::as_str).collect::<Vec<&str>>());
    // It listens as soon as the modules are loaded, and loads its files then.
    Client::connect(server.port).wait_for_info("loading", "0");
    server
}

/// Starts a server with this many workers, all active, and one module without arguments.
pub fn start(workers: u8, name: &str) -> Server {
    start_with(workers, &[&[name]], &[])
}

/// Sends a request and returns the bytes of the reply, in which line ends are spaces.
pub fn raw_call(client: &mut Client, words: &[&str]) -> String {
    client.send(words);
    let mut reply = Vec::new();
    read_reply(client, &mut reply);
    String::from_utf8_lossy(&reply)
        .replace("\r\n", " ")
        .trim_end()
        .to_owned()
}

/// Appends the bytes of the next reply.
fn read_reply(client: &mut Client, reply: &mut Vec<u8>) {
    let mut line = String::new();
    client.0.read_line(&mut line).expect("receives");
    reply.extend_from_slice(line.as_bytes());
    let (kind, rest) = line.trim_end().split_at(1);
    let elements = match kind {
        "$" | "=" if rest != "-1" => {
            let mut bytes = vec![0; rest.parse::<usize>().expect("a length") + 2];
            client.0.read_exact(&mut bytes).expect("receives");
            reply.extend_from_slice(&bytes);
            0
        }
        "*" | "~" | ">" if rest != "-1" => rest.parse().expect("a length"),
        "%" => rest.parse::<usize>().expect("a length") * 2,
        // The value that the attributes describe follows them.
        "|" => rest.parse::<usize>().expect("a length") * 2 + 1,
        _ => 0,
    };
    (0..elements).for_each(|_| read_reply(client, reply));
}
