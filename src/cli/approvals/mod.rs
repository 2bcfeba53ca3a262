//! `usher ask`, `approvals`, `approve`, `reject`: questions to a person.
//!
//! Owns: how a question is put, shown and answered. Invariant: [`ask`] says that something was approved for one reason
//! only, an answer that carries a decider's signature over this question.

pub mod ask;
pub mod decide;
mod follow;
pub mod list;

use serde::Serialize;

use crate::ids::ApprovalId;
use crate::wire::approvals::{Row, Shown};
use crate::wire::methods::Method;
use crate::wire::object;

use super::ask::{Asker, misread, read};
use super::trouble::Trouble;

/// Parameters of `approval.list`.
#[derive(Serialize)]
struct List<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    approval_id: Option<&'a str>,
}

/// A row, and what it shows while it is open.
#[derive(Debug)]
struct Question {
    row: Row,
    shown: Option<Shown>,
}

impl Question {
    fn id(&self) -> ApprovalId {
        self.row.approval_id
    }

    fn new(row: Row) -> Result<Self, Trouble> {
        let shown = row.text.as_ref().map(|text| object::read(text.as_bytes())).transpose();
        Ok(Self { shown: shown.map_err(|_| misread(Method::ApprovalList.name()))?, row })
    }
}

/// Those that are open; with a beginning of an id, those that have ended too.
fn questions(asker: &mut Asker, id: Option<&str>) -> Result<Vec<Question>, Trouble> {
    let name = Method::ApprovalList.name();
    let rows = asker.pages(Method::ApprovalList, &List { approval_id: id })?;
    rows.iter().map(|row| read::<Row>(row, name).and_then(Question::new)).collect()
}
