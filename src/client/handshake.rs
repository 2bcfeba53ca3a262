//! The client's side of the handshake (docs/protocol.md, "Hello", "Versions", "Health").
//!
//! Owns: the order of the steps and what each wrong answer means. Invariant: this side's proof leaves only after the
//! daemon has proved the key that is held here; an unsigned word is a hint, never a fact.

use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use ring::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use ring::rand::SystemRandom;

use crate::ids::{Generation, Nonce, PublicKey, Signature};
use crate::limits::HELLO_CLIENT_MS;
use crate::store::socket::{self, ConnectError};
use crate::sys;
use crate::wire::codes::Code;
use crate::wire::frame::{Opener, Sealer};
use crate::wire::lines::{self, Answer, Incompatible, Range, Role};
use crate::wire::message;
use crate::wire::methods::{REFUSED, WELCOME};
use crate::wire::transcript::{self, Statement, Transcript};

use super::BUILD;
use super::address::{Keys, Target};
use super::connection::{Connection, Ended, Incoming, Proved, Receiver, Sender};
use super::failure::ConnectFailure;
use super::inbound::{Inbound, Stop};
use super::outbound;
use super::welcome::{RefusedNote, Welcome};

/// What a connection is to be.
#[derive(Debug, Clone)]
pub struct Hello {
    /// In which role.
    pub role: Role,
    /// What is spoken.
    pub protocol: Range,
    /// Only these methods, by name.
    pub scopes: Option<Vec<String>>,
    /// For all of it together.
    pub patience: Duration,
}

impl Hello {
    /// With our own protocols, all that the credential has, and the usual patience.
    pub fn new(role: Role) -> Self {
        Self { role, protocol: Range::OURS, scopes: None, patience: Duration::from_millis(HELLO_CLIENT_MS) }
    }
}

/// A connection that both sides have proved, and that the daemon has welcomed.
pub fn connect(target: &Target, hello: &Hello) -> Result<Connection, ConnectFailure> {
    let keys = target.keys(hello.role)?;
    let mut wire = Wire::open(target, hello.patience)?;
    let (first, ephemeral) = first_line(hello, &keys).ok_or(ConnectFailure::Lost)?;
    wire.send(&first)?;
    let line = wire.line()?;
    let mut transcript = Transcript::new(&first);
    transcript.add(&line);
    let impostor = || ConnectFailure::Impostor { socket: target.socket(), key: keys.daemon_path.clone() };
    let challenge = match lines::read_answer(&line) {
        Ok(Answer::Challenge(challenge)) => challenge,
        Ok(Answer::Refused(refused)) => {
            return Err(ConnectFailure::Busy { resource: refused.resource.unwrap_or(refused.code) });
        }
        Ok(Answer::Incompatible(incompatible)) => {
            return Err(wire.incompatible(hello, &keys, transcript, incompatible).unwrap_or_else(impostor));
        }
        Err(_) => return Err(impostor()),
    };
    let proof_line = wire.line()?;
    let proof = lines::read_proof(&proof_line).map_err(|_| impostor())?;
    let statement = Statement::DaemonProof(transcript.hash());
    if challenge.daemon != keys.daemon || !statement.is_signed_by(keys.daemon, &proof) {
        return Err(impostor());
    }
    if !(hello.protocol.min..=hello.protocol.max).contains(&challenge.protocol) {
        return Err(ConnectFailure::Lost);
    }
    transcript.add(&proof_line);
    let client_proof = lines::proof(keys.identity.sign(&Statement::ClientProof(transcript.hash())));
    transcript.add(&client_proof);
    let t3 = transcript.hash();
    let theirs = UnparsedPublicKey::new(&X25519, challenge.ephemeral.0);
    // ring refuses the all-zero secret.
    let agreed = agree_ephemeral(ephemeral, &theirs, |secret| transcript::keys(&t3, secret));
    let Ok(Some(channel)) = agreed else { return Err(impostor()) };
    let (Some(sealer), Some(opener)) = (Sealer::new(&channel.to_daemon), Opener::new(&channel.to_client)) else {
        return Err(ConnectFailure::Lost);
    };
    wire.send(&client_proof)?;
    let proved = Proved {
        lines: [text(&first), text(&line), text(&proof_line), text(&client_proof)],
        daemon: keys.daemon,
        generation: challenge.generation,
        t3,
    };
    let (hung, deadline) = (wire.hung(), wire.deadline);
    let stream = wire.stream().try_clone().map_err(|_| ConnectFailure::Lost)?;
    let mut receiver = Receiver::new(wire.inbound, opener);
    let welcome = match receiver.next(Some(deadline)) {
        Ok(incoming) => welcome(incoming, challenge.protocol, hello.role)?,
        Err(Ended::Timeout) => return Err(hung),
        Err(Ended::Closing(_) | Ended::Lost) => return Err(ConnectFailure::Lost),
    };
    Ok(Connection::new(Sender::new(stream, sealer), receiver, welcome, proved))
}

