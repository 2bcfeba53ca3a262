//! `tests/vectors/handshake.json` against our own code, byte for byte, and against the page that shows it. The file is made
//! by a program that shares nothing with us. Here rather than in `wire`, which does not know who signs.

use serde_json::Value;
use serde_json::value::RawValue;

use crate::auth::hello::{Choice, choose};
use crate::auth::identity::Identity;
use crate::ids::Signature;
use crate::store::pem::Seed;
use crate::wire::frame::{Opener, Sealer};
use crate::wire::lines::{self, Answer, First, Hello, Role};
use crate::wire::message::{self, Header, Plaintext};
use crate::wire::methods::{CLOSING, Method, WELCOME};
use crate::wire::receipt::Receipt;
use crate::wire::transcript::{Hash, Statement, Transcript, keys, sha256};

const PAGE: &str = include_str!("../../docs/protocol.md");

struct Vectors(Value);

impl Vectors {
    fn read() -> Self {
        Self(serde_json::from_str(include_str!("../../tests/vectors/handshake.json")).unwrap())
    }

    /// By its dotted name.
    fn value(&self, name: &str) -> &Value {
        name.split('.').fold(&self.0, |value, key| &value[key])
    }

    fn text(&self, name: &str) -> &str {
        self.value(name).as_str().unwrap_or_else(|| panic!("{name} is no text"))
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        data_encoding::HEXLOWER.decode(self.text(name).as_bytes()).unwrap_or_else(|_| panic!("{name} is no hex"))
    }

    fn hash(&self, name: &str) -> Hash {
        self.bytes(name).try_into().unwrap_or_else(|_| panic!("{name} has not 32 bytes"))
    }

    /// The key, after a look at its public half.
    fn identity(&self, whose: &str) -> Identity {
        let identity = Identity::from_seed(&Seed::from(self.hash(&format!("keys.{whose}.seed")))).unwrap();
        assert_eq!(identity.public().to_string(), self.text(&format!("keys.{whose}.public")));
        assert_eq!(identity.public().fingerprint().to_string(), self.text(&format!("keys.{whose}.fingerprint")));
        identity
    }

    /// Line 1, read, and written anew.
    fn hello(&self, name: &str) -> Hello {
        let line = self.text(name);
        let Ok(First::Hello(hello)) = lines::read_first(line.as_bytes()) else { panic!("{name} is no hello") };
        assert_eq!(text(&lines::hello(&hello)), line, "{name}");
        *hello
    }

    /// A proof line, read, and signed anew: the same key has only one signature of one statement.
    fn proof(&self, name: &str, signer: &Identity, statement: &Statement) -> Signature {
        let line = self.text(name);
        let proof = lines::read_proof(line.as_bytes()).unwrap();
        assert!(statement.is_signed_by(signer.public(), &proof), "{name}");
        assert_eq!(text(&lines::proof(signer.sign(statement))), line, "{name}");
        proof
    }

