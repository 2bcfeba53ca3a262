//! The client against daemons that are right, wrong, slow and false.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::time::Instant;

use crate::auth::hello as daemon_side;
use crate::auth::identity::Identity;
use crate::client::bundle::{self, Bundle};
use crate::client::{CallError, Caller};
use crate::ids::CredentialId;
use crate::store::pem::{self, Seed};
use crate::store::{Dir, paths};
use crate::wire::codes::Delivery;
use crate::wire::lines::First;

use super::*;

fn connect(target: &Target, role: Role, patience: Duration) -> Result<Connection, ConnectFailure> {
    super::connect(target, &Hello { patience, ..Hello::new(role) })
}

const PATIENCE: Duration = Duration::from_secs(5);

const WELCOME_PARAMS: &str = r#"{"connection":"AAAAAAAAAAAAAAAAAAAAAA","protocol":1,"role":"caller","scopes":["session.list"],
    "limits":{"frame_max_bytes":1,"input_max_bytes":1,"result_max_bytes":1,"snapshot_max_bytes":1,
    "deadline_default_ms":1,"deadline_max_ms":1,"heartbeat_ms":1,"more":1},"build":"usherd/test","news":1}"#;

/// A bundle, and the socket that it leads to.
struct Place {
    _scratch: tempfile::TempDir,
    target: Target,
    listener: UnixListener,
    daemon: Identity,
}

impl Place {
    fn new(role: Role) -> Self {
        let scratch = tempfile::tempdir().unwrap();
        std::fs::set_permissions(scratch.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        let root = Dir::open(scratch.path()).unwrap();
        let folder = root.create_sub(paths::SOCKET_FOLDER).unwrap();
        let daemon = Identity::from_seed(&Seed::random()).unwrap();
        pem::write(&root, bundle::KEY, &Seed::random()).unwrap();
        root.write(bundle::DAEMON_KEY, format!("{}\n", daemon.public()).as_bytes()).unwrap();
        let content = Bundle {
            version: bundle::VERSION,
            credential: CredentialId([1; 16]),
            role,
            label: "test".to_owned(),
            socket_folder: folder.path().to_str().unwrap().to_owned(),
        };
        root.write(bundle::BUNDLE, &content.text()).unwrap();
        let listener = UnixListener::bind(folder.path().join(paths::SOCKET)).unwrap();
        let target = Target::bundle(scratch.path()).unwrap();
        Self { _scratch: scratch, target, listener, daemon }
    }

    /// Runs a daemon for one connection beside a client.
    fn meet<T: Send, U>(
        &self,
        daemon: impl FnOnce(UnixStream, &Identity) -> T + Send,
        client: impl FnOnce(&Target) -> U,
    ) -> (T, U) {
        std::thread::scope(|scope| {
            let served = scope.spawn(|| daemon(self.listener.accept().unwrap().0, &self.daemon));
            let done = client(&self.target);
            (served.join().unwrap(), done)
        })
    }

    fn failure(&self, daemon: impl FnOnce(UnixStream, &Identity) + Send) -> ConnectFailure {
        self.meet(daemon, |target| connect(target, Role::Caller, PATIENCE).err().unwrap()).1
    }
}

fn line(stream: &mut UnixStream) -> Vec<u8> {
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        let mut byte = [0];
        if stream.read(&mut byte).unwrap() == 0 {
            break;
        }
        line.push(byte[0]);
    }
    line
}

/// A whole handshake of the daemon's side, and the sealed channel.
fn serve(mut stream: UnixStream, daemon: &Identity) -> (UnixStream, Sealer, Opener) {
    let first = line(&mut stream);
    let Ok(First::Hello(hello)) = lines::read_first(&first) else { panic!() };
    let (answer, challenged) = daemon_side::challenge(&first, *hello, 1, Generation([7; 16]), daemon).unwrap();
    stream.write_all(&answer).unwrap();
    let finished = challenged.finish(&line(&mut stream), None).unwrap().unwrap();
    let (sealer, opener) =
        (Sealer::new(&finished.keys.to_client).unwrap(), Opener::new(&finished.keys.to_daemon).unwrap());
    (stream, sealer, opener)
}

fn send(stream: &mut UnixStream, sealer: &mut Sealer, plaintext: message::Plaintext) {
    stream.write_all(&sealer.seal(plaintext.into_frame()).unwrap()).unwrap();
}

