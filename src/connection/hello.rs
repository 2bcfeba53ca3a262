//! The handshake of one connection, over its socket: who it is, and whether it is let in.
//!
//! Everything before the client's proof is a stranger's: it gets a health answer, a challenge, or nothing.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::account::Charge;
use crate::auth::gate::{Authority, End};
use crate::auth::hello::{Choice, Finished, challenge, choose, incompatible};
use crate::ids::{ConnectionId, Fingerprint};
use crate::limits::PROTOCOL_MAX;
use crate::registry::busy;
use crate::route::outbound::Outbound;
use crate::route::peer::Peer;
use crate::wire::codes::{Code, Refusal};
use crate::wire::frame::{Opener, Sealer};
use crate::wire::lines::{self, First, Hello, Role};
use crate::wire::message;
use crate::wire::methods::REFUSED;

use super::hub::Hub;
use super::reader::{Ended, Reader};
use super::slots::{self, Slot};

/// The reason of a connection that only asked for health: no activity, and not told.
pub const HEALTH: &str = "health";

/// How a handshake ended without a peer.
pub struct NotIn {
    /// One of a fixed set, for the log.
    pub reason: &'static str,
    /// The key that the peer named.
    pub fingerprint: Option<Fingerprint>,
}

impl NotIn {
    fn stranger(reason: &'static str) -> Self {
        Self { reason, fingerprint: None }
    }
}

/// Somebody who is let in, and what is held for it.
pub struct Admitted {
    /// As others see it.
    pub peer: Arc<Peer>,
    /// Opens its frames.
    pub opener: Opener,
    /// The protocol to speak.
    pub protocol: u16,
    /// The key that signed.
    pub fingerprint: Fingerprint,
    /// Its slot among connections.
    pub place: slots::Finished,
    /// Its share of connections.
    pub charge: Charge,
}

#[derive(Serialize)]
struct Refused<'a> {
    code: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource: Option<&'static str>,
}

/// Speaks the handshake to its end.
pub fn receive(hub: &Hub, socket: &Arc<UnixStream>, reader: &mut Reader, slot: Slot) -> Result<Admitted, NotIn> {
    let accepted = Instant::now();
    let until = |ms| accepted + Duration::from_millis(ms);
    let first = reader.line(until(hub.limits.first_line_ms)).map_err(|ended| NotIn::stranger(stranger(ended)))?;
    slot.spoke();
    match lines::read_first(&first) {
        Ok(First::Health) => {
            say(socket, &lines::health_answer(hub.generation))?;
            Err(NotIn::stranger(HEALTH))
        }
        Ok(First::Hello(hello)) => {
            let fingerprint = hello.credential;
            let deadline = until(hub.limits.hello_ms);
            let known = |not_in: NotIn| NotIn { fingerprint: Some(fingerprint), ..not_in };
            match choose(&hello) {
                Choice::Protocol(protocol) => {
                    prove(hub, socket, reader, slot, &first, *hello, protocol, deadline).map_err(known)
                }
                Choice::Incompatible => Err(known(part(hub, socket, reader, &first, &hello, deadline))),
            }
        }
        Err(complaint) => {
            log::debug!("first line: {complaint}");
            Err(NotIn::stranger("malformed first line"))
        }
    }
}

