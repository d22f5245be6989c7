//! What functions about users, permissions and authentication need of the server.

use std::sync::Arc;

use weft_acl::{AclAccount, DenialReason};

use super::Session;
use crate::objects::user::Authentication;

/// A job that needs a session.
pub type SessionJob = Box<dyn FnOnce(&mut dyn Session) + Send>;

/// The reason why permissions of a user were not checked, or are missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotPermitted {
    /// There is no such command.
    NoSuchCommand,
    /// The user lacks a permission.
    Denied(DenialReason),
}

/// What a thread with a session may do with users and clients.
pub trait UserSession {
    /// Returns the user of a client; `None` if the session acts for another client.
    fn user_of_client(&mut self, client_id: u64) -> Option<Arc<AclAccount>>;
    /// Logs a client in. Returns `false` if the session acts for another client.
    fn log_in_client(
        &mut self,
        client_id: u64,
        account: &Arc<AclAccount>,
        authentication: Option<Arc<Authentication>>,
    ) -> bool;
    /// Ends the authentication that a module has given the session's client, before the client gets another one. Calls
    /// the callback of the module.
    fn attached_authentication(&mut self, client_id: u64) -> Option<Arc<Authentication>>;
    /// Takes a client's user away and closes its connection; the client of the session gets its reply before. Returns
    /// `false` if there is no such client.
    fn deauthenticate(&mut self, client_id: u64) -> bool;
    /// Changes the rules of a user.
    ///
    /// # Errors
    /// The text for the module. Nothing has changed then.
    fn change_user(&mut self, account: &Arc<AclAccount>, rules: &[Vec<u8>]) -> Result<(), Vec<u8>>;
    /// Deletes a user that a module has created, and disconnects its clients.
    fn delete_user(&mut self, account: &Arc<AclAccount>);
    /// Adds an entry to the ACL log.
    fn log_denied_access(&mut self, reason: DenialReason, user: &[u8], object: &[u8]);
    /// Hides an argument of the command of the session's client from logs and monitors. Returns `false` if the session
    /// acts for another client, or there is no such argument.
    fn redact_argument(&mut self, client_id: u64, position: usize) -> bool;
}

/// What any thread may do with users.
pub trait UserHost {
    /// Creates a user that is not among those of the server.
    fn create_user(&self, name: &[u8]) -> Arc<AclAccount>;
    /// Returns a user of the server.
    fn user(&self, name: &[u8]) -> Option<Arc<AclAccount>>;
    /// Returns the number of databases.
    fn database_count(&self) -> usize;
    /// Checks that a user may run a command with its keys and channels in a database. Without one, only users that may
    /// use all databases may run commands that need one.
    ///
    /// # Errors
    /// If there is no such command, or the user lacks a permission.
    fn check_permissions(&self, account: &AclAccount, words: &[&[u8]], db: Option<u32>) -> Result<(), NotPermitted>;
    /// Returns the certificate by which a client has authenticated itself, in DER.
    fn certificate(&self, client_id: u64) -> Option<Arc<[u8]>>;
    /// Runs a job soon, with a session on the home worker.
    fn run_with_session_soon(&self, job: SessionJob);
}

#[cfg(test)]
impl UserSession for super::fake::FakeSession {
    fn user_of_client(&mut self, _client_id: u64) -> Option<Arc<AclAccount>> {
        None
    }

    fn log_in_client(
        &mut self,
        _client_id: u64,
        _account: &Arc<AclAccount>,
        _authentication: Option<Arc<Authentication>>,
    ) -> bool {
        false
    }

    fn attached_authentication(&mut self, _client_id: u64) -> Option<Arc<Authentication>> {
        None
    }

    fn deauthenticate(&mut self, _client_id: u64) -> bool {
        false
    }

    fn change_user(&mut self, _account: &Arc<AclAccount>, _rules: &[Vec<u8>]) -> Result<(), Vec<u8>> {
        Ok(())
    }

    fn delete_user(&mut self, _account: &Arc<AclAccount>) {}

    fn log_denied_access(&mut self, _reason: DenialReason, _user: &[u8], _object: &[u8]) {}

    fn redact_argument(&mut self, _client_id: u64, _position: usize) -> bool {
        false
    }
}