fn welcome_to(stream: &mut UnixStream, sealer: &mut Sealer) {
    let params: serde_json::Value = serde_json::from_str(WELCOME_PARAMS).unwrap();
    send(stream, sealer, message::notification(WELCOME, &params));
}

fn request(stream: &mut UnixStream, opener: &mut Opener) -> String {
    let mut prefix = [0; 4];
    stream.read_exact(&mut prefix).unwrap();
    let mut frame = vec![0; crate::wire::frame::length(prefix).unwrap()];
    stream.read_exact(&mut frame).unwrap();
    String::from_utf8(opener.open(&mut frame).unwrap().to_vec()).unwrap()
}

#[test]
fn a_proved_daemon_welcomes_and_answers_out_of_order() {
    let place = Place::new(Role::Caller);
    let daemon = |stream, daemon: &Identity| {
        let (mut stream, mut sealer, mut opener) = serve(stream, daemon);
        welcome_to(&mut stream, &mut sealer);
        let asked = request(&mut stream, &mut opener);
        send(&mut stream, &mut sealer, message::notification("news", &serde_json::json!({})));
        let result = message::result(&serde_json::json!({"took_ms": 3}));
        send(&mut stream, &mut sealer, message::answer(9, &result, None, None));
        send(&mut stream, &mut sealer, message::answer(1, &result, None, Some(b"[1,\n2]")));
        let closing = request(&mut stream, &mut opener);
        (asked, closing)
    };
    let client = |target: &Target| {
        let connection = connect(target, Role::Caller, PATIENCE).unwrap();
        assert_eq!(connection.welcome().limits.result_max_bytes, 1);
        assert_eq!(connection.proved().generation, Generation([7; 16]));
        let caller = Caller::over(connection).unwrap();
        caller.call("session.list", &serde_json::json!({}), Some(b"7"), Instant::now() + PATIENCE).unwrap()
    };
    let ((asked, closing), reply) = place.meet(daemon, client);
    assert_eq!(asked, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"session.list\",\"params\":{}}\n7");
    assert_eq!(reply.result.get(), "{\"took_ms\":3}");
    assert_eq!(reply.payload.unwrap(), b"[1,\n2]");
    assert!(closing.contains("\"closing\""), "{closing}");
}

#[test]
fn a_daemon_with_another_key_is_an_impostor_and_gets_no_proof() {
    let place = Place::new(Role::Caller);
    let other = Identity::from_seed(&Seed::random()).unwrap();
    let (proof, failure) = place.meet(
        |mut stream, _| {
            let first = line(&mut stream);
            let Ok(First::Hello(hello)) = lines::read_first(&first) else { panic!() };
            let (answer, _) = daemon_side::challenge(&first, *hello, 1, Generation([7; 16]), &other).unwrap();
            stream.write_all(&answer).unwrap();
            line(&mut stream)
        },
        |target| connect(target, Role::Caller, PATIENCE).err().unwrap(),
    );
    assert!(matches!(failure, ConnectFailure::Impostor { .. }), "{failure:?}");
    assert_eq!(proof, b"", "the client ends before it proves anything");
}

#[test]
fn a_relay_that_shows_the_right_key_without_its_proof_is_an_impostor() {
    let place = Place::new(Role::Caller);
    let other = Identity::from_seed(&Seed::random()).unwrap();
    let failure = place.failure(|mut stream, daemon| {
        let first = line(&mut stream);
        let challenge = lines::challenge(&lines::Challenge {
            protocol: 1,
            generation: Generation([7; 16]),
            daemon: daemon.public(),
            nonce: Nonce::random(),
            ephemeral: PublicKey([9; 32]),
        });
        let mut transcript = Transcript::new(&first);
        transcript.add(&challenge);
        let proof = lines::proof(other.sign(&Statement::DaemonProof(transcript.hash())));
        stream.write_all(&[challenge, proof].concat()).unwrap();
    });
    assert!(matches!(failure, ConnectFailure::Impostor { .. }), "{failure:?}");
    let failure = place.failure(|mut stream, _| {
        line(&mut stream);
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n").unwrap();
    });
    assert!(matches!(failure, ConnectFailure::Impostor { .. }), "{failure:?}");
}

