//! The filters of CLIENT LIST and CLIENT KILL: they select clients.
//!
//! A filter is a list of conditions that must all hold. Most have a `NOT-` form. If a condition is given twice, the
//! last one counts, except for IDs, which add up.

use std::collections::HashSet;

use weft_base::{ClientId, DbIndex};
use weft_resp::Args;
use weft_resp::number::parse_i64;

use crate::commands::error::{CommandError, c_string_prefix};
use crate::net::client::{Client, ClientKind};

/// The letters that CLIENT LIST may show as flags of a client.
const FLAG_LETTERS: &[u8] = b"bcdeirtuxABEIMNOPRSTU";
/// The letters that CLIENT LIST may show as capabilities of a client.
const CAPABILITY_LETTERS: &[u8] = b"r";

/// The names that filters may refer to.
#[derive(Clone, Copy)]
pub struct FilterContext<'a> {
    /// The number of databases.
    pub databases: i64,
    /// Returns `true` if a user of that name exists.
    pub is_user: &'a dyn Fn(&[u8]) -> bool,
}

/// A filter of clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientFilter {
    /// `ID`: one of these.
    ids: Option<HashSet<ClientId>>,
    /// `NOT-ID`: none of these.
    not_ids: Option<HashSet<ClientId>>,
    /// `ADDR`, as CLIENT LIST shows it.
    address: Option<Vec<u8>>,
    /// `SKIPME`: not the caller.
    skip_caller: bool,
    /// `MAXAGE`: connected for at least this time.
    min_age_s: Option<u64>,
    /// `IDLE`: idle for at least this time.
    min_idle_s: Option<u64>,
    not_address: Option<Vec<u8>>,
    local_address: Option<Vec<u8>>,
    not_local_address: Option<Vec<u8>>,
    ip: Option<Vec<u8>>,
    not_ip: Option<Vec<u8>>,
    kind: Option<ClientKind>,
    not_kind: Option<ClientKind>,
    user: Option<Vec<u8>>,
    not_user: Option<Vec<u8>>,
    name: Option<Vec<u8>>,
    not_name: Option<Vec<u8>>,
    lib_name: Option<Vec<u8>>,
    not_lib_name: Option<Vec<u8>>,
    lib_version: Option<Vec<u8>>,
    not_lib_version: Option<Vec<u8>>,
    flags: Option<Vec<u8>>,
    not_flags: Option<Vec<u8>>,
    capabilities: Option<Vec<u8>>,
    not_capabilities: Option<Vec<u8>>,
    db: Option<DbIndex>,
    not_db: Option<DbIndex>,
}

impl ClientFilter {
    /// Creates a filter for the client with that ID.
    pub fn with_id(id: ClientId) -> ClientFilter {
        ClientFilter {
            ids: Some(HashSet::from([id])),
            ..ClientFilter::default()
        }
    }

    /// Creates a filter for the clients with that peer address.
    pub fn with_address(address: &[u8]) -> ClientFilter {
        ClientFilter {
            address: Some(address.to_vec()),
            ..ClientFilter::default()
        }
    }

    /// Parses the filter that begins at the third argument. `skip_caller` is the default of SKIPME.
    ///
    /// # Errors
    /// If an argument is not a filter, or its value is invalid; the first such argument counts.
    pub fn parse(args: Args<'_>, context: FilterContext<'_>, skip_caller: bool) -> Result<ClientFilter, CommandError> {
        let mut filter = ClientFilter {
            skip_caller,
            ..ClientFilter::default()
        };
        let mut at = 2;
        while at < args.len() {
            let option = args.argument(at).to_ascii_uppercase();
            // An empty list of IDs is a list, though not as the only filter.
            let may_be_last = at > 2 && matches!(option.as_slice(), b"ID" | b"NOT-ID");
            if at + 1 == args.len() && !may_be_last {
                return Err(CommandError::SYNTAX);
            }
            at = match option.as_slice() {
                b"ID" => parse_ids(args, at + 1, &mut filter.ids)?,
                b"NOT-ID" => parse_ids(args, at + 1, &mut filter.not_ids)?,
                option => {
                    filter.parse_condition(option, args.argument(at + 1), context)?;
                    at + 2
                }
            };
        }
        Ok(filter)
    }