/// The first sealed message: whether the daemon lets this side in, as what it asked to be.
fn welcome(first: Incoming, protocol: u16, role: Role) -> Result<Welcome, ConnectFailure> {
    let Incoming::Notification { method, params, payload: None } = first else { return Err(ConnectFailure::Lost) };
    let params = params.as_deref();
    match method.as_str() {
        WELCOME => message::params(params)
            .ok()
            .filter(|welcome: &Welcome| welcome.protocol == protocol && welcome.role == role)
            .ok_or(ConnectFailure::Lost),
        REFUSED => {
            let refused: RefusedNote = message::params(params).map_err(|_| ConnectFailure::Lost)?;
            Err(match Code::from_word(&refused.code) {
                Some(Code::Busy) => ConnectFailure::Busy { resource: refused.resource.unwrap_or(refused.code) },
                Some(code) => ConnectFailure::Refused(code),
                // A newer daemon's reason; it let nobody in.
                None => ConnectFailure::Refused(Code::Denied),
            })
        }
        _ => Err(ConnectFailure::Lost),
    }
}

/// Line 1, and the secret half of its ephemeral key. `None`: the system has no randomness.
fn first_line(hello: &Hello, keys: &Keys) -> Option<(Vec<u8>, EphemeralPrivateKey)> {
    let ephemeral = EphemeralPrivateKey::generate(&X25519, &SystemRandom::new()).ok()?;
    let public = ephemeral.compute_public_key().ok()?;
    let line = lines::hello(&lines::Hello {
        protocol: hello.protocol,
        role: hello.role,
        credential: keys.identity.public().fingerprint(),
        nonce: Nonce::random(),
        ephemeral: PublicKey(public.as_ref().try_into().ok()?),
        scopes: hello.scopes.clone(),
        client: BUILD.to_owned(),
    });
    Some((line, ephemeral))
}

/// A line as receipts hold it, without its LF. All of them were read as JSON or made here.
fn text(line: &[u8]) -> String {
    String::from_utf8_lossy(line.strip_suffix(b"\n").unwrap_or(line)).into_owned()
}

/// Which start of the daemon listens there. Unsigned: a hint that tells changes, nothing more.
pub fn health(target: &Target, patience: Duration) -> Result<Generation, ConnectFailure> {
    let mut wire = Wire::open(target, patience)?;
    wire.send(&lines::health())?;
    let line = wire.line()?;
    if let Ok(Answer::Refused(refused)) = lines::read_answer(&line) {
        return Err(ConnectFailure::Busy { resource: refused.resource.unwrap_or(refused.code) });
    }
    lines::read_health(&line).map_err(|_| ConnectFailure::Lost)
}

/// The stream during a handshake, with one deadline for all of it.
struct Wire {
    inbound: Inbound,
    deadline: Instant,
    patience: Duration,
}

impl Wire {
    fn open(target: &Target, patience: Duration) -> Result<Self, ConnectFailure> {
        let deadline = Instant::now() + patience;
        let folder = target.open_socket_folder()?;
        let stream = socket::connect(&folder, patience).map_err(|error| match error {
            ConnectError::Absent | ConnectError::NobodyListens => ConnectFailure::NotRunning,
            ConnectError::Busy => ConnectFailure::Hung { pid: None, waited: patience },
            ConnectError::Failed(error) => error.into(),
        })?;
        Ok(Self { inbound: Inbound::new(stream), deadline, patience })
    }

    fn stream(&self) -> &UnixStream {
        self.inbound.stream()
    }

    fn hung(&self) -> ConnectFailure {
        ConnectFailure::Hung { pid: sys::peer_pid(self.stream()), waited: self.patience }
    }

    /// A daemon that has no place answers and closes before it reads: then what it said counts, not the failed write.
    fn send(&mut self, line: &[u8]) -> Result<(), ConnectFailure> {
        match outbound::write_all(self.stream(), line, self.deadline) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Err(self.hung()),
            Err(_) => match self.inbound.line(self.deadline).map(|line| lines::read_answer(&line)) {
                Ok(Ok(Answer::Refused(refused))) => {
                    Err(ConnectFailure::Busy { resource: refused.resource.unwrap_or(refused.code) })
                }
                _ => Err(ConnectFailure::Lost),
            },
        }
    }

    fn line(&mut self) -> Result<Vec<u8>, ConnectFailure> {
        match self.inbound.line(self.deadline) {
            Ok(line) => Ok(line),
            Err(Stop::Timeout) => Err(self.hung()),
            Err(Stop::End | Stop::Broken) => Err(ConnectFailure::Lost),
        }
    }

    /// What an incompatible answer is worth: nothing (`None`) unless the pinned key signed it. A producer that is newer
    /// than the daemon proves itself in turn, so that the daemon knows that a successor waits.
    fn incompatible(
        &mut self,
        hello: &Hello,
        keys: &Keys,
        mut transcript: Transcript,
        theirs: Incompatible,
    ) -> Option<ConnectFailure> {
        let proof_line = match self.line() {
            Ok(line) => line,
            Err(failure) => return Some(failure),
        };
        let proof: Signature = lines::read_proof(&proof_line).ok()?;
        let statement = Statement::Incompatible(transcript.hash());
        if theirs.daemon != keys.daemon || !statement.is_signed_by(keys.daemon, &proof) {
            return None;
        }
        if hello.role == Role::Producer && hello.protocol.min > theirs.protocol.max {
            transcript.add(&proof_line);
            let line = lines::proof(keys.identity.sign(&Statement::ClientProof(transcript.hash())));
            // Its loss only makes the daemon wait for the next probe.
            let _ = outbound::write_all(self.stream(), &line, self.deadline);
        }
        Some(ConnectFailure::Incompatible {
            ours: hello.protocol,
            theirs: theirs.protocol,
            build: theirs.build,
            generation: theirs.generation,
        })
    }
}

#[cfg(test)]
mod tests;
