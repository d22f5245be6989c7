//! Users of modules: their rules, what they may do, and the clients that modules authenticate.

use std::sync::Arc;

use weft_acl::{AclAccount, DenialContext, DenialReason, DeniedAccess, LoginAttachment};
use weft_base::{ClientId, DbIndex};
use weft_command_table::registry::Lookup;
use weft_modules::objects::user::Authentication;
use weft_modules::session::users::{NotPermitted, SessionJob, UserHost, UserSession};

use super::{ModuleHost, ModuleSession};
use crate::commands::permission::{self, CommandPermission};
use crate::commands::registry;
use crate::commands::server::acl::disconnect_unauthorized;
use crate::net::client::{BufferFigures, ClientFlags};
use crate::state::Message;

/// A database that exists nowhere: only users that may use all databases may use it.
const NO_DATABASE: DbIndex = DbIndex::new(u32::MAX as usize);

impl ModuleSession<'_, '_> {
    /// Returns `true` if the session acts for this client.
    fn is_for(&self, client_id: u64) -> bool {
        client_id != 0 && self.client.id.get() == client_id
    }

    /// Takes the user of the session's client away. The client gets its reply before its connection is closed.
    fn deauthenticate_own_client(&mut self) {
        self.client.login = self.thread.server.acl.new_login().deauthenticated();
        self.client.flags.set(ClientFlags::CLOSE_AFTER_REPLY, true);
    }
}

impl UserSession for ModuleSession<'_, '_> {
    fn user_of_client(&mut self, client_id: u64) -> Option<Arc<AclAccount>> {
        let has_user = self.is_for(client_id) && !self.client.login.is_superuser();
        has_user.then(|| self.client.login.account().clone())
    }

    fn log_in_client(
        &mut self,
        client_id: u64,
        account: &Arc<AclAccount>,
        authentication: Option<Arc<Authentication>>,
    ) -> bool {
        if !self.is_for(client_id) {
            return false;
        }
        let attachment = authentication.map(|authentication| authentication as LoginAttachment);
        self.client.login = self.thread.server.acl.login_of(account.clone(), attachment);
        self.client.flags.set(ClientFlags::HAS_AUTHENTICATED, true);
        true
    }

    fn attached_authentication(&mut self, client_id: u64) -> Option<Arc<Authentication>> {
        let attachment = self.client.login.attachment().filter(|_| self.is_for(client_id));
        attachment.cloned()?.downcast().ok()
    }

    fn deauthenticate(&mut self, client_id: u64) -> bool {
        if self.is_for(client_id) {
            self.deauthenticate_own_client();
            return true;
        }
        let (server, client) = (&self.thread.server, ClientId::new(client_id));
        // Only in exclusive mode may a client be marked: no command of it runs then.
        let worker = match self.access.is_exclusive() {
            true => server.clients.directory.mark_killed(client),
            false => server.clients.directory.worker_of(client),
        };
        if let Some(worker) = worker {
            server.worker(worker).send(Message::CloseClient(client));
        }
        worker.is_some()
    }

    fn change_user(&mut self, account: &Arc<AclAccount>, rules: &[Vec<u8>]) -> Result<(), Vec<u8>> {
        if !self.access.is_exclusive() {
            return Err(b"A slot-safe command cannot change users".to_vec());
        }
        let server = &self.thread.server;
        if server.acl.change_user(account, rules, &server.config)? {
            disconnect_unauthorized(server, vec![account.clone()], None);
        }
        Ok(())
    }

    fn delete_user(&mut self, account: &Arc<AclAccount>) {
        self.thread.server.acl.delete_detached_user(account);
        if Arc::ptr_eq(account, self.client.login.account()) {
            let before = self.attached_authentication(self.client.id.get());
            self.deauthenticate_own_client();
            // The callback runs when the last holder is gone.
            drop(before);
        }
        disconnect_unauthorized(&self.thread.server, Vec::new(), None);
    }

    fn log_denied_access(&mut self, reason: DenialReason, user: &[u8], object: &[u8]) {
        let (thread_index, now_ms) = (self.thread.thread_index, self.thread.now_ms);
        let denied = DeniedAccess {
            reason,
            context: DenialContext::Module,
            object: object.to_vec(),
            user: user.to_vec(),
        };
        let client = self.client.list_line(now_ms, BufferFigures::default());
        permission::log_denial(&self.thread.server, thread_index, now_ms, denied, client);
    }

    fn redact_argument(&mut self, client_id: u64, position: usize) -> bool {
        let is_own = self.is_for(client_id);
        if is_own {
            self.client.redacted_arguments.push(position as u32);
        }
        is_own
    }
}

impl UserHost for ModuleHost {
    fn create_user(&self, name: &[u8]) -> Arc<AclAccount> {
        self.server.acl.create_detached_user(name, &self.server.config)
    }

    fn user(&self, name: &[u8]) -> Option<Arc<AclAccount>> {
        self.server.acl.account(name)
    }

    fn database_count(&self) -> usize {
        permission::database_count(&self.server)
    }

    fn check_permissions(&self, account: &AclAccount, words: &[&[u8]], db: Option<u32>) -> Result<(), NotPermitted> {
        let Lookup::Found(command) = registry().lookup(words) else {
            return Err(NotPermitted::NoSuchCommand);
        };
        let permission = CommandPermission {
            command,
            args: words,
            db: db.map_or(NO_DATABASE, |db| DbIndex::new(db as usize)),
            databases: permission::database_count(&self.server),
        };
        permission::check_permission(&account.rules(), &permission)
            .map_err(|denial| NotPermitted::Denied(denial.reason))
    }

    fn certificate(&self, client_id: u64) -> Option<Arc<[u8]>> {
        self.server.clients.directory.certificate(ClientId::new(client_id))
    }

    fn run_with_session_soon(&self, job: SessionJob) {
        self.server.run_session_at_home(job);
    }
}
