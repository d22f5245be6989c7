//! Access control: who the users are, and what they may do.
//!
//! ```text
//!   ACL SETUSER, LOAD, the configuration ──▶ rules ──▶ User ─┐ one Arc, replaced as a whole
//!                                                            ▼
//!   Acl: name ──▶ Account { name, Arc<User>, deleted }    version + 1
//!                    ▲                                       ▲
//!                    │ Arc                                   │ compared before every command
//!   Client: Login { account, Arc<User>, seen, free_at } ─────┘
//! ```
//!
//! 1. Each change makes a new `User`, puts it into its account, and then raises the version. A client whose login has
//!    not seen the version takes the new `User` before its next command. So nobody locks anything on the path of a
//!    command, and a client that may do everything compares two numbers (`Login::free_at` and the version).
//! 2. What a user may do changes in *exclusive mode* (ACL SETUSER, DELUSER, LOAD). A worker admits a command and runs it
//!    within the same passage of the gate, so no command that was admitted by the old rules runs behind the change, and
//!    none is admitted by them once the change is answered. A command that left its worker before (it is long, or waits
//!    for keys) has begun by the old rules; one that waited is looked at again when it is served.
//! 3. The password of the default user may change at any time (`requirepass`): it matters to logins alone, which look
//!    at the account itself.
//! 4. An account that is deleted says so, and stays with its clients until their workers have closed them. The workers
//!    are told by mail; a client that sends a command before that is closed then.
//! 5. Rules go by the commands of Valkey, whether they exist here or not, so that its files can be read.
//!
//! What a command asks for ([`Asks`]) is told by who knows commands: the module has no idea of them beyond names.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use crate::config::{Config, id};
use crate::observability::lock;

mod account;
mod catalogue;
mod check;
mod file;
mod log;
mod password;
mod rules;
mod selector;
mod user;

#[cfg(test)]
mod tests;

pub use account::{Account, Login};
pub use catalogue::{Catalogue, Category, CommandId, Entry as CatalogueEntry};
pub use check::{Access, AccessRequest, ChannelUse, Denial, Reason};
pub use file::{Misdeclared, check_declarations};
pub use log::{DenialContext, Entry as LogEntry, Log, Refusal};
pub use password::random_digits;
pub use rules::has_blanks;
pub use selector::Selector;
pub use user::{SelectorDefaults, User};

/// The user that clients are before they log in as another.
pub const DEFAULT_USER: &[u8] = b"default";
/// How clients above all users are shown; no user can be called so.
const SUPERUSER: &[u8] = b"(superuser)";

/// Users by name.
type Accounts = BTreeMap<Box<[u8]>, Arc<Account>>;

/// A number that every command looks at, away from what others write.
#[repr(align(128))]
struct Version(AtomicU64);

/// All users.
pub struct Acl {
    version: Version,
    accounts: RwLock<Accounts>,
    /// Whether clients are logged in as the default user without a word.
    open: AtomicBool,
    /// Held while users change, so that changes happen one after the other.
    changing: Mutex<()>,
    /// Refusals.
    pub log: Mutex<Log>,
    catalogue: &'static Catalogue,
}

impl Acl {
    /// Only the default user, who may do everything.
    pub fn new(catalogue: &'static Catalogue) -> Acl {
        let default = Account::new(DEFAULT_USER, User::unrestricted(catalogue));
        Acl {
            version: Version(AtomicU64::new(1)),
            accounts: RwLock::new(BTreeMap::from([(DEFAULT_USER.into(), default)])),
            open: AtomicBool::new(true),
            changing: Mutex::default(),
            log: Mutex::default(),
            catalogue,
        }
    }

    /// Grows with each change. Never 0.
    #[inline]
    pub fn version(&self) -> u64 {
        self.version.0.load(Ordering::Acquire)
    }

    /// Whether clients are logged in as the default user without a word.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// Whether the default user takes any password.
    pub fn asks_for_no_password(&self) -> bool {
        self.account(DEFAULT_USER)
            .is_some_and(|account| account.user().needs_no_password())
    }