#[expect(clippy::too_many_arguments, reason = "one call, and each is needed to its end")]
fn prove(
    hub: &Hub,
    socket: &Arc<UnixStream>,
    reader: &mut Reader,
    slot: Slot,
    first: &[u8],
    hello: Hello,
    protocol: u16,
    deadline: Instant,
) -> Result<Admitted, NotIn> {
    let fingerprint = hello.credential;
    let (answer, challenged) = challenge(first, hello, protocol, hub.generation, &hub.identity)
        .ok_or(NotIn::stranger("no keys could be made"))?;
    say(socket, &answer)?;
    let proof = reader.line(deadline).map_err(|ended| NotIn::stranger(unfinished(ended)))?;
    let finished = challenged
        .finish(&proof, hub.credentials.find(fingerprint))
        .map_err(|_| NotIn::stranger("malformed proof"))?
        .ok_or(NotIn::stranger("no keys could be agreed"))?;
    let Finished { keys, t3, peer } = finished;
    let sealer = Sealer::new(&keys.to_client).ok_or(NotIn::stranger("no keys could be made"))?;
    let opener = Opener::new(&keys.to_daemon).ok_or(NotIn::stranger("no keys could be made"))?;

    let entered = peer
        .map_err(Refusal::from)
        .and_then(|verified| {
            let credential = Arc::clone(verified.credential());
            if credential.gate.end() == Some(End::Expired) {
                hub.credentials.expire(&credential);
                hub.forget_ended();
            }
            Ok(verified.authorize()?)
        })
        .and_then(|authority| take_share(hub, &authority).map(|charge| (authority, charge)));
    let (authority, charge) = match entered {
        Ok(entered) => entered,
        Err(refusal) => return Err(refuse(socket, sealer, &refusal)),
    };
    let place = slot.finished().ok_or(NotIn::stranger("sent away for a newcomer"))?;
    let shares = &authority.credential().shares;
    let outbound = Outbound::new(
        Arc::clone(socket),
        sealer,
        hub.limits.peer_outbound_bytes,
        Arc::clone(&hub.totals.outbound_bytes),
        Arc::clone(&shares.outbound_bytes),
    );
    let (identity, flusher) = (Arc::clone(&hub.identity), Arc::clone(&hub.flusher));
    let peer = Peer::new(ConnectionId::random(), authority, outbound, t3, identity, flusher);
    Ok(Admitted { peer, opener, protocol, fingerprint, place, charge })
}

/// A share of all connections; operators have room that others cannot take.
fn take_share(hub: &Hub, authority: &Authority) -> Result<Charge, Refusal> {
    let total = match authority.role() {
        Role::Operator => &hub.totals.operators,
        Role::Producer | Role::Caller => &hub.totals.connections,
    };
    Charge::take(total, &authority.credential().shares.connections, 1).map_err(busy)
}

/// Tells a peer that has finished its hello why it is not let in.
fn refuse(socket: &UnixStream, mut sealer: Sealer, refusal: &Refusal) -> NotIn {
    let message = message::notification(REFUSED, &Refused { code: refusal.code.word(), resource: refusal.resource });
    if let Ok(frame) = sealer.seal(message.into_frame()) {
        let _gone = say(socket, &frame);
    }
    NotIn::stranger(match refusal.code {
        Code::Unauthenticated => "unauthenticated",
        Code::Revoked => "revoked",
        Code::Expired => "expired",
        Code::Role => "another role",
        _ => "busy",
    })
}

/// No common protocol: says so, signed, and hears whether the client can prove itself.
fn part(hub: &Hub, socket: &UnixStream, reader: &mut Reader, first: &[u8], hello: &Hello, deadline: Instant) -> NotIn {
    let (answer, statement) = incompatible(first, &hub.build, hub.generation, &hub.identity);
    if let Err(not_in) = say(socket, &answer) {
        return not_in;
    }
    let proof = reader.line(deadline).ok().and_then(|line| lines::read_proof(&line).ok());
    let credential = hub.credentials.find(hello.credential).filter(|credential| credential.gate.end().is_none());
    let signed =
        credential.zip(proof).filter(|(credential, proof)| statement.is_signed_by(credential.public_key, proof));
    if let Some((credential, _)) = &signed {
        log::debug!("credential {} has proved itself and speaks no protocol of ours", credential.id);
        let is_producer = credential.role == Role::Producer && hello.role == Role::Producer;
        if is_producer && hello.protocol.min > PROTOCOL_MAX {
            hub.quiescence.successor_waits();
        }
    }
    NotIn::stranger(if signed.is_some() { "incompatible, authenticated" } else { "incompatible" })
}

/// A few hundred bytes into an empty buffer: never waits.
fn say(mut socket: &UnixStream, bytes: &[u8]) -> Result<(), NotIn> {
    socket.write_all(bytes).map_err(|_| NotIn::stranger("gone before an answer"))
}

fn stranger(ended: Ended) -> &'static str {
    match ended {
        Ended::Late => "no first line in time",
        Ended::LineTooLong => "first line too long",
        Ended::Eof => "gone without a word",
        _ => "gone within the first line",
    }
}

fn unfinished(ended: Ended) -> &'static str {
    match ended {
        Ended::Late => "no proof in time",
        Ended::LineTooLong => "proof too long",
        _ => "gone before its proof",
    }
}