#[test]
fn an_all_zero_secret_is_refused_however_well_it_is_signed() {
    let place = Place::new(Role::Caller);
    let failure = place.failure(|mut stream, daemon| {
        let first = line(&mut stream);
        let challenge = lines::challenge(&lines::Challenge {
            protocol: 1,
            generation: Generation([7; 16]),
            daemon: daemon.public(),
            nonce: Nonce::random(),
            ephemeral: PublicKey([0; 32]),
        });
        let mut transcript = Transcript::new(&first);
        transcript.add(&challenge);
        let proof = lines::proof(daemon.sign(&Statement::DaemonProof(transcript.hash())));
        stream.write_all(&[challenge, proof].concat()).unwrap();
    });
    assert!(matches!(failure, ConnectFailure::Impostor { .. }), "{failure:?}");
}

#[test]
fn a_sealed_refusal_is_told_by_its_code() {
    let place = Place::new(Role::Caller);
    for (params, expected) in [
        (serde_json::json!({"code": "revoked"}), ConnectFailure::Refused(Code::Revoked)),
        (serde_json::json!({"code": "some-new-word"}), ConnectFailure::Refused(Code::Denied)),
        (
            serde_json::json!({"code": "busy", "resource": "connections"}),
            ConnectFailure::Busy { resource: "connections".to_owned() },
        ),
    ] {
        let failure = place.failure(|stream, daemon| {
            let (mut stream, mut sealer, _) = serve(stream, daemon);
            send(&mut stream, &mut sealer, message::notification(REFUSED, &params));
        });
        assert_eq!(failure, expected);
    }
}

#[test]
fn an_incompatible_daemon_is_believed_only_with_its_signature() {
    let place = Place::new(Role::Caller);
    let answer = |stream: &mut UnixStream, signer: &Identity, daemon: &Identity| {
        let first = line(stream);
        let incompatible = lines::incompatible(&Incompatible {
            protocol: Range { min: 2, max: 3 },
            build: "usherd/9".to_owned(),
            generation: Generation([7; 16]),
            daemon: daemon.public(),
            nonce: Nonce::random(),
        });
        let mut transcript = Transcript::new(&first);
        transcript.add(&incompatible);
        let proof = lines::proof(signer.sign(&Statement::Incompatible(transcript.hash())));
        stream.write_all(&[incompatible, proof].concat()).unwrap();
    };
    let failure = place.failure(|mut stream, daemon| answer(&mut stream, daemon, daemon));
    let ConnectFailure::Incompatible { theirs, build, .. } = failure else { panic!("{failure:?}") };
    assert_eq!((theirs, build.as_str()), (Range { min: 2, max: 3 }, "usherd/9"));
    let other = Identity::from_seed(&Seed::random()).unwrap();
    let failure = place.failure(|mut stream, daemon| answer(&mut stream, &other, daemon));
    assert!(matches!(failure, ConnectFailure::Impostor { .. }), "{failure:?}");
}

#[test]
fn a_newer_producer_proves_itself_to_an_incompatible_daemon() {
    let place = Place::new(Role::Producer);
    let (proof, failure) = place.meet(
        |mut stream, daemon| {
            let first = line(&mut stream);
            let (answer, statement) = daemon_side::incompatible(&first, "usherd/0", Generation([7; 16]), daemon);
            stream.write_all(&answer).unwrap();
            (lines::read_proof(&line(&mut stream)).unwrap(), statement)
        },
        |target| {
            let hello = Hello { protocol: Range { min: 9, max: 9 }, ..Hello::new(Role::Producer) };
            super::connect(target, &hello).err().unwrap()
        },
    );
    assert!(matches!(failure, ConnectFailure::Incompatible { .. }), "{failure:?}");
    let key = place.target.keys(Role::Producer).unwrap_or_else(|_| panic!()).identity.public();
    assert!(proof.1.is_signed_by(key, &proof.0));
}

#[test]
fn a_protocol_that_was_not_offered_is_not_spoken() {
    let place = Place::new(Role::Caller);
    let failure = place.failure(|mut stream, daemon| {
        let first = line(&mut stream);
        let Ok(First::Hello(hello)) = lines::read_first(&first) else { panic!() };
        let (answer, _) = daemon_side::challenge(&first, *hello, 2, Generation([7; 16]), daemon).unwrap();
        stream.write_all(&answer).unwrap();
    });
    assert_eq!(failure, ConnectFailure::Lost);
}