    fn parse_condition(&mut self, option: &[u8], value: &[u8], context: FilterContext<'_>) -> Result<(), CommandError> {
        let FilterContext { databases, is_user } = context;
        let text = Some(value.to_vec());
        match option {
            b"ADDR" => self.address = text,
            b"NOT-ADDR" => self.not_address = text,
            b"LADDR" => self.local_address = text,
            b"NOT-LADDR" => self.not_local_address = text,
            b"IP" => self.ip = text,
            b"NOT-IP" => self.not_ip = text,
            b"NAME" => self.name = text,
            b"NOT-NAME" => self.not_name = text,
            b"LIB-NAME" => self.lib_name = text,
            b"NOT-LIB-NAME" => self.not_lib_name = text,
            b"LIB-VER" => self.lib_version = text,
            b"NOT-LIB-VER" => self.not_lib_version = text,
            b"TYPE" => self.kind = Some(parse_kind(value)?),
            b"NOT-TYPE" => self.not_kind = Some(parse_kind(value)?),
            b"USER" => self.user = Some(parse_user(value, is_user)?),
            b"NOT-USER" => self.not_user = Some(parse_user(value, is_user)?),
            b"FLAGS" => self.flags = Some(parse_letters(value, FLAG_LETTERS, "flags", "provided")?),
            b"NOT-FLAGS" => self.not_flags = Some(parse_letters(value, FLAG_LETTERS, "flags", "NOT-FLAGS")?),
            b"CAPA" => self.capabilities = Some(parse_letters(value, CAPABILITY_LETTERS, "capa", "provided")?),
            b"NOT-CAPA" => {
                self.not_capabilities = Some(parse_letters(value, CAPABILITY_LETTERS, "capa", "NOT-CAPA")?);
            }
            b"DB" => self.db = Some(parse_database(value, "DB", databases)?),
            b"NOT-DB" => self.not_db = Some(parse_database(value, "NOT-DB", databases)?),
            b"MAXAGE" => self.min_age_s = Some(parse_seconds(value, "maxage")?),
            b"IDLE" => self.min_idle_s = Some(parse_seconds(value, "idle")?),
            b"SKIPME" => self.skip_caller = parse_yes_or_no(value)?,
            _ => return Err(CommandError::SYNTAX),
        }
        Ok(())
    }

    /// Returns `true` if a client passes the filter; `caller` is the id of the client that runs the command.
    pub fn matches(&self, client: &Client, caller: ClientId, now_ms: u64) -> bool {
        !(self.skip_caller && client.id == caller)
            && self.matches_numbers(client, now_ms)
            && self.matches_addresses(client)
            && self.matches_texts(client)
            && self.matches_letters(client)
    }

    fn matches_numbers(&self, client: &Client, now_ms: u64) -> bool {
        self.ids.as_ref().is_none_or(|ids| ids.contains(&client.id))
            && self.not_ids.as_ref().is_none_or(|ids| !ids.contains(&client.id))
            && self.db.is_none_or(|db| client.db == db)
            && self.not_db.is_none_or(|db| client.db != db)
            && self.min_age_s.is_none_or(|age_s| client.age_s(now_ms) >= age_s)
            && self.min_idle_s.is_none_or(|idle_s| client.idle_s(now_ms) >= idle_s)
    }

    fn matches_addresses(&self, client: &Client) -> bool {
        let (address, local) = (client.address.as_bytes(), client.local_address.as_bytes());
        matches_condition(address, &self.address, &self.not_address)
            && matches_condition(local, &self.local_address, &self.not_local_address)
            && matches_optional_condition(ip_of(client).as_bytes(), &self.ip, &self.not_ip)
    }

    fn matches_texts(&self, client: &Client) -> bool {
        matches_optional_condition(&client.name, &self.name, &self.not_name)
            && matches_optional_condition(&client.lib_name, &self.lib_name, &self.not_lib_name)
            && matches_optional_condition(&client.lib_version, &self.lib_version, &self.not_lib_version)
            && matches_condition(client.login.name(), &self.user, &self.not_user)
    }

