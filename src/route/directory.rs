//! Where each session is: what the registry publishes and workers read to route. Only the registry writes it.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};

use crate::account::Charge;
use crate::auth::gate::Authority;
use crate::auth::selection;
use crate::ids::SessionId;
use crate::limits::{NAMED_MAX, NAMED_MAX_BYTES};
use crate::wire::codes::{Candidate, Code, Refusal};
use crate::wire::rows::{CommandOffer, Facts, Row, State};
use crate::wire::selector::Selector;

use super::lane::{Lane, millis};

/// The latest state of a session, opaque.
pub struct Snapshot {
    /// One JSON text, unread.
    pub bytes: Vec<u8>,
    /// What it holds.
    pub _charge: Charge,
}

/// A registered program.
pub struct Session {
    /// Its id.
    pub id: SessionId,
    /// Its place in the order of registration.
    pub order: u64,
    /// Its commands.
    pub lane: Arc<Lane>,
    registered: jiff::Timestamp,
    facts: RwLock<Arc<Facts>>,
    snapshot: RwLock<Option<Arc<Snapshot>>>,
    start: Instant,
    last_seen_ms: AtomicU64,
    stale: Duration,
    charge: Mutex<Option<Charge>>,
}

impl Session {
    /// Just registered, just heard.
    pub fn new(
        id: SessionId,
        order: u64,
        lane: Arc<Lane>,
        facts: Arc<Facts>,
        snapshot: Option<Snapshot>,
        stale: Duration,
        charge: Charge,
    ) -> Arc<Self> {
        Arc::new(Self {
            id,
            order,
            lane,
            registered: jiff::Timestamp::now(),
            facts: RwLock::new(facts),
            snapshot: RwLock::new(snapshot.map(Arc::new)),
            start: Instant::now(),
            last_seen_ms: AtomicU64::new(0),
            stale,
            charge: Mutex::new(Some(charge)),
        })
    }

    /// What its producer last reported.
    pub fn facts(&self) -> Arc<Facts> {
        Arc::clone(&self.facts.read())
    }

    /// Its latest snapshot.
    pub fn snapshot(&self) -> Option<Arc<Snapshot>> {
        self.snapshot.read().clone()
    }

    /// The registry publishes an update.
    fn publish(&self, facts: Arc<Facts>, snapshot: Option<Snapshot>) {
        *self.facts.write() = facts;
        if let Some(snapshot) = snapshot {
            *self.snapshot.write() = Some(Arc::new(snapshot));
        }
    }

    /// It has ended and gives back what it held; its producer's worker knows it longer, for answers that come late.
    pub fn release(&self) {
        *self.charge.lock() = None;
        *self.snapshot.write() = None;
    }

    /// What it holds as a session goes over to the one that takes its place.
    pub fn take_charge(&self) -> Option<Charge> {
        self.charge.lock().take()
    }

    /// Its producer was heard.
    pub fn seen(&self) {
        self.last_seen_ms.store(millis(self.start.elapsed()), Relaxed);
    }

    /// When its producer was last heard.
    pub fn last_seen(&self) -> Instant {
        self.start + Duration::from_millis(self.last_seen_ms.load(Relaxed))
    }

    /// As a list shows it to a peer: commands that were not granted to it are not there.
    pub fn row(&self, authority: &Authority) -> Row {
        let facts = self.facts();
        let granted = |offer: &&CommandOffer| authority.credential().grant.allows(&offer.name);
        let silent = self.last_seen().elapsed();
        Row {
            session_id: self.id,
            title: facts.title.clone(),
            cwd: facts.cwd.clone(),
            repo_root: facts.repo_root.clone(),
            pid: facts.pid,
            started: facts.started,
            terminal: facts.terminal.clone(),
            labels: facts.labels.clone(),
            commands: facts.commands.iter().filter(granted).cloned().collect(),
            runtimes: facts.runtimes.clone(),
            max_in_flight: facts.max_in_flight,
            info: facts.info.clone(),
            registered: format!("{:.0}", self.registered),
            state: if silent < self.stale { State::Live } else { State::Stale },
            last_seen_ms: millis(silent),
            pending: self.lane.pending(),
        }
    }

    /// As an error names it.
    pub fn candidate(&self) -> Candidate {
        let facts = self.facts();
        Candidate { session_id: self.id, title: facts.title.clone(), cwd: facts.cwd.clone() }
    }
}

/// A session and digests of what selectors ask for most, so that a look at a thousand is a look at a thousand numbers.
/// Who passes is compared in full.
struct Entry {
    title: u64,
    cwd: u64,
    root: u64,
    session: Arc<Session>,
}

/// The digests of a selector; one that is absent lets everybody pass.
struct Wanted {
    title: Option<u64>,
    cwd: Option<u64>,
    /// Of every folder that contains the path.
    roots: Option<Vec<u64>>,
}

impl Wanted {
    fn lets_pass(&self, entry: &Entry) -> bool {
        self.title.is_none_or(|title| title == entry.title)
            && self.cwd.is_none_or(|cwd| cwd == entry.cwd)
            && self.roots.as_ref().is_none_or(|roots| roots.contains(&entry.root))
    }
}

#[derive(Default)]
struct Inner {
    by_id: HashMap<SessionId, Arc<Session>>,
    /// In order of registration.
    entries: Vec<Entry>,
}