    /// The commands that rules may name.
    pub fn catalogue(&self) -> &'static Catalogue {
        self.catalogue
    }

    fn ground(&self, config: &Config) -> SelectorDefaults<'static> {
        SelectorDefaults {
            catalogue: self.catalogue,
            all_channels: config.choice(id::ACL_PUBSUB_DEFAULT) == "allchannels",
        }
    }

    // ---- questions --------------------------------------------------------------------------------

    /// The user of that name.
    pub fn account(&self, name: &[u8]) -> Option<Arc<Account>> {
        let accounts = self.accounts.read().unwrap_or_else(PoisonError::into_inner);
        accounts.get(name).cloned()
    }

    /// All users, by name.
    pub fn accounts(&self) -> Vec<Arc<Account>> {
        let accounts = self.accounts.read().unwrap_or_else(PoisonError::into_inner);
        accounts.values().cloned().collect()
    }

    /// All users as configuration files show them behind the word `user`: the name, then the rules.
    pub fn describe(&self) -> Vec<Vec<u8>> {
        let describe = |account: Arc<Account>| [account.name(), b" ", &*account.user().describe()].concat();
        self.accounts().into_iter().map(describe).collect()
    }

    /// The login of a client that has said nothing yet: the default user, logged in if that takes no password.
    pub fn greet(&self) -> Login {
        let account = self.account(DEFAULT_USER).unwrap_or_else(|| {
            unreachable!("the default user cannot be deleted");
        });
        Login::new(account, self, self.is_open())
    }

    /// The login of who is above all users: the primary that this server follows.
    pub fn superuser(&self) -> Login {
        let account = Account::new(SUPERUSER, User::unrestricted(self.catalogue));
        Login::new(account, self, true)
    }

    /// The login of who gives that name and password, if they are right.
    pub fn log_in(&self, name: &[u8], password: &[u8]) -> Option<Login> {
        let account = self.account(name)?;
        let accepted = account.user().accepts(password);
        accepted.then(|| Login::new(account, self, true))
    }

    /// The login of who has shown who he is in another way, if there is such a user and it is switched on.
    pub fn log_in_known(&self, name: &[u8]) -> Option<Login> {
        let account = self.account(name)?;
        account.user().is_enabled().then(|| Login::new(account, self, true))
    }

    // ---- changes ----------------------------------------------------------------------------------

    /// Creates or changes a user; all rules are applied, or none. For callers in exclusive mode, or before any client.
    /// Returns the user if it lost channels.
    ///
    /// # Errors
    /// The text of an error, without its code.
    pub fn set_user<Rule: AsRef<[u8]>>(
        &self,
        name: &[u8],
        rules: &[Rule],
        config: &Config,
    ) -> Result<Option<Arc<Account>>, Vec<u8>> {
        let ground = self.ground(config);
        let _changing = lock(&self.changing);
        let account = self.account(name);
        let mut user = match &account {
            Some(account) => User::clone(&account.user()),
            None => User::new(ground),
        };
        let merged = rules::merge_selectors(rules).map_err(|rules::Unmatched(place)| {
            let begin = rules::text_of(rules[place].as_ref());
            [b"Unmatched parenthesis in acl selector starting at '", begin, b"'."].concat()
        })?;
        for rule in &merged {
            user.apply(rule, ground).map_err(|error| {
                let rule = rules::text_of(rule);
                let reason = format!("': {}", error.text());
                [b"Error in ACL SETUSER modifier '", rule, reason.as_bytes()].concat()
            })?;
        }
        let narrowed = account.filter(|account| user.narrows_channels(&account.user()));
        self.put(name, user);
        Ok(narrowed)
    }

    /// Deletes users, but never the default one; returns those that were there. For callers in exclusive mode.
    pub fn delete_users<'n>(&self, names: impl Iterator<Item = &'n [u8]>) -> Vec<Arc<Account>> {
        let _changing = lock(&self.changing);
        let mut deleted = Vec::new();
        for name in names.filter(|name| *name != DEFAULT_USER) {
            let mut accounts = self.accounts.write().unwrap_or_else(PoisonError::into_inner);
            deleted.extend(accounts.remove(name));
        }
        deleted.iter().for_each(|account: &Arc<Account>| account.delete());
        self.publish();
        deleted
    }

    /// Gives the default user the one password that `requirepass` names; if that is empty, any will do.
    pub fn set_default_password(&self, password: &[u8], config: &Config) {
        let ground = self.ground(config);
        let _changing = lock(&self.changing);
        let Some(account) = self.account(DEFAULT_USER) else {
            unreachable!("the default user cannot be deleted");
        };
        let mut user = User::clone(&account.user());
        let add: &[u8] = if password.is_empty() {
            b"nopass"
        } else {
            &[b">", password].concat()
        };
        for rule in [b"resetpass", add] {
            let applied = user.apply(rule, ground);
            debug_assert_eq!(applied, Ok(()));
        }
        self.put(DEFAULT_USER, user);
    }

    /// Puts a user in the place of the one with that name, if there is one.
    fn put(&self, name: &[u8], user: User) {
        match self.account(name) {
            Some(account) => account.replace(user),
            None => {
                let mut accounts = self.accounts.write().unwrap_or_else(PoisonError::into_inner);
                accounts.insert(name.into(), Account::new(name, user));
            }
        }
        self.publish();
    }

    /// Puts these users in the place of all there are. The default user becomes as it was at first, if it is not among
    /// them. For callers in exclusive mode, or before any client. Returns those that lost channels.
    pub fn replace_all(&self, users: NewUsers) -> Vec<Arc<Account>> {
        let _changing = lock(&self.changing);
        let mut users = users.0;
        users
            .entry(DEFAULT_USER.into())
            .or_insert_with(|| User::unrestricted(self.catalogue));
        let mut narrowed = Vec::new();
        for account in self.accounts() {
            match users.remove(account.name()) {
                Some(user) => {
                    if user.narrows_channels(&account.user()) {
                        narrowed.push(account.clone());
                    }
                    account.replace(user);
                }
                None => {
                    account.delete();
                    let mut accounts = self.accounts.write().unwrap_or_else(PoisonError::into_inner);
                    accounts.remove(account.name());
                }
            }
        }
        for (name, user) in users {
            self.put(&name, user);
        }
        self.publish();
        narrowed
    }

    /// Lets everybody hear of a change; comes after it.
    fn publish(&self) {
        if let Some(default) = self.account(DEFAULT_USER) {
            let user = default.user();
            self.open
                .store(user.needs_no_password() && user.is_enabled(), Ordering::Release);
        }
        self.version.0.fetch_add(1, Ordering::AcqRel);
    }
}

/// Users that a file defines.
pub struct NewUsers(BTreeMap<Box<[u8]>, User>);
