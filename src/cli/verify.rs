//! `usher verify`: what a receipt proves, found out without the daemon.

use std::fmt::Write as _;
use std::process::ExitCode;

use serde::Serialize;
use serde_json::value::RawValue;

use crate::client::ConnectFailure;
use crate::error::{Exit, Failure};
use crate::ids::{Fingerprint, Generation, PublicKey};
use crate::limits::FRAME_MAX_BYTES;
use crate::wire::lines::Role;
use crate::wire::message::{self, Header};
use crate::wire::object;
use crate::wire::receipt::Receipt;
use crate::wire::text::escaped;

use super::args::{Global, VerifyArgs};
use super::trouble::Trouble;
use super::{Outcome, ask, foreign, keys, out};

/// A request and a result at their largest, escaped as JSON strings.
const RECEIPT_MAX_BYTES: u64 = 4 * FRAME_MAX_BYTES as u64;

#[derive(Serialize)]
struct Document<'a> {
    verified: bool,
    method: &'a str,
    params: Option<&'a RawValue>,
    result: &'a RawValue,
    role: Role,
    fingerprint: Fingerprint,
    client: &'a str,
    generation: Generation,
    daemon: PublicKey,
}

/// Prints what it proves; exits 1 when it proves nothing.
pub fn main(global: &Global, args: &VerifyArgs) -> Outcome {
    let bytes = foreign::read(&args.file, RECEIPT_MAX_BYTES)?;
    let daemon = match &args.daemon_key {
        Some(key) => keys::public_key(key)?,
        None => ask::target(global)?.daemon_key().map_err(|failure| {
            let trouble = match failure {
                ConnectFailure::NotRunning => {
                    Failure::new(Exit::NotFound, "not-found", "there is no key of a daemon here").into()
                }
                other => Trouble::from(other),
            };
            trouble.hint("name the daemon's public key with --daemon-key KEY or @FILE")
        })?,
    };
    let receipt: Receipt =
        object::read(bytes.trim_ascii()).map_err(|why| unproved(&format!("it is no receipt: {why}")))?;
    let proved = receipt.verify(daemon).map_err(|why| unproved(&why))?;
    let request = message::read(receipt.request.as_bytes()).map_err(unproved)?;
    let Header::Request { method, params, .. } = &request.header else {
        return Err(unproved("what it is about is no request").into());
    };
    // The signed text: the daemon's fields, and behind an LF what an application said.
    let result = receipt.result.split_once('\n').map_or(receipt.result.as_str(), |(own, _)| own);
    let result: &RawValue = serde_json::from_str(result).map_err(|_| unproved("the result is no JSON"))?;
    let hello = &proved.hello;
    let document = Document {
        verified: true,
        method,
        params: *params,
        result,
        role: hello.role,
        fingerprint: hello.credential,
        client: &hello.client,
        generation: proved.generation,
        daemon,
    };
    if global.json {
        out::json(&document)?;
    } else {
        out::text(&human(&document))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn unproved(why: &str) -> Failure {
    Failure::new(Exit::Negative, "not-verified", format!("the receipt proves nothing: {why}"))
}

fn human(document: &Document<'_>) -> String {
    let mut text = String::from("verified: the daemon with this key answered this request with this result\n");
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:<13}{}", escaped(value, usize::MAX));
    };
    line("method", document.method);
    line("params", document.params.map_or("{}", RawValue::get));
    line("result", document.result.get());
    line("role", document.role.word());
    line("fingerprint", &document.fingerprint.to_string());
    line("client", document.client);
    line("generation", &document.generation.to_string());
    line("daemon", &document.daemon.to_string());
    text
}
