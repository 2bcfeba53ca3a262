//! `usher keys`: credentials, with the operator's key.

mod bundle;
mod enroll;
mod public;
mod records;
mod renew;

use std::process::ExitCode;

use serde::{Deserialize, Serialize};

use crate::client::{ConnectFailure, Hello, Target, connect};
use crate::error::{Exit, Failure};
use crate::ids::CredentialId;
use crate::wire::codes::Code;
use crate::wire::lines::Role;
use crate::wire::methods::Method;

use super::args::{Global, Grantee, KeysArgs};
use super::ask::{self, Asker};
use super::trouble::Trouble;
use super::{Outcome, out, receipt};

pub use public::public_key;

#[derive(Serialize)]
struct Named {
    credential: CredentialId,
}

#[derive(Serialize, Deserialize)]
struct Revoked {
    credential: CredentialId,
    label: String,
    cut: u64,
}

/// What the verbs below it need.
struct Operator<'a> {
    global: &'a Global,
    target: Target,
    asker: Asker,
}

/// Does what was said.
pub fn main(global: &Global, args: KeysArgs) -> Outcome {
    ask::operator_is_meant(global)?;
    let target = ask::target(global)?;
    // What can be refused without a daemon is refused first.
    if let KeysArgs::New { out, .. } = &args {
        bundle::refuse_existing(out)?;
    }
    let asker = Asker::connect_as(&target, Role::Operator)?;
    let mut operator = Operator { global, target, asker };
    match args {
        KeysArgs::List { all } => records::list(&mut operator, all),
        KeysArgs::Show { who } => records::show(&mut operator, &who),
        KeysArgs::New { grant, out } => bundle::new(&mut operator, &grant, &out),
        KeysArgs::Enroll { grant, public_key } => enroll::given(&mut operator, &grant, &public_key),
        KeysArgs::Revoke { who, receipt } => revoke(&mut operator, &who, receipt.as_deref()),
        KeysArgs::Renew { who: Grantee::Credential(who), expires } => renew::end(&mut operator, &who, expires),
        KeysArgs::Renew { who: Grantee::Default(role), expires } => renew::default(&mut operator, role, expires),
    }
}

fn revoke(operator: &mut Operator<'_>, who: &str, receipt: Option<&std::path::Path>) -> Outcome {
    let credential = records::find(&mut operator.asker, who)?.credential;
    let place = receipt::Place::take(receipt)?;
    let reply = match operator.asker.ask_signed(Method::CredentialRevoke, &Named { credential }) {
        Err(trouble) if trouble.code() == Code::ConnectionLost.word() => {
            return own(operator, credential, trouble, place.is_some());
        }
        done => done?,
    };
    receipt::keep(place, reply.receipt.as_ref())?;
    let revoked: Revoked = ask::read(&reply.result, Method::CredentialRevoke.name())?;
    if operator.global.json {
        out::json(&revoked)?;
    } else {
        let label = crate::wire::text::escaped(&revoked.label, 64);
        let cut = match revoked.cut {
            0 => "it had no connection".to_owned(),
            1 => "1 connection was cut".to_owned(),
            count => format!("{count} connections were cut"),
        };
        out::text(&format!("revoked {} ({label}); {cut}\n", revoked.credential))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// An operator that revokes the credential it speaks with is cut before it hears of it; a hello tells.
fn own(operator: &Operator<'_>, credential: CredentialId, trouble: Trouble, receipt: bool) -> Outcome {
    match connect(&operator.target, &Hello::new(Role::Operator)) {
        Err(ConnectFailure::Refused(Code::Revoked)) if receipt => {
            let message = format!("revoked {credential}, with which this was asked: its receipt was cut off");
            Err(Failure::new(Exit::Negative, "no-receipt", message).into())
        }
        Err(ConnectFailure::Refused(Code::Revoked)) if operator.global.json => {
            out::json(&Named { credential })?;
            Ok(ExitCode::SUCCESS)
        }
        Err(ConnectFailure::Refused(Code::Revoked)) => {
            out::text(&format!("revoked {credential}, with which this was asked\n"))?;
            Ok(ExitCode::SUCCESS)
        }
        _ => Err(trouble),
    }
}
