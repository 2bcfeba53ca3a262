//! Whether two files are one unbroken audit, and whether it ends at its head. Pure: bytes in, a verdict out.
//!
//! Invariant: whatever is not a line in its place is named, the first one first. Bytes that are no line are let pass in one
//! case: the next line is a `torn` that has their exact number and digest, which is what a daemon writes that finds them
//! after a crash.

use std::fmt;

use serde::Serialize;

use crate::ids::Digest;
use crate::wire::transcript::sha256;

use super::chain::{self, Flaw, Head, Line};

/// A file's name and its bytes.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// For the verdict.
    pub name: &'a str,
    /// All of it.
    pub bytes: &'a [u8],
}

/// What an unbroken audit holds.
#[derive(Debug, PartialEq, Eq)]
pub struct Verified {
    /// The number of the first line; what came before it has been rotated away.
    pub first: u64,
    /// The last line.
    pub end: Head,
    /// Lines that tell of something that is missing.
    pub notes: Vec<Note>,
}

/// A line that tells of something that is missing, truthfully.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Note {
    /// Its number.
    pub seq: u64,
    /// Its word: `torn`, `lost` or `left-out`.
    pub fact: String,
}

/// The first thing that is not as it should be.
#[derive(Debug, PartialEq, Eq)]
pub struct Broken {
    /// In which file.
    pub file: String,
    /// In which of its lines, from 1 on.
    pub line: usize,
    /// The number that is missing or wrong there, where one can be told.
    pub seq: Option<u64>,
    /// What.
    pub why: Why,
}

/// What is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    /// No line.
    Flaw(Flaw),
    /// A last line without its end: torn, or just being written.
    Unfinished,
    /// Another line has its place.
    Follows {
        /// What it would have to follow.
        after: u64,
    },
    /// The file does not begin with a line that begins one.
    Beginning,
    /// A line that begins a file, in the middle of one.
    BeginsAgain,
    /// It goes on from a file that is not there.
    NoOld,
    /// It tells of torn bytes, and others or none stand before it.
    NotTorn,
    /// A daemon found that the end had been cut off or altered.
    EndDiffers,
    /// Lines are missing behind it.
    CutOff {
        /// The last line that there was.
        head: u64,
    },
    /// The files begin behind the line that they have to reach.
    BeginsBehind {
        /// That line.
        head: u64,
    },
    /// The current file has become the old copy without a daemon's doing.
    Moved,
    /// Lines stand where none was written.
    Beyond,
    /// It is not the line that was written there.
    AnotherHead,
    /// There is no line at all.
    Nothing,
}

impl fmt::Display for Why {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flaw(flaw) => out.write_str(flaw.words()),
            Self::Unfinished => out.write_str("it has no end: a write was cut off"),
            Self::Follows { after } => write!(out, "it does not follow line seq {after}, which stands before it"),
            Self::Beginning => out.write_str("the file does not begin with it: what stood before it is missing"),
            Self::BeginsAgain => out.write_str("it begins a file, and stands in the middle of one"),
            Self::NoOld => out.write_str("it goes on from an old file, and there is none"),
            Self::NotTorn => out.write_str("it tells of torn bytes, and those before it are others or none"),
            Self::EndDiffers => out
                .write_str("it says that a daemon found the file cut off or altered: what stood before it is missing"),
            Self::CutOff { head } => write!(out, "the file ends before it: the last line was seq {head}"),
            Self::BeginsBehind { head } => {
                write!(
                    out,
                    "the files begin with it, and seq {head}, which the daemon has written last, is not in them"
                )
            }
            Self::Moved => out.write_str("there is no line: the file was moved over the old copy"),
            Self::Beyond => out.write_str("it stands behind the last line that a daemon has written"),
            Self::AnotherHead => out.write_str("it is not the line that the daemon has written"),
            Self::Nothing => out.write_str("there is no line"),
        }
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} line {}", self.file, self.line)?;
        if let Some(seq) = self.seq {
            write!(out, " (seq {seq})")?;
        }
        write!(out, ": {}", self.why)
    }
}

/// What the audit has to end at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// Nobody knows.
    Unknown,
    /// This line has to be there; more may have come since.
    Reaches(Head),
    /// This line has to be the last.
    Ends(Head),
}

/// Checks the old file, the current one, and the bound.
pub fn check(old: Option<Source<'_>>, current: Option<Source<'_>>, bound: Bound) -> Result<Verified, Broken> {
    let old = old.filter(|source| !source.bytes.is_empty());
    let current_name = current.map_or(super::FILE, |source| source.name);
    let current = current.filter(|source| !source.bytes.is_empty());
    let verified = Verified { first: 0, end: Head::NONE, notes: Vec::new() };
    let mut walk = Walk { bound, verified, may_go_on: true, last: None };
    let has_current = current.is_some();
    if let Some(old) = old {
        walk.file(old)?;
    }
    walk.may_go_on = false;
    if let Some(current) = current {
        walk.file(current)?;
    }
    walk.end(current_name, has_current)
}