#[test]
fn a_daemon_without_a_place_one_that_goes_and_one_that_hangs_are_told_apart() {
    let place = Place::new(Role::Caller);
    let failure = place.failure(|mut stream, _| stream.write_all(&lines::busy("connections")).unwrap());
    assert_eq!(failure, ConnectFailure::Busy { resource: "connections".to_owned() });
    let failure = place.failure(|stream, _| drop(stream));
    assert_eq!(failure, ConnectFailure::Lost);
    let started = Instant::now();
    let (_held, failure) = place
        .meet(|stream, _| stream, |target| connect(target, Role::Caller, Duration::from_millis(50)).err().unwrap());
    assert!(matches!(failure, ConnectFailure::Hung { .. }), "{failure:?}");
    assert!(started.elapsed() < PATIENCE);
    drop(place.listener);
    let gone = connect(&place.target, Role::Caller, PATIENCE).err().unwrap();
    assert_eq!(gone, ConnectFailure::NotRunning);
}

#[test]
fn a_line_without_an_end_ends_the_hello() {
    let place = Place::new(Role::Caller);
    let failure = place.failure(|mut stream, _| {
        let _ = stream.write_all(&[b'x'; 100_000]);
    });
    assert_eq!(failure, ConnectFailure::Lost);
}

#[test]
fn health_needs_no_key_and_believes_nothing_but_a_generation() {
    let place = Place::new(Role::Caller);
    let ask = |answer: &'static [u8]| {
        place.meet(
            |mut stream, _| {
                assert_eq!(line(&mut stream), b"{\"health\":1}\n");
                stream.write_all(answer).unwrap();
            },
            |target| health(target, PATIENCE),
        )
    };
    assert_eq!(ask(b"{\"ok\":true,\"generation\":\"AAAAAAAAAAAAAAAAAAAAAA\"}\n").1, Ok(Generation([0; 16])));
    assert_eq!(
        ask(b"{\"ok\":true,\"generation\":\"AAAAAAAAAAAAAAAAAAAAAA\",\"pid\":1}\n").1,
        Err(ConnectFailure::Lost)
    );
    assert_eq!(ask(b"").1, Err(ConnectFailure::Lost));
}

#[test]
fn a_question_on_a_connection_that_dies_is_unknown_and_one_after_it_was_not_delivered() {
    let place = Place::new(Role::Caller);
    let (_, (first, second)) = place.meet(
        |stream, daemon| {
            let (mut stream, mut sealer, mut opener) = serve(stream, daemon);
            welcome_to(&mut stream, &mut sealer);
            request(&mut stream, &mut opener);
        },
        |target| {
            let caller = Caller::over(connect(target, Role::Caller, PATIENCE).unwrap()).unwrap();
            let ask = || caller.call("m", &serde_json::json!({}), None, Instant::now() + PATIENCE).unwrap_err();
            (ask(), ask())
        },
    );
    assert_eq!((first.delivery(), second.delivery()), (Delivery::Unknown, Delivery::NotDelivered));
}

#[test]
fn a_call_without_an_answer_ends_at_its_deadline_and_is_cancelled() {
    let place = Place::new(Role::Caller);
    let (told, error) = place.meet(
        |stream, daemon| {
            let (mut stream, mut sealer, mut opener) = serve(stream, daemon);
            welcome_to(&mut stream, &mut sealer);
            request(&mut stream, &mut opener);
            request(&mut stream, &mut opener)
        },
        |target| {
            let caller = Caller::over(connect(target, Role::Caller, PATIENCE).unwrap()).unwrap();
            caller.call("m", &serde_json::json!({}), None, Instant::now() + Duration::from_millis(30)).unwrap_err()
        },
    );
    assert_eq!(error, CallError::Timeout);
    assert!(told.contains("$/cancel") && told.contains("\"id\":1"), "{told}");
}

#[test]
fn an_answer_without_the_receipt_that_was_asked_for_is_none() {
    let place = Place::new(Role::Caller);
    for signature in [None, Some("AAAA"), Some("A".repeat(86).as_str())] {
        let (asked, error) = place.meet(
            |stream, daemon| {
                let (mut stream, mut sealer, mut opener) = serve(stream, daemon);
                welcome_to(&mut stream, &mut sealer);
                let asked = request(&mut stream, &mut opener);
                let result = message::result(&serde_json::json!({}));
                send(&mut stream, &mut sealer, message::answer(1, &result, signature, None));
                asked
            },
            |target| {
                let caller = Caller::over(connect(target, Role::Caller, PATIENCE).unwrap()).unwrap();
                let params = serde_json::json!({"force": true});
                caller.call_signed("daemon.stop", &params, None, Instant::now() + PATIENCE).unwrap_err()
            },
        );
        assert!(asked.contains("\"params\":{\"force\":true,\"receipt\":true}"), "{asked}");
        assert!(matches!(error, CallError::BadReceipt(_)), "{error:?}");
    }
}
