//! What one peer says, message by message: ids, payloads, the gate, then the method.
//!
//! A broken rule ends the connection; a request that cannot be done is refused and the conversation goes on. The steps are
//! kept out of line, each with a frame of its own: a page of stack that a session's thread has touched once stays with it.

use std::cell::Cell;
use std::sync::Arc;

use crossbeam_channel::{Sender, bounded};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::audit::Fact;
use crate::auth::gate::End;
use crate::ids::SessionId;
use crate::registry::report::Report;
use crate::route::directory::Session;
use crate::route::lane::{Answer, Lane, NeverIssued};
use crate::route::peer::{Peer, Place};
use crate::wire::codes::{Code, Delivery, ErrorObject, Refusal};
use crate::wire::events::GoneReason;
use crate::wire::message::{self, Header};
use crate::wire::methods::{self, Method};
use crate::wire::text::escaped_lines;
use crate::wire::transcript::{Hash, sha256};

use super::hub::Hub;
use super::{approvals, caller, events, lease, operator, producer};

/// Why a conversation is over.
pub enum Over {
    /// The peer has said `closing`.
    Closed,
    /// The peer broke a rule: this one.
    Broken(&'static str),
}

/// A request that passed the gate.
pub struct Request<'a> {
    /// Its id.
    pub id: u64,
    /// Its parameters, not yet read.
    pub params: Option<&'a RawValue>,
    /// Its payload.
    pub payload: Option<&'a [u8]>,
    plaintext: &'a [u8],
}

impl Request<'_> {
    /// Its digest, where a receipt was asked for.
    pub fn receipt(&self, asked: bool) -> Option<Hash> {
        asked.then(|| sha256(&[self.plaintext]))
    }
}

/// What a method came to: answered already (or somebody will), or refused.
pub type Done = Result<(), Refusal>;

/// One peer's side of things.
pub struct Conversation {
    /// The daemon.
    pub hub: Arc<Hub>,
    /// The peer.
    pub peer: Arc<Peer>,
    /// What is spoken.
    pub protocol: u16,
    /// The producer's session.
    pub owned: Option<Owned>,
    heard: u64,
}

/// A session that this connection owns. Dropped, it is gone: its commands end and the registry is told.
pub struct Owned {
    hub: Arc<Hub>,
    peer: Arc<Peer>,
    /// The session.
    pub session: Arc<Session>,
    is_over: Cell<bool>,
}

impl Owned {
    /// From the registry's answer.
    pub fn new(hub: &Arc<Hub>, peer: &Arc<Peer>, session: Arc<Session>) -> Self {
        Self { hub: Arc::clone(hub), peer: Arc::clone(peer), session, is_over: Cell::new(false) }
    }

    /// Ends the session, once; answers to its commands may still come.
    pub fn end(&self, reason: GoneReason) {
        self.end_and_tell(reason, None);
    }

    /// The same; afterwards nobody finds it any more.
    pub fn unregister(&self) {
        let (tell, removed) = bounded(0);
        self.end_and_tell(GoneReason::Unregistered, Some(tell));
        // Nothing is ever said: that the registry has dropped its end is all.
        let _dropped = removed.recv();
    }