    /// Every line, hash, proof and key of a hello that was answered with a challenge.
    fn check_hello(&self, which: &str, client: &Identity, protocol: u16) -> Hello {
        let name = |key: &str| format!("{which}.{key}");
        let daemon = self.identity("daemon");
        let hello = self.hello(&name("line_1"));
        assert_eq!(hello.credential, client.public().fingerprint());
        assert_eq!(choose(&hello), Choice::Protocol(protocol));

        let line = self.text(&name("challenge"));
        let Ok(Answer::Challenge(challenge)) = lines::read_answer(line.as_bytes()) else { panic!("no challenge") };
        assert_eq!(text(&lines::challenge(&challenge)), line);
        assert_eq!((challenge.protocol, challenge.daemon), (protocol, daemon.public()));

        let mut transcript = Transcript::new(self.text(&name("line_1")).as_bytes());
        transcript.add(line.as_bytes());
        assert_eq!(transcript.hash(), self.hash(&name("t1")));
        self.proof(&name("daemon_proof"), &daemon, &Statement::DaemonProof(transcript.hash()));
        transcript.add(self.text(&name("daemon_proof")).as_bytes());
        assert_eq!(transcript.hash(), self.hash(&name("t2")));
        self.proof(&name("client_proof"), client, &Statement::ClientProof(transcript.hash()));
        transcript.add(self.text(&name("client_proof")).as_bytes());
        assert_eq!(transcript.hash(), self.hash(&name("t3")));

        let agreed = keys(&transcript.hash(), &self.bytes(&name("shared_secret"))).unwrap();
        assert_eq!(agreed.to_daemon, self.hash(&name("client_to_daemon")));
        assert_eq!(agreed.to_client, self.hash(&name("daemon_to_client")));
        hello
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// A message as it was read, written anew.
fn again(plaintext: &str) -> Plaintext {
    let message = message::read(plaintext.as_bytes()).unwrap();
    let given = |params: Option<&RawValue>| params.unwrap().to_owned();
    match &message.header {
        Header::Request { id, method, params } => message::request(*id, method, &given(*params), message.payload),
        Header::Notification { method, params } => message::notification(method, &given(*params)),
        Header::Answer { id, result, receipt } => message::answer(*id, result, receipt.as_deref(), message.payload),
        Header::Failure { .. } => panic!("no vector fails"),
    }
}

#[test]
fn every_line_hash_proof_and_key_of_a_hello_is_as_another_program_made_it() {
    let vectors = Vectors::read();
    let hello = vectors.check_hello("hello", &vectors.identity("caller"), 1);
    assert_eq!((hello.role, hello.scopes.map(|scopes| scopes.len())), (Role::Caller, Some(3)));
}

#[test]
fn protocol_0_has_the_same_lines_and_labels() {
    let vectors = Vectors::read();
    let hello = vectors.check_hello("protocol_0", &vectors.identity("operator"), 0);
    assert_eq!((hello.role, hello.scopes), (Role::Operator, None));
}

#[test]
fn every_frame_seals_to_the_same_bytes_and_opens_in_order() {
    let vectors = Vectors::read();
    for (direction, frames) in
        [("daemon_to_client", ["welcome", "answer"]), ("client_to_daemon", ["request", "closing"])]
    {
        let key = vectors.hash(&format!("hello.{direction}"));
        let (mut sealer, mut opener) = (Sealer::new(&key).unwrap(), Opener::new(&key).unwrap());
        for (counter, frame) in frames.into_iter().enumerate() {
            let name = |key: &str| format!("frames.{frame}.{key}");
            assert_eq!(vectors.text(&name("direction")), direction);
            assert_eq!(vectors.value(&name("counter")).as_u64(), Some(counter as u64));
            let plaintext = vectors.text(&name("plaintext"));
            let written = again(plaintext);
            assert_eq!(text(written.text()), plaintext, "{frame}");
            let mut whole = vectors.bytes(&name("frame"));
            assert_eq!(sealer.seal(written.into_frame()).unwrap(), whole, "{frame}");
            assert_eq!(text(opener.open(&mut whole[4..]).unwrap()), plaintext, "{frame}");
        }
    }
}

#[test]
fn the_messages_of_the_vectors_are_what_the_page_calls_them() {
    let vectors = Vectors::read();
    let plaintext = |frame: &str| vectors.text(&format!("frames.{frame}.plaintext")).as_bytes();
    let read = |frame: &str| message::read(plaintext(frame)).unwrap();
    assert!(matches!(read("welcome").header, Header::Notification { method, .. } if method == WELCOME));
    assert!(matches!(read("closing").header, Header::Notification { method, .. } if method == CLOSING));
    let request = read("request");
    assert!(matches!(request.header, Header::Request { id: 1, method, .. } if method == Method::SessionSend.name()));
    assert_eq!(request.payload, Some("{ \"rev\":\"HEAD\",\n  \"n\":1.0e0, \"n\":\"\\u00e9é\" }".as_bytes()));
    let answer = read("answer");
    assert!(matches!(answer.header, Header::Answer { id: 1, receipt: Some(_), .. }));
    assert_eq!(answer.payload, Some(&b"\"done\""[..]));
}

#[test]
fn the_receipt_is_what_the_daemon_signs_and_what_verifies() {
    let vectors = Vectors::read();
    let daemon = vectors.identity("daemon");
    let receipt: Receipt = serde_json::from_value(vectors.value("receipt").clone()).unwrap();
    assert_eq!(receipt.request, vectors.text("frames.request.plaintext"));
    let statement = Statement::Receipt {
        t3: vectors.hash("hello.t3"),
        request: sha256(&[receipt.request.as_bytes()]),
        result: sha256(&[receipt.result.as_bytes()]),
    };
    assert_eq!(daemon.sign(&statement), receipt.receipt);
    let answer = message::read(vectors.text("frames.answer.plaintext").as_bytes()).unwrap();
    let Header::Answer { result, receipt: Some(shown), .. } = answer.header else { panic!("no answer") };
    assert_eq!(shown, receipt.receipt.to_string());
    assert_eq!(format!("{}\n{}", result.get(), text(answer.payload.unwrap())), receipt.result);

    let proved = receipt.verify(daemon.public()).unwrap();
    assert_eq!(proved.hello.credential, vectors.identity("caller").public().fingerprint());
    assert!(receipt.verify(vectors.identity("caller").public()).is_err());
    let other = Receipt { result: receipt.result.replace("done", "gone"), ..receipt };
    assert!(other.verify(daemon.public()).is_err());
}

#[test]
fn an_incompatible_answer_and_both_its_proofs_are_as_another_program_made_them() {
    let vectors = Vectors::read();
    let (daemon, caller) = (vectors.identity("daemon"), vectors.identity("caller"));
    assert_eq!(choose(&vectors.hello("incompatible.line_1")), Choice::Incompatible);
    let line = vectors.text("incompatible.incompatible");
    let Ok(Answer::Incompatible(answer)) = lines::read_answer(line.as_bytes()) else { panic!("not incompatible") };
    assert_eq!(text(&lines::incompatible(&answer)), line);
    assert_eq!(answer.daemon, daemon.public());

    let mut transcript = Transcript::new(vectors.text("incompatible.line_1").as_bytes());
    transcript.add(line.as_bytes());
    assert_eq!(transcript.hash(), vectors.hash("incompatible.transcript"));
    vectors.proof("incompatible.proof", &daemon, &Statement::Incompatible(transcript.hash()));
    transcript.add(vectors.text("incompatible.proof").as_bytes());
    assert_eq!(transcript.hash(), vectors.hash("incompatible.client_transcript"));
    vectors.proof("incompatible.client_proof", &caller, &Statement::ClientProof(transcript.hash()));
}

#[test]
fn health_and_busy_lines_are_as_another_program_made_them() {
    let vectors = Vectors::read();
    let question = vectors.text("health.question");
    assert_eq!(text(&lines::health()), question);
    assert!(matches!(lines::read_first(question.as_bytes()), Ok(First::Health)));
    let answer = vectors.text("health.answer");
    assert_eq!(text(&lines::health_answer(lines::read_health(answer.as_bytes()).unwrap())), answer);
    let busy = vectors.text("busy");
    assert_eq!(text(&lines::busy("connections")), busy);
    let Ok(Answer::Refused(refused)) = lines::read_answer(busy.as_bytes()) else { panic!("not refused") };
    assert_eq!((refused.code.as_str(), refused.resource.as_deref()), ("busy", Some("connections")));
}

#[test]
fn the_page_shows_the_bytes_of_the_file() {
    let vectors = Vectors::read();
    let section = PAGE.split("\n## Worked bytes\n").nth(1).unwrap();
    let mut shown = Vec::new();
    let mut parts = section.split("\n```text\n");
    let mut before = parts.next().unwrap();
    for part in parts {
        let name = before.trim_end().lines().last().unwrap().trim_matches('`');
        let (block, rest) = part.split_once("\n```\n").unwrap();
        let value = vectors.text(name);
        let whole = block.replace('\n', "");
        assert!(block == value.trim_end_matches('\n') || whole == value, "{name} differs from the file");
        shown.push(name);
        before = rest;
    }
    for name in [
        "hello.line_1",
        "hello.challenge",
        "hello.daemon_proof",
        "hello.client_proof",
        "hello.t1",
        "hello.t2",
        "hello.t3",
        "hello.client_to_daemon",
        "hello.daemon_to_client",
        "frames.welcome.frame",
        "frames.request.frame",
        "frames.answer.frame",
        "receipt.receipt",
        "incompatible.incompatible",
        "protocol_0.line_1",
        "health.answer",
        "busy",
    ] {
        assert!(shown.contains(&name), "the page does not show {name}");
    }
}