struct Walk {
    bound: Bound,
    verified: Verified,
    /// Whether the first line of all may go on from what was rotated away: in the old file.
    may_go_on: bool,
    /// File and number of the last line.
    last: Option<(String, usize)>,
}

/// Bytes that are no line, until the line behind them says whether they were torn.
struct Doubtful {
    /// The line in which they begin.
    line: usize,
    from: usize,
    flaw: Flaw,
}

impl Walk {
    fn file(&mut self, source: Source<'_>) -> Result<(), Broken> {
        let (mut number, mut at) = (0, 0);
        let mut doubtful: Option<Doubtful> = None;
        let mut is_first = true;
        while at < source.bytes.len() {
            number += 1;
            let (from, left) = (at, &source.bytes[at..]);
            let broken = |line, seq, why| Err(Broken { file: source.name.to_owned(), line, seq, why });
            let Some(length) = left.iter().position(|byte| *byte == b'\n') else {
                return match doubtful {
                    Some(Doubtful { line, flaw, .. }) => broken(line, None, Why::Flaw(flaw)),
                    None => broken(number, None, Why::Unfinished),
                };
            };
            at += length + 1;
            let line = match chain::read(&left[..length]) {
                Ok(line) => line,
                Err(flaw) => {
                    doubtful.get_or_insert(Doubtful { line: number, from, flaw });
                    continue;
                }
            };
            // Without the LF that ended them.
            let torn = doubtful.take().map(|doubtful| (source.bytes.get(doubtful.from..from - 1), doubtful));
            match (&torn, line.fact == "torn") {
                (Some((bytes, _)), true) if bytes.is_some_and(|bytes| is_told(&line, bytes)) => {}
                (Some((_, doubtful)), _) => return broken(doubtful.line, None, Why::Flaw(doubtful.flaw)),
                (None, true) => return broken(number, Some(line.seq), Why::NotTorn),
                (None, false) => {}
            }
            self.line(&line, is_first).or_else(|why| broken(number, Some(line.seq), why))?;
            is_first = false;
            self.last = Some((source.name.to_owned(), number));
        }
        match doubtful {
            Some(Doubtful { line, flaw, .. }) => {
                Err(Broken { file: source.name.to_owned(), line, seq: None, why: Why::Flaw(flaw) })
            }
            None => Ok(()),
        }
    }

    /// One line in its place.
    fn line(&mut self, line: &Line, begins: bool) -> Result<(), Why> {
        let end = self.verified.end;
        match line.fact.as_str() {
            "begun" if !begins => return Err(Why::BeginsAgain),
            "continued" if !begins => return Err(Why::BeginsAgain),
            "begun" if self.last.is_none() && line.follows(Head::NONE) => {}
            "continued" if self.last.is_none() && self.may_go_on => {}
            "continued" if self.last.is_none() => return Err(Why::NoOld),
            "begun" => return Err(Why::Follows { after: end.seq }),
            _ if begins && line.fact != "continued" => return Err(Why::Beginning),
            _ if !line.follows(end) => return Err(Why::Follows { after: end.seq }),
            "end-differs" => return Err(Why::EndDiffers),
            _ => {}
        }
        let is_first_of_all = self.verified.first == 0;
        if is_first_of_all {
            self.verified.first = line.seq;
        }
        if matches!(line.fact.as_str(), "torn" | "lost" | "left-out") {
            self.verified.notes.push(Note { seq: line.seq, fact: line.fact.clone() });
        }
        self.verified.end = line.head();
        match self.bound {
            Bound::Reaches(head) | Bound::Ends(head) if head.seq == line.seq && head != line.head() => {
                Err(Why::AnotherHead)
            }
            Bound::Ends(head) if line.seq > head.seq => Err(Why::Beyond),
            Bound::Reaches(Head { seq: head, .. }) if is_first_of_all && line.seq > head => {
                Err(Why::BeginsBehind { head })
            }
            _ => Ok(()),
        }
    }

    fn end(self, current: &str, has_current: bool) -> Result<Verified, Broken> {
        let end = self.verified.end;
        let (file, line) = self.last.map_or_else(|| (current.to_owned(), 1), |(file, line)| (file, line + 1));
        match self.bound {
            Bound::Reaches(head) | Bound::Ends(head) if head.seq > end.seq => {
                Err(Broken { file, line, seq: Some(end.seq + 1), why: Why::CutOff { head: head.seq } })
            }
            _ if end.seq == 0 => Err(Broken { file, line, seq: None, why: Why::Nothing }),
            // A daemon that stops has its last line in the current file.
            Bound::Ends(_) if !has_current => {
                Err(Broken { file: current.to_owned(), line: 1, seq: None, why: Why::Moved })
            }
            _ => Ok(self.verified),
        }
    }
}

fn is_told(line: &Line, torn: &[u8]) -> bool {
    line.bytes == Some(torn.len() as u64) && line.sha256 == Some(Digest(sha256(&[torn])))
}

#[cfg(test)]
mod tests;