    fn end_and_tell(&self, reason: GoneReason, removed: Option<Sender<()>>) {
        if self.is_over.replace(true) {
            return;
        }
        self.session.lane.end(Code::SessionLost);
        self.hub.report(Report::Gone { session: self.session.id, connection: self.peer.id(), reason, removed });
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.end(match self.peer.authority().credential().gate.end() {
            None => GoneReason::Lost,
            Some(End::Revoked) => GoneReason::Revoked,
            Some(End::Expired) => GoneReason::Expired,
        });
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Cancel {
    id: u64,
}

impl Conversation {
    /// At the welcome.
    pub fn new(hub: &Arc<Hub>, peer: &Arc<Peer>, protocol: u16) -> Self {
        let (hub, peer) = (Arc::clone(hub), Arc::clone(peer));
        Self { hub, peer, protocol, owned: None, heard: 0 }
    }

    /// One frame's plaintext.
    pub fn hear(&mut self, plaintext: &[u8]) -> Result<(), Over> {
        let message = message::read(plaintext).map_err(Over::Broken)?;
        if let Some(owned) = &self.owned {
            owned.session.seen();
        }
        match message.header {
            Header::Request { id, method, params } => {
                if id != self.heard + 1 {
                    return Err(Over::Broken("a request's id is out of order"));
                }
                self.heard = id;
                let request = Request { id, params, payload: message.payload, plaintext };
                self.request(&method, request)
            }
            Header::Notification { .. } if message.payload.is_some() => {
                Err(Over::Broken("a notification carries a payload"))
            }
            Header::Notification { method, params } => self.told(&method, params),
            // What else a producer says in its result is not for us.
            Header::Answer { id, .. } => self.answered(id, Answer::Done(message.payload)),
            Header::Failure { .. } if message.payload.is_some() => Err(Over::Broken("a failure carries a payload")),
            Header::Failure { id, error } => self.answered(id, Answer::Failed(failure_text(&error))),
        }
    }

    #[inline(never)]
    fn request(&mut self, name: &str, request: Request<'_>) -> Result<(), Over> {
        let (id, role) = (request.id, self.peer.authority().role());
        let method = Method::from_name(name).filter(|method| method.is_for(role) && self.speaks(*method));
        let done = match method {
            _ if self.hub.is_closing() => Err(Code::ShuttingDown.into()),
            None if request.payload.is_some() => return Err(Over::Broken("an unknown method carries a payload")),
            None => Err(Code::UnknownMethod.into()),
            Some(method) if request.payload.is_some() && !method.takes_payload() => {
                return Err(Over::Broken("a method without a payload carries one"));
            }
            Some(method) => self.admitted(method, request),
        };
        if let Err(refusal) = done {
            self.refuse(id, name, method, refusal);
        }
        Ok(())
    }

    #[inline(never)]
    fn refuse(&self, id: u64, name: &str, method: Option<Method>, mut refusal: Refusal) {
        self.audit_denial(name, refusal.code);
        if method == Some(Method::SessionSend) {
            // Whatever is refused here has not come near a lane.
            refusal.delivery = Some(Delivery::NotDelivered);
        }
        let _gone = self.peer.refuse(id, &refusal);
    }

    /// What this peer may not do, methods of other roles with it. Of a method that there is not nothing is told.
    fn audit_denial(&self, name: &str, code: Code) {
        let is_denial = matches!(
            code,
            Code::Denied
                | Code::UnknownMethod
                | Code::Revoked
                | Code::Expired
                | Code::SessionOwned
                | Code::LastOperator
        );
        if let Some(method) = Method::from_name(name).filter(|_| is_denial) {
            let (connection, credential) = (self.peer.id(), self.peer.authority().credential().id);
            self.hub.audit.record(Fact::Denied { connection, credential, method: method.name(), code: code.word() });
        }
    }

    fn speaks(&self, method: Method) -> bool {
        self.protocol > 0 || matches!(method, Method::DaemonStatus | Method::DaemonDrain | Method::DaemonStop)
    }

    /// The permit is held until what the method does is published, and given up before it waits for anybody. No method is
    /// inlined here: a heartbeat must not touch as much stack as a registration needs.
    #[inline(never)]
    fn admitted(&mut self, method: Method, request: Request<'_>) -> Done {
        let peer = Arc::clone(&self.peer);
        let permit = peer.authority().admit(method).map_err(|code| match code {
            Code::Denied => Refusal::from(code).message(format!("this credential was not granted {}", method.name())),
            other => other.into(),
        })?;
        match method {
            Method::SessionRegister => producer::register(self, permit, request),
            Method::SessionUpdate => producer::update(self, permit, request),
            Method::SessionHeartbeat => producer::heartbeat(self, permit, &request),
            Method::SessionStageKey => lease::stage_key(self, permit, &request),
            Method::SessionConfirmKey => lease::confirm_key(self, permit, &request),
            Method::SessionUnregister => producer::unregister(self, permit, &request),
            Method::SessionList => caller::list(self, permit, &request),
            Method::SessionGet => caller::get(self, permit, &request),
            Method::SessionSend => caller::send(self, permit, &request),
            Method::SessionWait => caller::wait(self, permit, &request),
            Method::ApprovalRequest => approvals::request(self, permit, &request),
            Method::ApprovalList => approvals::list(self, permit, &request),
            Method::ApprovalWithdraw => approvals::withdraw(self, permit, &request),
            Method::ApprovalDecide => approvals::decide(self, permit, &request),
            Method::EventsSubscribe => events::subscribe(self, permit, &request),
            Method::EventsUnsubscribe => events::unsubscribe(self, permit, &request),
            Method::DaemonStatus => operator::status(self, permit, &request),
            Method::CredentialList => operator::credential_list(self, permit, &request),
            Method::CredentialEnroll => operator::credential_enroll(self, permit, &request),
            Method::CredentialRevoke => operator::credential_revoke(self, permit, &request),
            Method::CredentialRenew => operator::credential_renew(self, permit, &request),
            Method::AuditHead => operator::audit_head(self, permit, &request),
            Method::DaemonDrain => operator::drain(self, permit, &request),
            Method::DaemonStop => operator::stop(self, permit, &request),
        }
    }

    #[inline(never)]
    fn told(&mut self, name: &str, params: Option<&RawValue>) -> Result<(), Over> {
        match name {
            methods::CLOSING => Err(Over::Closed),
            methods::CANCEL => {
                let permit =
                    self.peer.authority().admit_delivery().map_err(|_| Over::Broken("no longer let through"))?;
                let Ok(Cancel { id }) = message::params(params) else {
                    return Err(Over::Broken("$/cancel takes an id"));
                };
                match self.peer.place(id) {
                    Some(Place::Lane(lane)) => lane.cancel(self.peer.id(), id),
                    Some(Place::Registry) => {
                        // The registry may be behind, and a permit is never held across a wait.
                        drop(permit);
                        self.hub.report(Report::Cancel { connection: self.peer.id(), request: id });
                    }
                    // Answered meanwhile: the two crossed.
                    None => {}
                }
                Ok(())
            }
            // A newer peer may tell more than we know.
            _ => Ok(()),
        }
    }

    #[inline(never)]
    fn answered(&self, id: u64, answer: Answer<'_>) -> Result<(), Over> {
        // Held until the caller has the answer: what a revoked producer says counts for nothing.
        let _permit = self.peer.authority().admit_delivery().map_err(|_| Over::Broken("no longer let through"))?;
        let lane: Option<&Arc<Lane>> = self.owned.as_ref().map(|owned| &owned.session.lane);
        let answered = lane.map_or(Err(NeverIssued), |lane| lane.answered(id, answer));
        answered.map_err(|NeverIssued| Over::Broken("an answer to a request that was never made"))
    }

    /// The producer's session, if it has one that has not ended.
    pub fn session(&self) -> Result<&Arc<Session>, Refusal> {
        match &self.owned {
            Some(owned) if !owned.session.lane.has_ended() => Ok(&owned.session),
            _ => Err(Code::NotRegistered.into()),
        }
    }

    /// Whether no grant narrows what this peer sees.
    pub fn sees_all(&self) -> bool {
        self.peer.authority().credential().grant.selects_all()
    }
}

/// The text of a producer's failure, bounded and without control characters.
#[inline(never)]
fn failure_text(error: &ErrorObject) -> String {
    let mut text = escaped_lines(&error.message);
    let mut end = text.len().min(crate::limits::FAILURE_MAX_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}

/// A session id that the producer chose, or a new one.
pub fn session_id(chosen: Option<SessionId>) -> SessionId {
    chosen.unwrap_or_else(SessionId::random)
}