    fn matches_letters(&self, client: &Client) -> bool {
        let has_all = |set: &str, letters: &[u8]| letters.iter().all(|letter| set.as_bytes().contains(letter));
        let wants_flags = self.flags.is_some() || self.not_flags.is_some();
        let flags = if wants_flags {
            client.flag_letters()
        } else {
            String::new()
        };
        let capabilities = client.capability_letters();
        self.kind.is_none_or(|kind| client.kind() == kind)
            && self.not_kind.is_none_or(|kind| client.kind() != kind)
            && self.flags.as_ref().is_none_or(|letters| has_all(&flags, letters))
            && self.not_flags.as_ref().is_none_or(|letters| !has_all(&flags, letters))
            && self
                .capabilities
                .as_ref()
                .is_none_or(|letters| has_all(capabilities, letters))
            && self
                .not_capabilities
                .as_ref()
                .is_none_or(|letters| !has_all(capabilities, letters))
    }
}

/// Returns the IP address of a client; empty for a client without port, such as that of a Unix socket.
fn ip_of(client: &Client) -> &str {
    match client.address.ends_with(":0") {
        true => "",
        false => client.ip(),
    }
}

/// Returns `true` if a value equals `wanted`, if set, and differs from `unwanted`, if set.
fn matches_condition(value: &[u8], wanted: &Option<Vec<u8>>, unwanted: &Option<Vec<u8>>) -> bool {
    wanted.as_ref().is_none_or(|wanted| value == wanted) && unwanted.as_ref().is_none_or(|unwanted| value != unwanted)
}

/// Like [`matches_condition`], for a value that counts as missing if it is empty: then it equals nothing.
fn matches_optional_condition(value: &[u8], wanted: &Option<Vec<u8>>, unwanted: &Option<Vec<u8>>) -> bool {
    if value.is_empty() {
        return wanted.is_none();
    }
    matches_condition(value, wanted, unwanted)
}

/// Adds the numbers from argument `index` on; returns the index after the last one.
fn parse_ids(args: Args<'_>, mut index: usize, ids: &mut Option<HashSet<ClientId>>) -> Result<usize, CommandError> {
    let ids = ids.get_or_insert_default();
    while index < args.len()
        && let Some(id) = parse_i64(args.argument(index))
    {
        match u64::try_from(id) {
            Ok(id) if id > 0 => ids.insert(ClientId::new(id)),
            _ => {
                return Err(CommandError::constant("ERR client-id should be greater than 0"));
            }
        };
        index += 1;
    }
    Ok(index)
}

fn parse_kind(value: &[u8]) -> Result<ClientKind, CommandError> {
    ClientKind::from_name(value).ok_or_else(|| CommandError::with_word("ERR Unknown client type '", value, "'"))
}

fn parse_user(value: &[u8], is_user: &dyn Fn(&[u8]) -> bool) -> Result<Vec<u8>, CommandError> {
    if !is_user(value) {
        return Err(CommandError::with_word("ERR No such user '", value, "'"));
    }
    Ok(value.to_vec())
}

fn parse_letters(value: &[u8], known: &[u8], what: &str, filter: &str) -> Result<Vec<u8>, CommandError> {
    let value = c_string_prefix(value);
    if value.iter().all(|letter| known.contains(letter)) {
        return Ok(value.to_vec());
    }
    let text = format!("ERR Unknown {what} found in the {filter} filter: ");
    Err(CommandError::with_word(&text, value, ""))
}

fn parse_database(value: &[u8], option: &str, databases: i64) -> Result<DbIndex, CommandError> {
    let not_an_integer = || CommandError::from_text(format!("ERR {option} is not an integer or out of range"));
    let number = parse_i64(value).and_then(|number| i32::try_from(number).ok());
    let number = i64::from(number.ok_or_else(not_an_integer)?);
    if !(0..databases).contains(&number) {
        let highest = databases - 1;
        return Err(CommandError::from_text(format!(
            "ERR {option} number should be between 0 and {highest}"
        )));
    }
    Ok(DbIndex::new(number as usize))
}

fn parse_seconds(value: &[u8], option: &str) -> Result<u64, CommandError> {
    let not_an_integer = || CommandError::from_text(format!("ERR {option} is not an integer or out of range"));
    let seconds = parse_i64(value).ok_or_else(not_an_integer)?;
    if seconds <= 0 {
        return Err(CommandError::from_text(format!(
            "ERR {option} should be greater than 0"
        )));
    }
    Ok(seconds as u64)
}

fn parse_yes_or_no(value: &[u8]) -> Result<bool, CommandError> {
    if value.eq_ignore_ascii_case(b"yes") {
        Ok(true)
    } else if value.eq_ignore_ascii_case(b"no") {
        Ok(false)
    } else {
        Err(CommandError::SYNTAX)
    }
}

#[cfg(test)]
mod tests;
