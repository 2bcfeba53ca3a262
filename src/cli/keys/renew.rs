//! `usher keys renew`: a new end for a credential, or a new key for a role's default.
//!
//! Invariant: at no moment is the only key of a role one that the daemon does not know. The new key lies beside the old
//! one before it is enrolled and takes its name only after; where the answer is lost, as it is when an operator replaces
//! the credential that it speaks with, a hello with the new key decides.

use std::process::ExitCode;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::auth::identity::Identity;
use crate::auth::record::ScopeList;
use crate::client::{ConnectFailure, Hello, Target, connect};
use crate::error::{Exit, Failure};
use crate::ids::{CredentialId, Fingerprint};
use crate::store::pem::{self, Seed};
use crate::store::{Dir, StoreError};
use crate::wire::codes::Code;
use crate::wire::lines::Role;
use crate::wire::methods::Method;
use crate::wire::text::escaped;

use super::super::ask::{self, Asker};
use super::super::trouble::Trouble;
use super::super::{Outcome, out, time};
use super::enroll::{Enroll, Enrolled};
use super::{Operator, records};

/// Between two programs that renew the same key.
const RENEW_LOCK: &str = "renew.lock";

#[derive(Serialize)]
struct Renew {
    credential: CredentialId,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<jiff::Timestamp>,
}

#[derive(Serialize, Deserialize)]
struct Renewed {
    credential: CredentialId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires: Option<jiff::Timestamp>,
}

/// A new end; none without a duration.
pub fn end(operator: &mut Operator<'_>, who: &str, expires: Option<Duration>) -> Outcome {
    let credential = records::find(&mut operator.asker, who)?.credential;
    let expires = expires.map(time::from_now).transpose()?;
    let reply = operator.asker.ask(Method::CredentialRenew, &Renew { credential, expires })?;
    let renewed: Renewed = ask::read(&reply.result, Method::CredentialRenew.name())?;
    if operator.global.json {
        out::json(&renewed)?;
    } else {
        match renewed.expires {
            Some(expires) => out::text(&format!("{} ends at {expires:.0}\n", renewed.credential))?,
            None => out::text(&format!("{} has no end\n", renewed.credential))?,
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A new key and record in place of a role's default.
pub fn default(operator: &mut Operator<'_>, role: Role, expires: Option<Duration>) -> Outcome {
    let Some(paths) = operator.target.paths().cloned() else {
        let message = "a default key lies in the daemon's directory, which a bundle does not lead to";
        return Err(Failure::new(Exit::Usage, "usage", message).hint("unset USHER_CREDENTIAL").into());
    };
    let keys = Dir::open(&paths.keys())?;
    let _one_at_a_time = keys.lock_wait(RENEW_LOCK)?;
    let old = records::default(&mut operator.asker, role)?;
    let next = New { keys: &keys, name: format!("{}.pem", role.word()), aside: format!("{}.pem.new", role.word()) };
    let seed = Seed::random();
    pem::write(&keys, &next.aside, &seed)?;
    let identity = Identity::from_seed(&seed).map_err(|why| Failure::new(Exit::Bug, "internal", why))?;
    let public_key = identity.public();
    let enroll = Enroll {
        public_key,
        label: old.label.clone(),
        role,
        scopes: ScopeList::Row,
        sessions: None,
        commands: None,
        expires: expires.map(time::from_now).transpose()?,
        replaces: Some(old.credential),
    };
    let enrolled = match enroll.ask(&mut operator.asker) {
        Ok(enrolled) => enrolled,
        Err(trouble) if is_open(&trouble) => next.decide(&operator.target, role, public_key.fingerprint(), trouble)?,
        Err(trouble) => {
            next.forget();
            return Err(trouble);
        }
    };
    next.take()?;
    told(operator, &enrolled, &old, role)
}

fn told(operator: &Operator<'_>, enrolled: &Enrolled, old: &records::Record, role: Role) -> Outcome {
    if operator.global.json {
        out::json(enrolled)?;
    } else {
        let (old, label) = (old.credential, escaped(&old.label, 64));
        out::text(&format!("{} has a new key; {old} ({label}) is revoked\n", role.word()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether it is not known if the daemon did it.
fn is_open(trouble: &Trouble) -> bool {
    [Code::ConnectionLost.word(), Code::Timeout.word(), Code::ShuttingDown.word()].contains(&trouble.code())
}

/// A key that lies beside the one it is to replace.
struct New<'a> {
    keys: &'a Dir,
    name: String,
    aside: String,
}

impl New<'_> {
    /// It becomes the role's key.
    fn take(&self) -> Result<(), StoreError> {
        self.keys.rename(&self.aside, &self.name)
    }

    /// It was not enrolled.
    fn forget(&self) {
        let _ = self.keys.remove(&self.aside);
    }

    /// Asks the daemon whether it knows the new key: in the records, or by using it where the old operator is gone.
    fn decide(&self, target: &Target, role: Role, key: Fingerprint, trouble: Trouble) -> Result<Enrolled, Trouble> {
        let target = if role == Role::Operator { target.with_key(&self.aside) } else { target.clone() };
        let known = match connect(&target, &Hello::new(Role::Operator)) {
            Ok(connection) => Asker::over(connection)
                .map_err(|_| ())
                .and_then(|mut asker| records::of_key(&mut asker, key).map_err(|_| ())),
            Err(ConnectFailure::Refused(Code::Unauthenticated)) => Ok(None),
            Err(_) => Err(()),
        };
        match known {
            Ok(Some(credential)) => Ok(Enrolled { credential, fingerprint: key }),
            Ok(None) => {
                self.forget();
                Err(trouble)
            }
            Err(()) => {
                let aside = self.keys.path().join(&self.aside);
                let (aside, name) = (escaped(&aside.to_string_lossy(), 4096), &self.name);
                Err(trouble.hint(format!(
                    "whether the daemon took the new key is not known: if the old one is refused, rename {aside} to {name}"
                )))
            }
        }
    }
}
