//! Questions to a person: asked, shown, decided once.
//!
//! Owns every open question and the one step in which it ends: its asker is answered, the feed told, the outcome
//! remembered. What is refused changes nothing. Only the registry's thread is here.

mod table;

use std::sync::Arc;
use std::time::Instant;

use crossbeam_channel::Sender;
use serde::Serialize;

use crate::account::Charge;
use crate::audit::{Audit, Fact, sized};
use crate::ids::{ApprovalId, ConnectionId, Generation, SessionId};
use crate::route::feed::{Audience, Feed};
use crate::route::outbound::Origin;
use crate::route::peer::Peer;
use crate::wire::approvals::{By, Decide, Decision, Outcome, Pending, Row};
use crate::wire::codes::{Code, Refusal};
use crate::wire::events::{Event, Who};
use crate::wire::message;
use crate::wire::methods::{APPROVAL_PENDING, Method};
use crate::wire::transcript::{Hash, Statement, sha256};

use table::{Open, Table};

/// Somebody asks. Checked, and its text written, by the asker's worker.
pub struct Ask {
    /// Who.
    pub peer: Arc<Peer>,
    /// The request that is answered at the end.
    pub request: u64,
    /// Digest of the request where a receipt is asked for.
    pub receipt: Option<Hash>,
    /// Drawn by the worker.
    pub id: ApprovalId,
    /// Who may see it.
    pub audience: Audience,
    /// What deciders are shown and sign.
    pub text: Arc<str>,
    /// What is asked.
    pub summary: String,
    /// The session that it was asked from.
    pub session: Option<SessionId>,
    /// When.
    pub asked: jiff::Timestamp,
    /// Until when.
    pub expires: jiff::Timestamp,
    /// The same, monotonic.
    pub due: Instant,
    /// What it holds: itself and its text.
    pub charges: [Charge; 2],
}

/// An operator decides.
pub struct Decided {
    /// Who.
    pub peer: Arc<Peer>,
    /// The request.
    pub request: u64,
    /// Digest of the request where a receipt is asked for.
    pub receipt: Option<Hash>,
    /// What.
    pub decide: Decide,
}

/// An asker gives up.
pub struct Withdraw {
    /// Who.
    pub peer: Arc<Peer>,
    /// The request.
    pub request: u64,
    /// Digest of the request where a receipt is asked for.
    pub receipt: Option<Hash>,
    /// What.
    pub approval: ApprovalId,
}

/// Somebody wants to see them.
pub struct Look {
    /// Who.
    pub peer: Arc<Peer>,
    /// How their ids begin, where those that have ended are wanted too.
    pub prefix: Option<String>,
    /// Gets them.
    pub reply: Sender<Vec<Seen>>,
}

/// One, as somebody sees it.
pub struct Seen {
    /// Its place in the order in which they were asked.
    pub order: u64,
    /// While it is open.
    text: Option<Arc<str>>,
    row: Row,
}

impl Seen {
    /// As a list shows it.
    pub fn into_row(self) -> Row {
        Row { text: self.text.map(|text| text.as_ref().to_owned()), ..self.row }
    }
}

struct Question {
    peer: Arc<Peer>,
    request: u64,
    receipt: Option<Hash>,
    audience: Audience,
    text: Arc<str>,
    /// Given back before anybody hears of its end.
    charges: Option<[Charge; 2]>,
}

impl Question {
    fn is_of(&self, connection: ConnectionId, request: u64) -> bool {
        self.peer.id() == connection && self.request == request
    }

    /// Tells its asker, unless somebody has.
    fn answer(&self, outcome: &Outcome, decider: Option<&Arc<Peer>>) {
        let Self { peer, request, receipt, text, .. } = self;
        if !peer.settle(*request) {
            return;
        }
        let text = peer.answering(*request, outcome, Some(text.as_bytes()), *receipt);
        let _gone = match decider {
            // What is kept for an asker that does not read is the decider's until it is written.
            Some(decider) => {
                let instead = Refusal::from(Code::Cancelled).message("who decided was revoked before this was read");
                let origin = Origin { authority: Arc::clone(decider.authority()), instead: Some((*request, instead)) };
                peer.send_for(origin, text)
            }
            None => peer.send(text),
        };
    }
}

/// All questions of one start of a daemon.
pub struct Approvals {
    table: Table<Question, Audience>,
    generation: Generation,
    audit: Arc<Audit>,
    feed: Arc<Feed>,
}

#[derive(Serialize)]
struct Nothing {}

impl Approvals {
    /// None yet.
    pub fn new(generation: Generation, audit: Arc<Audit>, feed: Arc<Feed>) -> Self {
        Self { table: Table::default(), generation, audit, feed }
    }

    /// Whether nobody asks anything.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// When the next one's time is over.
    pub fn next(&self) -> Option<Instant> {
        self.table.next()
    }

