//! An ACL user as held by clients: its name, its current rules, and a flag for its deletion.

use std::any::Any;
use std::sync::Arc;
use weft_os::sync::OnceLock;

use super::catalogue::CommandCatalogue;
use super::user::UserRules;
use super::{Acl, DEFAULT_USER};

use weft_os::atomic::{AtomicBool, Ordering};
use weft_os::sync::RwLock;

/// A user with its name. The account stays the same while its rules change.
#[derive(Debug)]
pub struct AclAccount {
    name: Box<[u8]>,
    user: RwLock<Arc<UserRules>>,
    deleted: AtomicBool,
}

impl AclAccount {
    pub(super) fn new(name: &[u8], user: UserRules) -> Arc<AclAccount> {
        Arc::new(AclAccount {
            name: name.into(),
            user: RwLock::new(Arc::new(user)),
            deleted: AtomicBool::new(false),
        })
    }

    /// Returns the name.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Returns the current rules.
    pub fn rules(&self) -> Arc<UserRules> {
        self.user.read().clone()
    }

    pub(super) fn replace(&self, user: UserRules) {
        *self.user.write() = Arc::new(user);
    }

    pub(super) fn delete(&self) {
        self.deleted.store(true, Ordering::Release);
    }

    /// Returns `true` if the user has been deleted. Its clients have to be disconnected then.
    pub fn is_deleted(&self) -> bool {
        self.deleted.load(Ordering::Acquire)
    }
}

/// What a login keeps alive: it is dropped when the client logs in as another user, or disconnects.
pub type LoginAttachment = Arc<dyn Any + Send + Sync>;

/// The authentication state of a client: its user, and the rules as of the last refresh.
#[derive(Clone, Debug)]
pub struct Login {
    account: Arc<AclAccount>,
    user: Arc<UserRules>,
    /// The version of the users that `user` reflects.
    seen_version: u64,
    /// The same version if everything is allowed, 0 otherwise.
    unrestricted_version: u64,
    authenticated: bool,
    attachment: Option<LoginAttachment>,
}

impl Login {
    /// Returns a placeholder: an unauthenticated login that belongs to no ACL.
    pub fn unauthenticated() -> Login {
        static NOBODY: OnceLock<(Arc<AclAccount>, Arc<UserRules>)> = OnceLock::new();
        let (account, user) = NOBODY.get_or_init(|| {
            let account = AclAccount::new(
                DEFAULT_USER,
                UserRules::unrestricted(&CommandCatalogue::new(Vec::new(), Vec::new())),
            );
            let user = account.rules();
            (account, user)
        });
        Login {
            account: account.clone(),
            user: user.clone(),
            seen_version: 0,
            unrestricted_version: 0,
            authenticated: false,
            attachment: None,
        }
    }

    /// Returns the same login with another attachment.
    #[must_use]
    pub fn with_attachment(mut self, attachment: Option<LoginAttachment>) -> Login {
        self.attachment = attachment;
        self
    }

    /// Returns the attachment.
    pub fn attachment(&self) -> Option<&LoginAttachment> {
        self.attachment.as_ref()
    }

    /// Returns a login that may execute everything as long as no user changes, for replicated or loaded commands.
    pub fn for_replication(acl: &Acl) -> Login {
        Login {
            unrestricted_version: acl.version(),
            authenticated: true,
            ..Login::unauthenticated()
        }
    }

    pub(super) fn new(account: Arc<AclAccount>, acl: &Acl, authenticated: bool) -> Login {
        let mut login = Login {
            user: account.rules(),
            account,
            seen_version: 0,
            unrestricted_version: 0,
            authenticated,
            attachment: None,
        };
        login.refresh(acl);
        login
    }

    /// Returns `true` if everything is allowed with the users of `version`. This is the only check for most clients.
    #[inline]
    pub fn is_unrestricted(&self, version: u64) -> bool {
        self.unrestricted_version == version
    }

    /// Returns `true` if the client is authenticated.
    #[inline]
    pub fn is_authenticated(&self) -> bool {
        self.authenticated
    }

    /// Returns `true` if the client is above all users, and so has none.
    pub fn is_superuser(&self) -> bool {
        self.name() == crate::SUPERUSER
    }

    /// Returns the name of the user.
    pub fn name(&self) -> &[u8] {
        self.account.name()
    }

    /// Returns the account of the user.
    pub fn account(&self) -> &Arc<AclAccount> {
        &self.account
    }

    /// Returns the rules as of the last [`Login::refresh`].
    pub fn rules(&self) -> &Arc<UserRules> {
        &self.user
    }

    /// Makes this login the same as another one, but without its attachment. What both share already stays as it is.
    pub fn share(&mut self, other: &Login) {
        if !Arc::ptr_eq(&self.account, &other.account) {
            self.account = other.account.clone();
        }
        if !Arc::ptr_eq(&self.user, &other.user) {
            self.user = other.user.clone();
        }
        self.seen_version = other.seen_version;
        self.unrestricted_version = other.unrestricted_version;
        self.authenticated = other.authenticated;
        self.attachment = None;
    }

    /// Returns the same login, not authenticated.
    pub fn deauthenticated(mut self) -> Login {
        self.authenticated = false;
        self.unrestricted_version = 0;
        self
    }

    /// Applies changes of the user. Returns `true` if the user still exists.
    pub fn refresh(&mut self, acl: &Acl) -> bool {
        let version = acl.version();
        if self.seen_version != version {
            // The version is read first. Rules read after it are as new or newer; newer ones are read again at the next
            // refresh.
            self.user = self.account.rules();
            self.seen_version = version;
            let free = self.authenticated && self.user.is_unrestricted();
            self.unrestricted_version = if free { version } else { 0 };
        }
        !self.account.is_deleted()
    }
}
