//! Access control lists: the users and their permissions.
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
//! 1. Each change creates a new `User`, stores it in its account, and then increments the version. A client whose login
//!    has not seen that version takes the new `User` before its next command. So the path of a command needs no lock,
//!    and for a client that may do everything it compares two numbers (`Login::free_at` and the version).
//! 2. The permissions of a user change in *exclusive mode* (ACL SETUSER, DELUSER, LOAD). A worker admits a command and
//!    runs it within the same passage of the gate. So no command admitted by the old rules runs after the change, and
//!    none is admitted by them once the change has been replied to. A command that left its worker before, because it
//!    is long or waits for keys, has begun under the old rules. A command that waited is checked again when it is
//!    served.
//! 3. The password of the default user may change at any time (`requirepass`). It affects only logins, which read the
//!    account itself.
//! 4. A deleted account is marked as such, and stays with its clients until the threads that have their connections
//!    have closed them. These threads are notified by message: the workers, and the threads that serve replicas and
//!    migrate slots. A client that sends a command before that is closed then.
//! 5. Rules refer to the commands of Valkey, even if they do not exist here, so that Valkey's files can be read.
//!
//! The permissions that a command requires ([`AccessRequest`]) are supplied by the caller. This module knows only the
//! names of commands.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::Arc;

use weft_config::{Config, id};
use weft_os::atomic::{AtomicBool, AtomicU64, Ordering};
use weft_os::sync::{Mutex, RwLock};

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

pub use account::{AclAccount, Login, LoginAttachment};
pub use catalogue::{CatalogueEntry, Category, CommandCatalogue, CommandId};
pub use check::{AccessRequest, ChannelUse, Denial, DenialReason, KeyAccess};
pub use file::{ADVICE_FOR_RULES, FileUsers, InvalidUserDirective, LoadUsersError, check_declarations, parse_file};
pub use log::{AclLog, AclLogEntry as LogEntry, DenialContext, DeniedAccess};
pub use password::random_digits;
pub use rules::{RuleError, UnclosedSelector, has_blanks, merge_selectors};
pub use selector::{CommandRule, Selector};
pub use user::{SelectorDefaults, UserRules};

/// The user of clients that have not authenticated as another one.
pub const DEFAULT_USER: &[u8] = b"default";
/// The displayed name of clients above all users. No user can have this name.
const SUPERUSER: &[u8] = b"(superuser)";

/// The accounts by name.
type Accounts = BTreeMap<Box<[u8]>, Arc<AclAccount>>;

/// The version, which every command reads. Aligned to its own cache line, away from data that other threads write.
#[repr(align(128))]
struct AlignedVersion(AtomicU64);

/// All users.
pub struct Acl {
    version: AlignedVersion,
    accounts: RwLock<Accounts>,
    /// Set if clients are authenticated as the default user without a password.
    default_user_is_open: AtomicBool,
    /// Held during changes, so that users are changed one after another.
    change_lock: Mutex<()>,
    /// How often the users were written to the file or replaced by those in it. Locked meanwhile. Who has locked it
    /// waits for the disk only.
    file_changes: Mutex<u64>,
    /// The denied accesses.
    pub log: Mutex<AclLog>,
    /// The commands that rules may name. Modules change them.
    catalogue: RwLock<Arc<CommandCatalogue>>,
}

impl Acl {
    /// Creates an ACL with only the default user, which may do everything.
    pub fn new(catalogue: Arc<CommandCatalogue>) -> Acl {
        let default = AclAccount::new(DEFAULT_USER, UserRules::unrestricted(&catalogue));
        Acl {
            version: AlignedVersion(AtomicU64::new(1)),
            accounts: RwLock::new(BTreeMap::from([(DEFAULT_USER.into(), default)])),
            default_user_is_open: AtomicBool::new(true),
            change_lock: Mutex::default(),
            file_changes: Mutex::default(),
            log: Mutex::default(),
            catalogue: RwLock::new(catalogue),
        }
    }

    /// Returns the version, which increases with each change and is never 0.
    #[inline]
    pub fn version(&self) -> u64 {
        self.version.0.load(Ordering::Acquire)
    }