    /// Takes a question: from here on it can be seen and decided.
    pub fn ask(&mut self, ask: Ask, is_draining: bool) {
        let Ask { peer, request, receipt, id, audience, text, summary, session, asked, expires, due, charges } = ask;
        let admitted = match peer.authority().admit(Method::ApprovalRequest) {
            Ok(_) if is_draining => Err(Refusal::from(Code::Draining).message("the daemon takes no new questions")),
            Ok(permit) => Ok(permit),
            Err(code) => Err(code.into()),
        };
        let _permit = match admitted {
            Ok(permit) => permit,
            Err(refusal) => {
                if peer.settle(request) {
                    let _gone = peer.refuse(request, &refusal);
                }
                return;
            }
        };
        let credential = Arc::clone(peer.authority().credential());
        let awaiting = Event::AwaitingApproval {
            approval_id: id,
            summary: &summary,
            label: &credential.label,
            credential: credential.id,
            session_id: session,
            expires,
        };
        self.feed.publish(audience.clone(), &awaiting);
        let (connection, credential) = (peer.id(), credential.id);
        let (text_bytes, text_sha256) = sized(&text);
        let asked_for = Fact::ApprovalRequested { approval: id, credential, connection, text_bytes, text_sha256 };
        self.audit.record(asked_for);
        let pending = message::notification(APPROVAL_PENDING, &Pending { request, approval_id: id, expires });
        let _gone = peer.send(pending);
        let question = Question { peer: Arc::clone(&peer), request, receipt, audience, text, charges: Some(charges) };
        self.table.add(Open { id, asked, expires, due, question });
    }

    /// One decision of an operator. Of several one counts; its permit is held until it is told.
    pub fn decide(&mut self, decided: &Decided) -> Result<(), Refusal> {
        let Decided { peer, request, receipt, decide } = decided;
        let _permit = peer.authority().admit(Method::ApprovalDecide)?;
        let id = decide.approval_id;
        self.expire(Instant::now());
        let open = match self.table.find(id) {
            Some(open) if !open.question.audience.includes(peer.authority()) => {
                return Err(Code::ApprovalNotFound.into());
            }
            Some(open) => open,
            None => return Err(self.too_late(peer, decide)),
        };
        // Whose asker has gone, or is let through no longer, has nobody to be approved for.
        if open.question.peer.place(open.question.request).is_none()
            || open.question.peer.authority().admit_delivery().is_err()
        {
            self.cancel_because(id, "asker-gone");
            return Err(self.too_late(peer, decide));
        }
        let key = peer.authority().credential().public_key;
        let statement = Statement::Decision {
            generation: self.generation,
            approval: id,
            text: sha256(&[open.question.text.as_bytes()]),
            is_approved: decide.decision == Decision::Approved,
        };
        if !statement.is_signed_by(key, &decide.signature) {
            return Err(Refusal::invalid("signature is not this credential's over this approval and decision"));
        }
        let Some((outcome, question)) = self.end(id, decide.decision, Some((peer, decide)), decide.reason.as_deref())
        else {
            return Err(self.too_late(peer, decide));
        };
        question.answer(&outcome, Some(peer));
        // With the text, so that a receipt of it says by itself what was decided.
        let _gone = peer.answer(*request, &outcome, Some(question.text.as_bytes()), *receipt);
        Ok(())
    }

    /// What is told to whoever decides what has ended. It is an event, and nothing else.
    fn too_late(&self, peer: &Peer, decide: &Decide) -> Refusal {
        let seen = self.table.outcome(decide.approval_id).filter(|ended| ended.seen_by.includes(peer.authority()));
        let Some(ended) = seen else { return Code::ApprovalNotFound.into() };
        let credential = peer.authority().credential();
        let stale = Event::StaleApprovalDecision {
            approval_id: decide.approval_id,
            decision: decide.decision,
            reason: Code::AlreadyDecided.word(),
            by: Who { credential: credential.id, label: &credential.label },
        };
        self.feed.publish(ended.seen_by.clone(), &stale);
        let (approval, decision) = (decide.approval_id, decide.decision.word());
        self.audit.record(Fact::ApprovalStale { approval, decision, by: credential.id });
        already_decided(&ended.outcome)
    }

    /// Ends what the same credential has asked.
    pub fn withdraw(&mut self, withdraw: &Withdraw) -> Result<(), Refusal> {
        let Withdraw { peer, request, receipt, approval } = withdraw;
        let _permit = peer.authority().admit(Method::ApprovalWithdraw)?;
        self.expire(Instant::now());
        let by = peer.authority().credential().id;
        let is_own = |audience: &Audience| matches!(audience, Audience::Question(asker, _) if *asker == by);
        match (self.table.find(*approval), self.table.outcome(*approval)) {
            (Some(open), _) if is_own(&open.question.audience) => {
                self.cancel_because(*approval, "withdrawn");
                let _gone = peer.answer(*request, &Nothing {}, None, *receipt);
                Ok(())
            }
            (None, Some(ended)) if is_own(&ended.seen_by) => Err(already_decided(&ended.outcome)),
            _ => Err(Code::ApprovalNotFound.into()),
        }
    }

