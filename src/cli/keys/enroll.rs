//! `usher keys enroll`: a credential for a public key.

use std::process::ExitCode;

use serde::{Deserialize, Serialize};

use crate::auth::record::ScopeList;
use crate::ids::{CredentialId, Fingerprint, PublicKey};
use crate::wire::lines::Role;
use crate::wire::methods::Method;
use crate::wire::selector::Selector;

use super::super::args::{KeyArg, NewKey};
use super::super::ask::{self, Asker};
use super::super::trouble::Trouble;
use super::super::{Outcome, out, select, time};
use super::{Operator, public};

/// Parameters of `credential.enroll`.
#[derive(Serialize)]
pub struct Enroll {
    pub public_key: PublicKey,
    pub label: String,
    pub role: Role,
    pub scopes: ScopeList,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sessions: Option<Vec<Selector>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commands: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires: Option<jiff::Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replaces: Option<CredentialId>,
}

/// Its result.
#[derive(Serialize, Deserialize)]
pub struct Enrolled {
    pub credential: CredentialId,
    pub fingerprint: Fingerprint,
}

impl Enroll {
    /// What was said, for a key.
    pub fn new(grant: &NewKey, public_key: PublicKey) -> Result<Self, Trouble> {
        let sessions = grant.sessions.iter().map(select::grant).collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            public_key,
            label: grant.label.clone(),
            role: grant.role,
            scopes: grant.scopes.clone().map_or(ScopeList::Row, ScopeList::Named),
            sessions: Some(sessions).filter(|sessions| !sessions.is_empty()),
            commands: grant.commands.clone(),
            expires: grant.expires.map(time::from_now).transpose()?,
            replaces: None,
        })
    }

    /// Asks the daemon.
    pub fn ask(&self, asker: &mut Asker) -> Result<Enrolled, Trouble> {
        let reply = asker.ask(Method::CredentialEnroll, self)?;
        ask::read(&reply.result, Method::CredentialEnroll.name())
    }
}

/// For a key that was made elsewhere.
pub fn given(operator: &mut Operator<'_>, grant: &NewKey, key: &KeyArg) -> Outcome {
    let enroll = Enroll::new(grant, public::public_key(key)?)?;
    let enrolled = enroll.ask(&mut operator.asker)?;
    if operator.global.json {
        out::json(&enrolled)?;
    } else {
        out::text(&format!("{}\n", enrolled.credential))?;
    }
    Ok(ExitCode::SUCCESS)
}