    /// Returns `true` if clients are authenticated as the default user without a password.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.default_user_is_open.load(Ordering::Acquire)
    }

    /// Returns `true` if the default user accepts any password.
    pub fn default_user_needs_no_password(&self) -> bool {
        self.account(DEFAULT_USER)
            .is_some_and(|account| account.rules().needs_no_password())
    }

    /// Returns the commands that rules may name.
    pub fn catalogue(&self) -> Arc<CommandCatalogue> {
        self.catalogue.read().clone()
    }

    // ---- queries ----------------------------------------------------------------------------------------------------
    /// Returns the account with this name.
    pub fn account(&self, name: &[u8]) -> Option<Arc<AclAccount>> {
        let accounts = self.accounts.read();
        accounts.get(name).cloned()
    }

    /// Returns all accounts, ordered by name.
    pub fn accounts(&self) -> Vec<Arc<AclAccount>> {
        let accounts = self.accounts.read();
        accounts.values().cloned().collect()
    }

    /// Returns all users in the form of configuration files after the word `user`: the name, then the rules.
    pub fn describe_users(&self) -> Vec<Vec<u8>> {
        let describe = |account: Arc<AclAccount>| [account.name(), b" ", &*account.rules().describe()].concat();
        self.accounts().into_iter().map(describe).collect()
    }

    /// Returns the login of a new client: the default user, authenticated if no password is needed.
    pub fn new_login(&self) -> Login {
        let account = self.account(DEFAULT_USER).unwrap_or_else(|| {
            unreachable!("the default user cannot be deleted");
        });
        Login::new(account, self, self.is_open())
    }

    /// Returns the login of a client above all users: the primary that this server follows.
    pub fn superuser_login(&self) -> Login {
        let account = AclAccount::new(SUPERUSER, UserRules::unrestricted(&self.catalogue()));
        Login::new(account, self, true)
    }

    /// Makes a login one of a client above all users. One that is up to date stays as it is.
    pub fn make_superuser(&self, login: &mut Login) {
        if !login.is_superuser() || !login.is_unrestricted(self.version()) {
            *login = self.superuser_login();
        }
    }

    /// Returns the login for this name and password, if they are correct.
    pub fn log_in(&self, name: &[u8], password: &[u8]) -> Option<Login> {
        let account = self.account(name)?;
        let accepted = account.rules().accepts_password(password);
        accepted.then(|| Login::new(account, self, true))
    }

    /// Returns the login of a client authenticated by other means, if the user exists and is enabled.
    pub fn log_in_without_password(&self, name: &[u8]) -> Option<Login> {
        let account = self.account(name)?;
        account.rules().is_enabled().then(|| Login::new(account, self, true))
    }

    /// Returns the login of a client that a module authenticates. `attachment` lives as long as the client has this
    /// login.
    pub fn login_of(&self, account: Arc<AclAccount>, attachment: Option<LoginAttachment>) -> Login {
        Login::new(account, self, true).with_attachment(attachment)
    }

    // ---- changes ----------------------------------------------------------------------------------------------------
    /// Creates a user that is not among those of the server: only its holders can use it. It may do nothing yet.
    pub fn create_detached_user(&self, name: &[u8], config: &Config) -> Arc<AclAccount> {
        AclAccount::new(name, UserRules::new(selector_defaults(&self.catalogue(), config)))
    }

    /// Changes a user, which may be a detached one. Either all rules are applied or none. The caller must hold
    /// exclusive mode. Returns `true` if the user has lost channels.
    ///
    /// # Errors
    /// An error text without its code.
    pub fn change_user<Rule: AsRef<[u8]>>(
        &self,
        account: &AclAccount,
        rules: &[Rule],
        config: &Config,
    ) -> Result<bool, Vec<u8>> {
        let catalogue = self.catalogue();
        let _changing = self.change_lock.lock();
        let old = account.rules();
        let mut user = UserRules::clone(&old);
        user.apply_all(rules, selector_defaults(&catalogue, config))?;
        let is_narrowed = user.loses_channels_of(&old);
        account.replace(user);
        self.increment_version();
        Ok(is_narrowed)
    }

    /// Deletes a detached user. The caller disconnects its clients.
    pub fn delete_detached_user(&self, account: &AclAccount) {
        account.delete();
        self.increment_version();
    }

    /// Creates or changes a user. Either all rules are applied or none. The caller must hold exclusive mode, or there
    /// must be no clients yet. Returns the user if it has lost channels.
    ///
    /// # Errors
    /// An error text without its code.
    pub fn set_user<Rule: AsRef<[u8]>>(
        &self,
        name: &[u8],
        rules: &[Rule],
        config: &Config,
    ) -> Result<Option<Arc<AclAccount>>, Vec<u8>> {
        let catalogue = self.catalogue();
        let ground = selector_defaults(&catalogue, config);
        let _changing = self.change_lock.lock();
        let account = self.account(name);
        let mut user = match &account {
            Some(account) => UserRules::clone(&account.rules()),
            None => UserRules::new(ground),
        };
        user.apply_all(rules, ground)?;
        let narrowed = account.filter(|account| user.loses_channels_of(&account.rules()));
        self.set_rules(name, user);
        Ok(narrowed)
    }

    /// Deletes users, except the default user. Returns those that existed. The caller must hold exclusive mode.
    pub fn delete_users<'n>(&self, names: impl Iterator<Item = &'n [u8]>) -> Vec<Arc<AclAccount>> {
        let _changing = self.change_lock.lock();
        let mut deleted = Vec::new();
        for name in names.filter(|name| *name != DEFAULT_USER) {
            let mut accounts = self.accounts.write();
            deleted.extend(accounts.remove(name));
        }
        deleted.iter().for_each(|account: &Arc<AclAccount>| account.delete());
        self.increment_version();
        deleted
    }

    /// Makes `password` the only password of the default user (`requirepass`). If it is empty, any password is
    /// accepted.
    pub fn set_default_password(&self, password: &[u8], config: &Config) {
        let catalogue = self.catalogue();
        let ground = selector_defaults(&catalogue, config);
        let _changing = self.change_lock.lock();
        let Some(account) = self.account(DEFAULT_USER) else {
            unreachable!("the default user cannot be deleted");
        };
        let mut user = UserRules::clone(&account.rules());
        let add: &[u8] = if password.is_empty() {
            b"nopass"
        } else {
            &[b">", password].concat()
        };
        for rule in [b"resetpass", add] {
            let applied = user.apply(rule, ground);
            debug_assert_eq!(applied, Ok(()));
        }
        self.set_rules(DEFAULT_USER, user);
    }

    /// Creates the user, or replaces the rules of an existing one.
    fn set_rules(&self, name: &[u8], user: UserRules) {
        match self.account(name) {
            Some(account) => account.replace(user),
            None => {
                let mut accounts = self.accounts.write();
                accounts.insert(name.into(), AclAccount::new(name, user));
            }
        }
        self.increment_version();
    }

    /// Replaces all users. If the default user is not among them, it becomes unrestricted. The caller must hold
    /// exclusive mode, or there must be no clients yet. Returns the accounts that have lost channels.
    pub fn replace_all(&self, users: NewUsers) -> Vec<Arc<AclAccount>> {
        let _changing = self.change_lock.lock();
        let mut users = users.0;
        users
            .entry(DEFAULT_USER.into())
            .or_insert_with(|| UserRules::unrestricted(&self.catalogue()));
        let mut narrowed = Vec::new();
        for account in self.accounts() {
            match users.remove(account.name()) {
                Some(user) => {
                    if user.loses_channels_of(&account.rules()) {
                        narrowed.push(account.clone());
                    }
                    account.replace(user);
                }
                None => {
                    account.delete();
                    let mut accounts = self.accounts.write();
                    accounts.remove(account.name());
                }
            }
        }
        for (name, user) in users {
            self.set_rules(&name, user);
        }
        self.increment_version();
        narrowed
    }

    /// Replaces the commands and categories that rules may name, and applies the rules of all users again. The caller
    /// must hold exclusive mode, or there must be no clients yet.
    pub fn replace_catalogue(&self, catalogue: Arc<CommandCatalogue>) {
        let _changing = self.change_lock.lock();
        *self.catalogue.write() = catalogue.clone();
        for account in self.accounts() {
            let mut user = UserRules::clone(&account.rules());
            user.apply_commands_again(&catalogue);
            account.replace(user);
        }
        self.increment_version();
    }

    /// Publishes a change. Called after it.
    fn increment_version(&self) {
        if let Some(default) = self.account(DEFAULT_USER) {
            let user = default.rules();
            self.default_user_is_open
                .store(user.needs_no_password() && user.is_enabled(), Ordering::Release);
        }
        self.version.0.fetch_add(1, Ordering::AcqRel);
    }
}

/// Returns the defaults of new selectors.
fn selector_defaults<'c>(catalogue: &'c CommandCatalogue, config: &Config) -> SelectorDefaults<'c> {
    SelectorDefaults {
        catalogue,
        all_channels: config.choice(id::ACL_PUBSUB_DEFAULT) == "allchannels",
    }
}

/// The users that a file defines.
pub struct NewUsers(BTreeMap<Box<[u8]>, UserRules>);
