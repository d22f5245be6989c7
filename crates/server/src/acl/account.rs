//! A user as clients hold it: the name, what is known of it at the moment, and whether it still exists.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use super::catalogue::Catalogue;
use super::user::User;
use super::{Acl, DEFAULT_USER};

/// A user with its name. It stays the same while its rules change.
#[derive(Debug)]
pub struct Account {
    name: Box<[u8]>,
    user: RwLock<Arc<User>>,
    deleted: AtomicBool,
}

impl Account {
    pub(super) fn new(name: &[u8], user: User) -> Arc<Account> {
        Arc::new(Account {
            name: name.into(),
            user: RwLock::new(Arc::new(user)),
            deleted: AtomicBool::new(false),
        })
    }

    /// The name.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// What is known of it at the moment.
    pub fn user(&self) -> Arc<User> {
        self.user.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn replace(&self, user: User) {
        *self.user.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(user);
    }

    pub(super) fn delete(&self) {
        self.deleted.store(true, Ordering::Release);
    }

    /// Whether it is gone: its clients are to be disconnected.
    pub fn is_deleted(&self) -> bool {
        self.deleted.load(Ordering::Acquire)
    }
}

/// A client's side: who it is, and what it may do, as far as it has heard.
#[derive(Clone, Debug)]
pub struct Login {
    account: Arc<Account>,
    user: Arc<User>,
    /// The version of the users that `user` shows.
    seen: u64,
    /// The same if everything is allowed, 0 if not.
    free_at: u64,
    authenticated: bool,
}

impl Login {
    /// A client that the server has not met: nobody in particular, and not logged in.
    pub fn stranger() -> Login {
        static NOBODY: OnceLock<(Arc<Account>, Arc<User>)> = OnceLock::new();
        let (account, user) = NOBODY.get_or_init(|| {
            let account = Account::new(
                DEFAULT_USER,
                User::unrestricted(&Catalogue::new(Vec::new(), Vec::new())),
            );
            let user = account.user();
            (account, user)
        });
        Login {
            account: account.clone(),
            user: user.clone(),
            seen: 0,
            free_at: 0,
            authenticated: false,
        }
    }

    /// Nobody in particular, who may do everything as long as no user changes: for commands that are repeated.
    pub fn repeating(acl: &Acl) -> Login {
        Login {
            free_at: acl.version(),
            authenticated: true,
            ..Login::stranger()
        }
    }

    pub(super) fn new(account: Arc<Account>, acl: &Acl, authenticated: bool) -> Login {
        let mut login = Login {
            user: account.user(),
            account,
            seen: 0,
            free_at: 0,
            authenticated,
        };
        login.refresh(acl);
        login
    }

    /// Whether everything is allowed, as far as the users of `version` are concerned: all that most clients are asked.
    #[inline]
    pub fn is_free(&self, version: u64) -> bool {
        self.free_at == version
    }

    /// Whether one is logged in.
    #[inline]
    pub fn is_authenticated(&self) -> bool {
        self.authenticated
    }

    /// The name of the user.
    pub fn name(&self) -> &[u8] {
        self.account.name()
    }

    /// The user.
    pub fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// What is allowed, as of the last [`Login::refresh`].
    pub fn user(&self) -> &Arc<User> {
        &self.user
    }

    /// The same user, not logged in.
    pub fn logged_out(mut self) -> Login {
        self.authenticated = false;
        self.free_at = 0;
        self
    }

    /// Hears of changes; whether the user still exists.
    pub fn refresh(&mut self, acl: &Acl) -> bool {
        let version = acl.version();
        if self.seen != version {
            // The version first: what is read behind it is as new, or newer, and then heard of once more.
            self.user = self.account.user();
            self.seen = version;
            let free = self.authenticated && self.user.may_do_everything();
            self.free_at = if free { version } else { 0 };
        }
        !self.account.is_deleted()
    }
}
