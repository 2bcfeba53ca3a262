//! A receipt: proof, without the daemon, that it answered one request with one result (docs/protocol.md, "Receipts").

use serde::{Deserialize, Serialize};

use crate::ids::{PublicKey, Signature};
use crate::wire::lines::{self, Answer, First, Hello};
use crate::wire::transcript::{Statement, Transcript, sha256};

/// The receipt file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Receipt {
    /// Of this format.
    pub version: u8,
    /// The four lines of the handshake, without their LF.
    pub lines: [String; 4],
    /// The plaintext of the request.
    pub request: String,
    /// The text of `result`, LF and payload with it.
    pub result: String,
    /// The daemon's signature.
    pub receipt: Signature,
}

/// What a good receipt proves.
#[derive(Debug)]
pub struct Proved {
    /// Who asked, as what.
    pub hello: Hello,
    /// Of which start of the daemon.
    pub generation: crate::ids::Generation,
}

impl Receipt {
    /// Checks everything that can be checked offline against the daemon key that the reader trusts.
    pub fn verify(&self, daemon: PublicKey) -> Result<Proved, String> {
        if self.version != 1 {
            return Err(format!("version {} of receipts is not known here", self.version));
        }
        let [first, challenge, daemon_proof, client_proof] = self.lines.each_ref().map(|line| format!("{line}\n"));
        let First::Hello(hello) = lines::read_first(first.as_bytes())? else {
            return Err("line 1 is not a hello".to_owned());
        };
        let Answer::Challenge(challenged) = lines::read_answer(challenge.as_bytes())? else {
            return Err("line 2 is not a challenge".to_owned());
        };
        if challenged.daemon != daemon {
            return Err(format!("it is of another daemon ({})", challenged.daemon));
        }
        let mut transcript = Transcript::new(first.as_bytes());
        transcript.add(challenge.as_bytes());
        if !Statement::DaemonProof(transcript.hash()).is_signed_by(daemon, &lines::read_proof(daemon_proof.as_bytes())?)
        {
            return Err("the daemon did not sign these handshake lines".to_owned());
        }
        lines::read_proof(client_proof.as_bytes())?;
        transcript.add(daemon_proof.as_bytes());
        transcript.add(client_proof.as_bytes());
        let statement = Statement::Receipt {
            t3: transcript.hash(),
            request: sha256(&[self.request.as_bytes()]),
            result: sha256(&[self.result.as_bytes()]),
        };
        if !statement.is_signed_by(daemon, &self.receipt) {
            return Err("the daemon did not sign this request and result".to_owned());
        }
        Ok(Proved { hello: *hello, generation: challenged.generation })
    }
}