    /// A request that asked is no longer waited for, or its connection has ended. False: it asked nothing.
    pub fn cancel(&mut self, connection: ConnectionId, request: u64) -> bool {
        let is_it = |open: &Open<Question>| open.question.is_of(connection, request);
        let Some((_, open)) = self.table.open().find(|(_, open)| is_it(open)) else { return false };
        let (id, has_gone) = (open.id, open.question.peer.has_ended());
        let reason = if has_gone { "asker-gone" } else { "withdrawn" };
        if let Some((_, question)) = self.end(id, Decision::Cancelled, None, Some(reason)) {
            if question.peer.settle(request) {
                let _gone = question.peer.refuse(request, &Code::Cancelled.into());
            }
        }
        true
    }

    fn cancel_because(&mut self, id: ApprovalId, reason: &str) {
        if let Some((outcome, question)) = self.end(id, Decision::Cancelled, None, Some(reason)) {
            question.answer(&outcome, None);
        }
    }

    /// Ends those whose time is over; whether there were any.
    pub fn expire(&mut self, now: Instant) -> bool {
        let due = self.table.due(now, jiff::Timestamp::now());
        let any = !due.is_empty();
        for id in due {
            if let Some((outcome, question)) = self.end(id, Decision::Expired, None, None) {
                question.answer(&outcome, None);
            }
        }
        any
    }

    /// The daemon ends.
    pub fn end_all(&mut self) {
        let ids: Vec<_> = self.table.open().map(|(_, open)| open.id).collect();
        for id in ids {
            self.cancel_because(id, Code::ShuttingDown.word());
        }
    }

    /// The one step in which a question ends. The feed is told here; its asker is to be told after that.
    fn end(
        &mut self,
        approval_id: ApprovalId,
        decision: Decision,
        decided: Option<(&Arc<Peer>, &Decide)>,
        reason: Option<&str>,
    ) -> Option<(Outcome, Question)> {
        let credential = decided.map(|(peer, _)| peer.authority().credential());
        let outcome = Outcome {
            approval_id,
            decision,
            decided: now(),
            by: credential.map(|by| By { credential: by.id, label: by.label.clone(), public_key: by.public_key }),
            reason: reason.map(str::to_owned),
            signature: decided.map(|(_, decide)| decide.signature),
        };
        let Open { mut question, .. } = self.table.end(&outcome, |question| question.audience.clone())?;
        question.charges = None;
        let by = credential.map(|by| Who { credential: by.id, label: &by.label });
        let told = Event::ApprovalDecided { approval_id, decision, by, reason };
        self.feed.publish(question.audience.clone(), &told);
        self.audit.record(Fact::ApprovalDecided {
            approval: approval_id,
            credential: question.peer.authority().credential().id,
            decision: decision.word(),
            by: credential.map(|by| by.id),
            public_key: credential.map(|by| by.public_key),
            signature: outcome.signature,
        });
        Some((outcome, question))
    }

    /// What somebody may see.
    pub fn look(&mut self, look: &Look) {
        self.expire(Instant::now());
        let Look { peer, prefix, reply } = look;
        let sees = |audience: &Audience| audience.includes(peer.authority());
        let is_meant =
            |id: ApprovalId| prefix.as_ref().is_none_or(|prefix| id.to_string().starts_with(prefix.as_str()));
        let open = self.table.open().filter(|(_, open)| sees(&open.question.audience) && is_meant(open.id));
        let mut seen: Vec<_> = open
            .map(|(order, open)| {
                let Open { id, asked, expires, question, .. } = open;
                let (approval_id, asked, expires) = (*id, *asked, *expires);
                let row = Row { approval_id, state: "open".to_owned(), asked, expires, text: None, outcome: None };
                Seen { order, text: Some(Arc::clone(&question.text)), row }
            })
            .collect();
        if prefix.is_some() {
            let ended = self.table.ended().filter(|(_, one)| sees(&one.seen_by) && is_meant(one.outcome.approval_id));
            seen.extend(ended.map(|(order, one)| {
                let (state, outcome) = (one.outcome.decision.word().to_owned(), one.outcome.clone());
                let approval_id = outcome.approval_id;
                let (asked, expires) = (one.asked, one.expires);
                let row = Row { approval_id, state, asked, expires, text: None, outcome: Some(outcome) };
                Seen { order, text: None, row }
            }));
        }
        seen.sort_by_key(|one| one.order);
        let _worker_gone = reply.send(seen);
    }
}

/// In whole milliseconds: more says nothing to whoever reads it.
pub fn now() -> jiff::Timestamp {
    let now = jiff::Timestamp::now();
    jiff::Timestamp::from_millisecond(now.as_millisecond()).unwrap_or(now)
}

fn already_decided(outcome: &Outcome) -> Refusal {
    let (id, what) = (outcome.approval_id, outcome.decision.word());
    let why = outcome.reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
    let message = match &outcome.by {
        Some(by) => format!("approval {id} was {what} by {}{why}", by.label),
        None if why.is_empty() => format!("approval {id} has {what}"),
        None => format!("approval {id} was {what}{why}"),
    };
    Refusal { outcome: Some(Box::new(outcome.clone())), ..Code::AlreadyDecided.into() }.message(message)
}
