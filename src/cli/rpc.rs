//! `usher rpc`: any method of the protocol, for what has no verb and for trying things.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::error::Failure;
use crate::limits::{HEADER_MAX_BYTES, Limits};
use crate::wire::codes::Delivery;
use crate::wire::lines::Role;
use crate::wire::methods::Method;
use crate::wire::receipt::Receipt;

use super::args::{Global, RpcArgs};
use super::ask::{self, Asker};
use super::payload::{self, Json};
use super::{Outcome, out, trouble};

/// For a method that names no deadline.
const PATIENCE_MS: u64 = 30_000;
/// For the daemon's own answer after a deadline.
const SLACK: Duration = Duration::from_secs(5);

#[derive(Serialize)]
struct Document<'a> {
    result: &'a RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    receipt: Option<&'a Receipt>,
}

/// What is looked at in the parameters; all else is the method's.
#[derive(Default, Deserialize)]
struct Seen {
    #[serde(default)]
    deadline_ms: Option<u64>,
    #[serde(default)]
    receipt: Option<bool>,
}

/// Calls it and prints what came.
pub fn main(global: &Global, args: &RpcArgs) -> Outcome {
    let params = args.params.as_ref().map(|params| payload::input(params, HEADER_MAX_BYTES as u64)).transpose()?;
    let params = params.as_ref().map_or("{}", Json::get);
    let object: Map<String, Value> =
        serde_json::from_str(params).map_err(|_| Failure::usage("the parameters are not a JSON object"))?;
    let seen: Seen = serde_json::from_str(params).unwrap_or_default();
    let limits = Limits::default();
    let most = limits.snapshot_bytes.max(limits.result_bytes);
    let payload = args.payload.as_ref().map(|payload| payload::input(payload, most)).transpose()?;
    let payload = payload.as_ref().map(|json| json.get().as_bytes());

    let target = ask::target(global)?;
    let role = args.role.unwrap_or_else(|| match Method::from_name(&args.method) {
        Some(method) if method.is_for(Role::Caller) => ask::role_for(&target, method),
        Some(method) => Role::ALL.into_iter().find(|role| method.is_for(*role)).unwrap_or(Role::Caller),
        None => Role::Caller,
    });
    if role == Role::Operator {
        ask::operator_is_meant(global)?;
    }
    let asker = Asker::connect_as(&target, role)?;
    let deadline =
        Instant::now() + Duration::from_millis(seen.deadline_ms.unwrap_or(PATIENCE_MS).min(86_400_000)) + SLACK;
    let called = if seen.receipt == Some(true) && payload.is_none() {
        let mut object = object;
        object.remove("receipt");
        asker.caller().call_signed(&args.method, &object, None, deadline)
    } else {
        let params =
            RawValue::from_string(params.to_owned()).map_err(|_| Failure::usage("the parameters are no JSON"))?;
        asker.caller().call(&args.method, &params, payload, deadline)
    };
    let reply = called.map_err(|error| {
        let delivery = error.delivery();
        let trouble = trouble::call(&args.method, error);
        // Only of a command does the word say anything.
        if args.method == Method::SessionSend.name() || delivery == Delivery::Delivered {
            trouble.delivery(delivery)
        } else {
            trouble
        }
    })?;
    let payload = reply.payload.as_deref().map(Json::new).transpose().map_err(|_| ask::misread(&args.method))?;
    let payload = payload.as_ref().map(Json::raw);
    out::json(&Document { result: &reply.result, payload, receipt: reply.receipt.as_ref() })?;
    Ok(ExitCode::SUCCESS)
}
