//! What is kept, and for whom it goes on being let through.

use std::io::Read;

use super::*;
use crate::auth::credential::Credential;
use crate::auth::gate::End;
use crate::auth::record::Records;
use crate::ids::{PublicKey, random};
use crate::limits::Limits;
use crate::wire::codes::Code;
use crate::wire::frame::Opener;
use crate::wire::lines::Role;

const KEY: [u8; 32] = [7; 32];

fn authority(role: Role) -> Arc<Authority> {
    let records = Records::first([(role, PublicKey(random()))], jiff::Timestamp::now());
    let credential = Credential::new(&records.credentials[0], &Limits::default()).unwrap();
    Arc::new(Authority::of_test(credential))
}

struct Slow {
    outbound: Outbound,
    authority: Arc<Authority>,
    reader: UnixStream,
    pool: Arc<Pool>,
}

impl Slow {
    fn new() -> Self {
        let (socket, reader) = UnixStream::pair().unwrap();
        reader.set_nonblocking(true).unwrap();
        let (max, sealer) = (16 * 1024 * 1024, Sealer::new(&KEY).unwrap());
        let (pool, share) = (Pool::new("total", max), Pool::new("share", max));
        let outbound = Outbound::new(Arc::new(socket), sealer, max, Arc::clone(&pool), share);
        Self { outbound, authority: authority(Role::Producer), reader, pool }
    }

    fn send(&self, text: &[u8], origin: Option<Origin>) -> Accepted {
        let message = message::request(1, "test", &(), Some(text));
        self.outbound.send(&self.authority, message, origin, Place::Next, || false).ok().unwrap()
    }

    /// Reads and flushes in turn to the end: the frames that came whole.
    fn read(&mut self) -> Vec<Vec<u8>> {
        let mut bytes = Vec::new();
        loop {
            let before = bytes.len();
            let _would_block = self.reader.read_to_end(&mut bytes);
            if self.outbound.flush(&self.authority) == Flushed::Empty && bytes.len() == before {
                break;
            }
        }
        let (mut opener, mut frames) = (Opener::new(&KEY).unwrap(), Vec::new());
        let mut rest = bytes.as_slice();
        while let Some((length, body)) = rest.split_first_chunk::<4>() {
            let Some((body, next)) = body.split_at_checked(u32::from_be_bytes(*length) as usize) else { break };
            let mut frame = body.to_vec();
            frames.push(opener.open(&mut frame).unwrap().to_vec());
            rest = next;
        }
        frames
    }
}

fn of(authority: &Arc<Authority>, answers: Option<u64>) -> Option<Origin> {
    let instead = answers.map(|request| (request, Code::SessionLost.into()));
    Some(Origin { authority: Arc::clone(authority), instead })
}

#[test]
fn what_is_kept_of_somebody_whose_gate_closes_is_dropped_and_what_is_behind_it_goes() {
    let (mut slow, origin) = (Slow::new(), authority(Role::Caller));
    slow.send(&[b'1'; 1024 * 1024], None);
    let Accepted::Kept { sent, .. } = slow.send(b"22", of(&origin, None)) else { panic!("the socket took it") };
    slow.send(b"33", of(&origin, Some(5)));
    slow.send(b"44", None);
    origin.credential().gate.close(End::Revoked);
    let frames = slow.read();
    let ends: Vec<_> = frames.iter().map(|frame| String::from_utf8_lossy(&frame[frame.len() - 2..])).collect();
    assert_eq!(ends, ["11", "}}", "44"]);
    let failure = String::from_utf8(frames[1].clone()).unwrap();
    assert!(failure.contains(r#""id":5"#) && failure.contains("session-lost"), "{failure}");
    assert!(slow.outbound.withdraw(&Sent::Kept(sent)), "what was dropped will never arrive");
    assert_eq!((slow.outbound.kept(), slow.pool.used()), (0, 0));
}

#[test]
fn half_a_frame_of_somebody_whose_gate_closes_ends_the_connection() {
    let (mut slow, origin) = (Slow::new(), authority(Role::Caller));
    slow.send(&[b'1'; 1024 * 1024], of(&origin, None));
    slow.send(b"22", None);
    origin.credential().gate.close(End::Revoked);
    assert!(slow.read().is_empty());
    assert_eq!((slow.outbound.kept(), slow.pool.used()), (0, 0));
    let more = message::request(1, "test", &(), None);
    assert!(slow.outbound.send(&slow.authority, more, None, Place::Next, || false).is_err());
}

#[test]
fn a_frame_of_which_nothing_is_written_is_dropped_like_any_other_that_is_kept() {
    let (mut slow, origin) = (Slow::new(), authority(Role::Caller));
    let mut filled = 0;
    // Until the socket takes nothing more: the frame that is kept has not begun.
    let kept = loop {
        filled += 1;
        if let Accepted::Kept { sent, .. } = slow.send(&[b'x'; 1_000], of(&origin, None)) {
            break sent;
        }
    };
    slow.send(b"22", None);
    origin.credential().gate.close(End::Revoked);
    let frames = slow.read();
    assert_eq!(frames.len(), filled, "those that were written, and the last");
    assert!(frames.last().unwrap().ends_with(b"22"));
    assert!(slow.outbound.withdraw(&Sent::Kept(kept)));
}
