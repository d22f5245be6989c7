//! Handles clients when slots leave this node: those that wait for keys are redirected, and those that are subscribed
//! to shard channels are unsubscribed.

use std::sync::Arc;

use weft_base::ClientId;
use weft_resp::Reply;

use super::Worker;
use super::waits::ClientWait;
use crate::commands::context::build_reply;
use crate::commands::error::CommandError;
use crate::dispatch::redirect::requester_info;
use crate::net::client::ClientFlags;
use crate::notify::messages::subscriber;
use crate::notify::pubsub::SubscriptionKind;
use weft_base::slots::cluster_slot;
use weft_cluster::settings::EndpointType;
use weft_cluster::view::{ClusterView, SlotOwner};

impl Worker {
    /// Handles slots that have left, or a cluster that is down.
    pub(crate) fn handle_departed_slots(&mut self) {
        let Some(cluster) = &self.server().cluster else {
            return;
        };
        let view = cluster.view();
        for client in self.waits.waiting_clients() {
            self.redirect_blocked_client(client, &view);
        }
        for token in 0..self.clients.slots.len() {
            self.unsubscribe_departed_channels(token, &view);
        }
    }

    pub(crate) fn redirect_blocked_client(&mut self, client: ClientId, view: &ClusterView) {
        let Some(waiter) = self.waits.client_wait(client).and_then(ClientWait::waiter) else {
            return;
        };
        let token = self.clients.by_id.get(&client);
        let Some(Some(connection)) = token.and_then(|token| self.clients.slots.get(*token)) else {
            return;
        };
        let endpoint = EndpointType::configured(&self.thread.server.config);
        let reason = if view.is_up {
            waiter.keys.iter().find_map(|key| {
                let stays = view.is_mine(key.slot) || view.is_importing(key.slot);
                let reads = waiter.outlasts_demotion() && view.is_of_my_shard(key.slot);
                (!stays && !reads).then(|| match view.owner(key.slot) {
                    SlotOwner::Other(place) => {
                        let endpoint_text = place.text(endpoint, requester_info(&connection.client));
                        CommandError::from_text(format!("MOVED {} {endpoint_text}", key.slot))
                    }
                    SlotOwner::Unassigned | SlotOwner::Myself => {
                        CommandError::constant("CLUSTERDOWN Hash slot not served")
                    }
                })
            })
        } else {
            Some(CommandError::constant("CLUSTERDOWN The cluster is down"))
        };
        if let Some(reason) = reason {
            self.reply_error_to_waiter(client, &reason);
        }
    }

    fn unsubscribe_departed_channels(&mut self, token: usize, view: &ClusterView) {
        let server = self.thread.server.clone();
        let Some(Some(connection)) = self.clients.slots.get_mut(token) else {
            return;
        };
        let client = &mut connection.client;
        let who = subscriber(client);
        let Some(subscriptions) = client.subscriptions.as_deref_mut() else {
            return;
        };
        let lost = |name: &&Arc<[u8]>| !view.is_of_my_shard(cluster_slot(name));
        let lost: Vec<Arc<[u8]>> = subscriptions.shard_channels.iter().filter(lost).cloned().collect();
        let mut told = Vec::new();
        for name in &lost {
            server
                .clients
                .pubsub
                .unsubscribe(subscriptions, SubscriptionKind::ShardChannel, name, who);
            let left = subscriptions.shard_channels.len();
            told.extend(build_reply(client.protocol, |reply: &mut Reply<'_>| {
                reply.push(3);
                reply.bulk(b"sunsubscribe");
                reply.bulk(name);
                reply.integer(left as i64);
            }));
        }
        if subscriptions.is_empty() {
            client.subscriptions = None;
            client.flags.set(ClientFlags::PUBSUB, false);
        }
        let id = client.id;
        if !told.is_empty() {
            self.clients.append_bytes(id, &told);
        }
    }
}
