//! `usher status` and `usher health`: the daemon, its limits and who uses them.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::client::{self, ConnectFailure, failure};
use crate::ids::{CredentialId, Generation};
use crate::wire::lines::{Range, Role};
use crate::wire::methods::Method;
use crate::wire::object;
use crate::wire::text::escaped;

use super::args::Global;
use super::ask::{self, Asker, Nothing};
use super::table::{self, Column};
use super::{Outcome, out, time};

/// For a health line: nothing in it is work.
const HEALTH: Duration = Duration::from_secs(2);

/// Read leniently: a newer daemon may say more.
#[derive(Deserialize)]
struct Status {
    generation: Generation,
    build: String,
    #[serde(deserialize_with = "object::object")]
    protocol: Range,
    draining: bool,
    sessions: u64,
    /// This and the rest are not told in protocol 0.
    pid: Option<u32>,
    started: Option<jiff::Timestamp>,
    approvals: Option<u64>,
    #[serde(default)]
    audit: Option<AuditState>,
    #[serde(default)]
    accounts: Vec<Account>,
    #[serde(default)]
    credentials: Vec<Holder>,
}

#[derive(Deserialize)]
struct AuditState {
    state: String,
    seq: u64,
    lost: u64,
}

#[derive(Deserialize)]
struct Account {
    name: String,
    used: u64,
    peak: u64,
    limit: u64,
    refused: u64,
}

#[derive(Deserialize)]
struct Holder {
    credential: CredentialId,
    label: String,
    role: String,
    connections: u64,
    in_flight: u64,
    queued: u64,
    rejected: u64,
}

const ACCOUNTS: &[Column] = &[
    Column::new("ACCOUNT", 32),
    Column::number("USED"),
    Column::number("PEAK"),
    Column::number("LIMIT"),
    Column::number("REFUSED"),
];

const HOLDERS: &[Column] = &[
    Column::new("CREDENTIAL", 22),
    Column::new("LABEL", 32),
    Column::new("ROLE", 8),
    Column::number("CONNECTIONS"),
    Column::number("IN FLIGHT"),
    Column::number("QUEUED"),
    Column::number("REJECTED"),
];

/// Shows it; exits 3 without a daemon.
pub fn main(global: &Global) -> Outcome {
    let target = ask::target(global)?;
    // An operator sees every holder, and gets in when all other places are taken.
    let role = if global.operator { Role::Operator } else { ask::role_for(&target, Method::DaemonStatus) };
    // Inside a session the operator's key is not used by accident: there the refusal has to do.
    let mut asker = match ask::operator_is_meant(global) {
        Ok(()) => Asker::connect_any(&target, role)?.0,
        Err(_) => Asker::connect_as(&target, role)?,
    };
    let reply = asker.ask(Method::DaemonStatus, &Nothing {})?;
    if global.json {
        #[derive(Serialize)]
        struct Document<'a> {
            daemon: &'static str,
            client: &'static str,
            status: &'a RawValue,
        }
        out::json(&Document { daemon: "running", client: client::BUILD, status: &reply.result })?;
    } else {
        let status: Status = ask::read(&reply.result, Method::DaemonStatus.name())?;
        out::text(&human(&status))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn human(status: &Status) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:<12}{}", escaped(value, 400));
    };
    let process = status.pid.map(|pid| format!(", process {pid}")).unwrap_or_default();
    line("daemon", &format!("{}{process}", status.build));
    if version(&status.build) != version(client::BUILD) {
        line("this", client::BUILD);
    }
    let numbers =
        |range| failure::range(range).trim_start_matches("protocols ").trim_start_matches("protocol ").to_owned();
    let is_ours = Range::OURS.common(status.protocol).is_some();
    let ours = if is_ours { String::new() } else { format!(", and this speaks {}", numbers(Range::OURS)) };
    line("protocol", &format!("{}{ours}", numbers(status.protocol)));
    if let Some(started) = status.started {
        let up = time::age(time::since_ms(u64::try_from(started.as_millisecond()).unwrap_or(0)));
        line("started", &format!("{started:.0}, {up} ago"));
    }
    line("generation", &status.generation.to_string());
    let draining = if status.draining { ", draining: no new ones, the daemon ends with the last" } else { "" };
    line("sessions", &format!("{}{draining}", status.sessions));
    if let Some(approvals) = status.approvals {
        line("approvals", &approvals.to_string());
    }
    if let Some(AuditState { state, seq, lost }) = &status.audit {
        let lost = if *lost > 0 { format!(", {lost} facts without a line") } else { String::new() };
        line("audit", &format!("{state}, line {seq}{lost}"));
    }
    let rows: Vec<_> = status.accounts.iter().map(account).collect();
    if !rows.is_empty() {
        let _ = write!(text, "\n{}", table::text(ACCOUNTS, &rows, None));
    }
    let rows: Vec<_> = status.credentials.iter().map(holder).collect();
    if !rows.is_empty() {
        let _ = write!(text, "\n{}", table::text(HOLDERS, &rows, None));
    }
    text
}

/// `0.1.0` of `usherd/0.1.0`.
fn version(build: &str) -> &str {
    build.split_once('/').map_or(build, |(_, version)| version)
}

fn account(account: &Account) -> Vec<String> {
    let numbers = [account.used, account.peak, account.limit, account.refused];
    std::iter::once(account.name.clone()).chain(numbers.map(|number| number.to_string())).collect()
}

fn holder(holder: &Holder) -> Vec<String> {
    let numbers = [holder.connections, holder.in_flight, holder.queued, holder.rejected];
    let words = [holder.credential.to_string(), holder.label.clone(), holder.role.clone()];
    words.into_iter().chain(numbers.map(|number| number.to_string())).collect()
}

/// Says whether a daemon is alive; exits 3 when none is.
pub fn health(global: &Global) -> Outcome {
    let target = ask::target(global)?;
    let generation = match client::health(&target, HEALTH) {
        // It went away while it was asked: is there another?
        Err(ConnectFailure::Lost) => client::health(&target, HEALTH),
        done => done,
    }?;
    if global.json {
        out::json(&Value::from_iter([("ok", Value::from(true)), ("generation", generation.to_string().into())]))?;
    } else {
        out::text("alive\n")?;
    }
    Ok(ExitCode::SUCCESS)
}