impl Inner {
    fn position(&self, order: u64) -> Result<usize, usize> {
        self.entries.binary_search_by_key(&order, |entry| entry.session.order)
    }
}

/// All sessions.
#[derive(Default)]
pub struct Directory {
    inner: RwLock<Inner>,
    digests: RandomState,
}

impl Directory {
    fn entry(&self, session: Arc<Session>, facts: &Facts) -> Entry {
        Entry {
            title: self.digests.hash_one(&facts.title),
            // As paths: two that mean the same have the same digest.
            cwd: self.digests.hash_one(Path::new(&facts.cwd)),
            root: self.digests.hash_one(selection::root(facts)),
            session,
        }
    }

    fn wanted(&self, selector: &Selector) -> Wanted {
        let ancestors = |repo| Path::new(repo).ancestors().map(|folder| self.digests.hash_one(folder)).collect();
        Wanted {
            title: selector.title.as_ref().map(|title| self.digests.hash_one(title)),
            cwd: selector.cwd.as_ref().map(|cwd| self.digests.hash_one(Path::new(cwd))),
            roots: selector.repo.as_ref().map(ancestors),
        }
    }

    /// The registry publishes a session; one that had its id and place is replaced in the same step.
    pub fn insert(&self, session: Arc<Session>) {
        let entry = self.entry(Arc::clone(&session), &session.facts());
        let mut inner = self.inner.write();
        match inner.position(session.order) {
            Ok(place) => inner.entries[place] = entry,
            Err(place) => inner.entries.insert(place, entry),
        }
        inner.by_id.insert(session.id, session);
    }

    /// The registry publishes what a session has become.
    pub fn update(&self, session: &Arc<Session>, facts: Facts, snapshot: Option<Snapshot>) {
        let entry = self.entry(Arc::clone(session), &facts);
        let mut inner = self.inner.write();
        session.publish(Arc::new(facts), snapshot);
        if let Ok(place) = inner.position(session.order) {
            inner.entries[place] = entry;
        }
    }

    /// The registry takes one back.
    pub fn remove(&self, id: SessionId) -> Option<Arc<Session>> {
        let mut inner = self.inner.write();
        let session = inner.by_id.remove(&id)?;
        if let Ok(place) = inner.position(session.order) {
            inner.entries.remove(place);
        }
        Some(session)
    }

    /// The session of an id, for whomever.
    pub fn find(&self, id: SessionId) -> Option<Arc<Session>> {
        self.inner.read().by_id.get(&id).cloned()
    }

    /// Everybody, in order of registration.
    pub fn all(&self) -> Vec<Arc<Session>> {
        self.inner.read().entries.iter().map(|entry| Arc::clone(&entry.session)).collect()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.inner.read().by_id.len()
    }

    /// Those that the selector means and that exist for the peer, in order of registration, from `from` on.
    pub fn select(&self, selector: &Selector, authority: &Authority, from: u64) -> Vec<Arc<Session>> {
        let mut found = self.candidates(selector, from);
        found.retain(|session| is_meant(session, selector, authority));
        if selector.repo.is_some() {
            let nearest = found.iter().map(|session| selection::depth(&session.facts())).max();
            found.retain(|session| Some(selection::depth(&session.facts())) == nearest);
        }
        found
    }

    /// All that may be meant, and a few more.
    fn candidates(&self, selector: &Selector, from: u64) -> Vec<Arc<Session>> {
        let inner = self.inner.read();
        if let Some(id) = selector.session.as_ref().and_then(|text| text.parse::<SessionId>().ok()) {
            return inner.by_id.get(&id).filter(|session| session.order >= from).cloned().into_iter().collect();
        }
        let (Ok(first) | Err(first)) = inner.position(from);
        let wanted = self.wanted(selector);
        let passing = inner.entries[first..].iter().filter(|entry| wanted.lets_pass(entry));
        passing.map(|entry| Arc::clone(&entry.session)).collect()
    }

    /// The one session that the selector means.
    pub fn resolve(&self, selector: &Selector, authority: &Authority) -> Result<Arc<Session>, Refusal> {
        selector.check()?;
        let mut found = self.select(selector, authority, 0);
        match (found.pop(), found.len()) {
            (Some(session), 0) => Ok(session),
            (None, _) => Err(Refusal::from(Code::SessionNotFound).hint("usher list shows the sessions")),
            (Some(last), _) => {
                let sessions = named(found.iter().chain([&last]));
                Err(Refusal { sessions, ..Code::Ambiguous.into() }.hint("name one with --session ID"))
            }
        }
    }
}

/// As many of them as an error may name.
pub fn named<'a>(sessions: impl Iterator<Item = &'a Arc<Session>>) -> Vec<Candidate> {
    let mut room = NAMED_MAX_BYTES;
    let fits = |candidate: &Candidate| {
        let left = room.checked_sub(candidate.title.len() + candidate.cwd.len());
        room = left.unwrap_or(0);
        left.is_some()
    };
    sessions.take(NAMED_MAX).map(|session| session.candidate()).take_while(fits).collect()
}

/// One whose producer's gate is closed is gone, whether or not its worker has said so yet.
fn is_meant(session: &Session, selector: &Selector, authority: &Authority) -> bool {
    let facts = session.facts();
    session.lane.producer().authority().credential().gate.end().is_none()
        && selection::matches(selector, session.id, &facts)
        && authority.credential().grant.selects(session.id, &facts)
}
