//! A list that comes in pages, read as one.

use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::wire::object;

use super::{CallError, Caller, Reply};

/// A daemon that never ends a list is not followed for ever.
const PAGES_MAX: usize = 4_096;

/// The items of a list, each as its JSON text; a page is asked for when those before it are used up. After an error there
/// are no more.
pub struct Pages<'a> {
    caller: &'a Caller,
    method: String,
    params: Map<String, Value>,
    patience: Duration,
    items: std::vec::IntoIter<Box<RawValue>>,
    asked: usize,
    is_over: bool,
}

#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    next: Option<Value>,
}

impl Caller {
    /// A list by its method; `patience` is for each page.
    pub fn pages(&self, method: &str, params: Map<String, Value>, patience: Duration) -> Pages<'_> {
        let items = Vec::new().into_iter();
        Pages { caller: self, method: method.to_owned(), params, patience, items, asked: 0, is_over: false }
    }
}

impl Pages<'_> {
    fn more(&mut self) -> Result<(), CallError> {
        self.asked += 1;
        if self.asked > PAGES_MAX {
            return Err(CallError::Misread);
        }
        let deadline = Instant::now() + self.patience;
        let Reply { result, payload, .. } = self.caller.call(&self.method, &self.params, None, deadline)?;
        let items: Vec<_> =
            serde_json::from_slice(payload.as_deref().unwrap_or(b"[]")).map_err(|_| CallError::Misread)?;
        self.items = items.into_iter();
        let page: Page = object::read(result.get().as_bytes()).map_err(|_| CallError::Misread)?;
        match page.next {
            Some(next) => drop(self.params.insert("page".to_owned(), next)),
            None => self.is_over = true,
        }
        Ok(())
    }
}

impl Iterator for Pages<'_> {
    type Item = Result<Box<RawValue>, CallError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(item) = self.items.next() {
                return Some(Ok(item));
            }
            if self.is_over {
                return None;
            }
            if let Err(error) = self.more() {
                self.is_over = true;
                return Some(Err(error));
            }
        }
    }
}
