//! `usher run`: a program under a session of its own.

use std::collections::BTreeMap;
use std::ffi::OsString;

/// What was said on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunArgs {
    /// In place of the program's name.
    pub title: Option<String>,
    /// What selectors may ask for.
    pub labels: BTreeMap<String, String>,
    /// Names of commands and what runs for each, in order.
    pub on: Vec<(String, String)>,
    /// Commands at once.
    pub max_in_flight: u32,
    /// The program and its arguments.
    pub command: Vec<OsString>,
}
