//! The one owner of sessions: a thread that applies what workers report and publishes the directory.
//!
//! Workers may wait for it; it never waits for a worker: it answers over channels with room for the answer and writes to
//! peers without blocking. What it applies it admits again, and holds the permit until the directory shows it.

pub mod approvals;
pub mod leases;
pub mod report;
mod table;
mod waiters;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use serde::Serialize;

use crate::account::{Charge, Full, Pool};
use crate::audit::{Audit, Fact, sized};
use crate::auth::gate::Authority;
use crate::ids::{ConnectionId, SessionId};
use crate::limits::Limits;
use crate::route::clock::Clock;
use crate::route::directory::{self, Directory, Session, Snapshot};
use crate::route::feed::{Audience, Feed};
use crate::route::lane::{Lane, LaneBounds};
use crate::route::peer::Peer;
use crate::route::quiescence::{Quiescence, Verdict};
use crate::wire::codes::{Code, Refusal};
use crate::wire::events::{Event, GoneReason};
use crate::wire::methods::Method;
use crate::wire::rows::Facts;
use crate::wire::selector::Selector;

use approvals::Approvals;
use leases::{Claimed, Leases};
use report::{Asked, Register, Registered, Report, Rotate, Step, Stop, StopReason, Update};
use table::Table;
use waiters::Waiters;

/// The registry's state; [`Registry::run`] is its thread.
pub struct Registry {
    table: Table,
    waiters: Waiters,
    approvals: Approvals,
    feed: Arc<Feed>,
    audit: Arc<Audit>,
    leases: Arc<Leases>,
    directory: Arc<Directory>,
    bounds: Arc<LaneBounds>,
    clock: Arc<Clock>,
    stop: Stop,
    quiescence: Arc<Quiescence>,
    /// For whoever asks for the status.
    draining: Arc<AtomicBool>,
    totals: Totals,
    stale: Duration,
    gone: Duration,
}

/// The totals that the registry charges.
pub struct Totals {
    /// Sessions.
    pub sessions: Arc<Pool>,
    /// Bytes of snapshots.
    pub snapshots: Arc<Pool>,
    /// Waits.
    pub streams: Arc<Pool>,
}

impl Registry {
    /// Empty.
    #[expect(clippy::too_many_arguments, reason = "what it shares with workers, handed over once")]
    pub fn new(
        limits: &Limits,
        totals: Totals,
        approvals: Approvals,
        feed: Arc<Feed>,
        audit: Arc<Audit>,
        leases: Arc<Leases>,
        directory: Arc<Directory>,
        bounds: Arc<LaneBounds>,
        clock: Arc<Clock>,
        stop: Stop,
        quiescence: Arc<Quiescence>,
        draining: Arc<AtomicBool>,
    ) -> Self {
        Self {
            table: Table::default(),
            waiters: Waiters::default(),
            approvals,
            feed,
            audit,
            leases,
            directory,
            bounds,
            clock,
            stop,
            quiescence,
            draining,
            totals,
            stale: Duration::from_millis(limits.stale_ms),
            gone: Duration::from_millis(limits.gone_ms),
        }
    }

    /// Applies reports until every sender is gone.
    pub fn run(mut self, reports: &Receiver<Report>) {
        for report in reports {
            self.apply(report);
        }
        self.waiters.end(Code::ShuttingDown);
        self.approvals.end_all();
    }

    fn apply(&mut self, report: Report) {
        match report {
            Report::Register(register) => {
                let reply = register.reply.clone();
                let answer = self.register(register);
                if let Ok(Registered { session, .. }) = &answer {
                    self.waiters.look(&self.directory, session);
                }
                let _worker_gone = reply.send(answer);
            }
            Report::Update(Update { peer, session, facts, snapshot, changed, reply }) => {
                let answer = self.update(&peer, &session, facts, snapshot, &changed);
                if answer.is_ok() {
                    self.waiters.look(&self.directory, &session);
                }
                let _worker_gone = reply.send(answer);
            }
            Report::Rotate(Rotate { peer, session, step, reply }) => {
                let answer = self.rotate(&peer, session, step);
                let _worker_gone = reply.send(answer);
            }
            Report::Gone { session, connection, reason, removed: _told_by_its_end } => {
                self.remove(session, connection, reason);
            }
            Report::Wait(wait) => {
                self.clock.alarm(wait.deadline);
                self.waiters.add(wait, &self.totals.streams, &self.directory);
            }
            Report::Ask(ask) => {
                self.clock.alarm(ask.due);
                self.approvals.ask(ask, self.table.is_draining());
            }
            Report::Decide(decided) => {
                if let Err(refusal) = self.approvals.decide(&decided) {
                    let _gone = decided.peer.refuse(decided.request, &refusal);
                }
                self.ended();
            }
            Report::Withdraw(withdraw) => {
                if let Err(refusal) = self.approvals.withdraw(&withdraw) {
                    let _gone = withdraw.peer.refuse(withdraw.request, &refusal);
                }
                self.ended();
            }
            Report::Look(look) => self.approvals.look(&look),
            Report::Cancel { connection, request } => {
                if self.approvals.cancel(connection, request) {
                    self.ended();
                } else {
                    self.waiters.cancel(connection, request);
                }
            }
            Report::Tick => self.tick(Instant::now()),
            Report::Drain(asked) => self.drain(&asked),
            Report::Stop(asked, force) => {
                if let Err(refusal) = self.stop(&asked, force) {
                    let _gone = asked.peer.refuse(asked.request, &refusal);
                }
            }
        }
    }

    fn drain(&mut self, asked: &Asked) {
        match asked.peer.authority().admit(Method::DaemonDrain) {
            Ok(_permit) => {
                self.audit.record(Fact::DrainAsked { by: asked.peer.authority().credential().id });
                self.take_nobody();
                let seen = self.directory.select(&Selector::default(), asked.peer.authority(), 0);
                asked.answer(seen.len());
                self.ended();
            }
            Err(code) => {
                let _gone = asked.peer.refuse(asked.request, &code.into());
            }
        }
    }

    fn take_nobody(&mut self) {
        self.table.drain();
        self.draining.store(true, SeqCst);
    }

    /// Ends the daemon, if it may. The permit is held until all of it is done: whoever is revoked stops all or nothing.
    fn stop(&mut self, asked: &Asked, force: bool) -> Result<(), Refusal> {
        let peer = &asked.peer;
        let _permit = peer.authority().admit(Method::DaemonStop)?;
        // Others bar the way as well, but are not told.
        let seen = self.directory.select(&Selector::default(), peer.authority(), 0);
        if force || self.directory.len() == 0 {
            self.take_nobody();
            let by = peer.authority().credential().id;
            log::info!("stop asked by {by}");
            self.audit.record(Fact::StopAsked { by, force });
            asked.answer(seen.len());
            self.stop.request(StopReason::Asked);
            return Ok(());
        }
        let text = match seen.len() {
            0 => "sessions are registered".to_owned(),
            1 => "1 session is registered".to_owned(),
            count => format!("{count} sessions are registered"),
        };
        let refusal = Refusal { sessions: directory::named(seen.iter()), ..Code::SessionsLive.into() };
        Err(refusal.message(text).hint("end them, or usher stop --force"))
    }

    /// Judged in one step: whoever may not have the session changes nothing. A session that is taken back costs nothing
    /// more than it did; its old transport is cut before anybody sees the new one.
    fn register(&mut self, register: Register) -> Result<Registered, Refusal> {
        let Register { peer: producer, id, issued, facts, snapshot, claim, .. } = register;
        let _permit = producer.authority().admit(Method::SessionRegister)?;
        let credential = producer.authority().credential();
        if !credential.grant.selects(id, &facts) {
            return Err(Refusal::from(Code::Denied).message("this credential may not claim such a session"));
        }
        self.expire_leases(Instant::now());
        let claimed = self.leases.claim(id, claim.as_ref())?;
        let has_owner = self.table.judge(id, producer.id(), claimed == Claimed::Back)?;
        let displaced = if has_owner { self.directory.find(id) } else { None };
        let snapshot = self.keep(producer.authority(), snapshot)?;
        let charge = match displaced.as_ref().and_then(|session| session.take_charge()) {
            Some(charge) => charge,
            None => Charge::take(&self.totals.sessions, &credential.shares.sessions, 1).map_err(busy)?,
        };
        let taken = claim.map(|claim| self.leases.take(id, &claim, claimed, credential)).transpose()?;
        if let Some((_, Some(given_up))) = taken {
            self.bounds.keyring.forget_sessions(&[given_up]);
        }
        if let Some(old) = displaced {
            old.lane.displace();
            old.release();
            log::info!("session {id} was taken back by another connection of credential {}", credential.id);
        }
        self.tell(id, &producer, &facts.title, claimed);
        let order = self.table.own(id, producer.id());
        let (bounds, clock) = (Arc::clone(&self.bounds), Arc::clone(&self.clock));
        let budget = self.leases.budget(id).unwrap_or_default();
        let lane = Lane::new(id, Arc::clone(&producer), issued, facts.max_in_flight, budget, bounds, clock);
        let session = Session::new(id, order, lane, Arc::new(facts), snapshot, self.stale, charge);
        self.directory.insert(Arc::clone(&session));
        self.tell_registered(&session, claimed == Claimed::Back);
        self.clock.alarm(Instant::now() + self.gone);
        Ok(Registered { session, change: taken.map(|(change, _)| change) })
    }

    fn tell_registered(&self, session: &Session, resumed: bool) {
        let facts = session.facts();
        let registered = Event::SessionRegistered {
            session_id: session.id,
            title: &facts.title,
            cwd: &facts.cwd,
            repo_root: facts.repo_root.as_deref(),
            pid: facts.pid,
            credential: session.lane.producer().authority().credential().id,
            resumed,
        };
        self.feed.publish(Audience::Session(session.id, Arc::clone(&facts)), &registered);
        if !facts.runtimes.is_empty() {
            self.tell_runtimes(session.id, &facts);
        }
    }

    fn tell_runtimes(&self, session_id: SessionId, facts: &Arc<Facts>) {
        let detected = Event::RuntimesDetected { session_id, runtimes: &facts.runtimes };
        self.feed.publish(Audience::Session(session_id, Arc::clone(facts)), &detected);
    }

    fn tell(&self, session: SessionId, producer: &Peer, title: &str, claimed: Claimed) {
        let (credential, connection) = (producer.authority().credential().id, producer.id());
        let (title_bytes, title_sha256) = sized(title);
        self.audit.record(match claimed {
            Claimed::Back => Fact::SessionResumed { session, credential, connection, title_bytes, title_sha256 },
            Claimed::Free => Fact::SessionRegistered { session, credential, connection, title_bytes, title_sha256 },
        });
    }

    /// What is known of a session's commands goes with its lease.
    fn expire_leases(&self, now: Instant) {
        let over = self.leases.expire(now);
        if !over.is_empty() {
            self.bounds.keyring.forget_sessions(&over);
        }
    }

    fn rotate(&self, peer: &Peer, session: SessionId, step: Step) -> Result<u64, Refusal> {
        let _permit = peer.authority().admit(match step {
            Step::Stage { .. } => Method::SessionStageKey,
            Step::Confirm(_) => Method::SessionConfirmKey,
        })?;
        if !self.table.owns(session, peer.id()) {
            return Err(Code::NotRegistered.into());
        }
        match step {
            Step::Stage { old, staged } => self.leases.stage(session, old, staged),
            Step::Confirm(rotation) => Ok(self.leases.confirm(session, rotation)?),
        }
    }

    fn update(
        &self,
        peer: &Peer,
        session: &Arc<Session>,
        facts: Facts,
        snapshot: Option<Vec<u8>>,
        changed: &[&'static str],
    ) -> Result<(), Refusal> {
        let _permit = peer.authority().admit(Method::SessionUpdate)?;
        if !self.table.owns(session.id, peer.id()) {
            return Err(Code::NotRegistered.into());
        }
        if !peer.authority().credential().grant.selects(session.id, &facts) {
            return Err(Refusal::from(Code::Denied).message("this credential may not claim such a session"));
        }
        let snapshot = self.keep(peer.authority(), snapshot)?;
        self.directory.update(session, facts, snapshot);
        let facts = session.facts();
        let updated = Event::SessionUpdated { session_id: session.id, title: &facts.title, changed };
        self.feed.publish(Audience::Session(session.id, Arc::clone(&facts)), &updated);
        if changed.contains(&"runtimes") {
            self.tell_runtimes(session.id, &facts);
        }
        Ok(())
    }

    fn keep(&self, authority: &Authority, snapshot: Option<Vec<u8>>) -> Result<Option<Snapshot>, Refusal> {
        let Some(bytes) = snapshot else { return Ok(None) };
        let shares = &authority.credential().shares;
        let charge = Charge::take(&self.totals.snapshots, &shares.snapshots, bytes.len() as u64).map_err(busy)?;
        Ok(Some(Snapshot { bytes, _charge: charge }))
    }

    fn remove(&mut self, id: SessionId, connection: ConnectionId, reason: GoneReason) {
        if self.table.remove(id, connection) {
            if let Some(session) = self.directory.remove(id) {
                let facts = session.facts();
                let gone = Event::SessionGone { session_id: id, title: &facts.title, reason };
                self.feed.publish(Audience::Session(id, Arc::clone(&facts)), &gone);
                session.lane.end(Code::SessionLost);
                session.release();
                let credential = session.lane.producer().authority().credential().id;
                self.audit.record(Fact::SessionGone { session: id, credential, connection, reason });
            }
            self.leases.ended(id, Instant::now());
            self.ended();
        }
    }

    fn tick(&mut self, now: Instant) {
        self.waiters.expire(now);
        self.expire_leases(now);
        if self.approvals.expire(now) {
            self.quiescence.kept();
        }
        let quiescent = self.leave_if_quiescent();
        let mut next = [self.waiters.next(), self.approvals.next(), quiescent].into_iter().flatten().min();
        for session in self.directory.all() {
            let due = session.last_seen() + self.gone;
            if due <= now {
                log::info!("session {} was not heard for {} s: removed", session.id, self.gone.as_secs());
                self.remove(session.id, session.lane.producer().id(), GoneReason::Silent);
            } else {
                next = Some(next.map_or(due, |next| next.min(due)));
            }
        }
        if let Some(next) = next {
            self.clock.alarm(next);
        }
    }

    /// Something has ended that the daemon stayed for.
    fn ended(&mut self) {
        self.quiescence.kept();
        let _the_clock_rings_by_itself = self.leave_if_quiescent();
    }

    /// With no session, command or approval left, the daemon may have nothing to stay for. When to look again, where time
    /// alone can change that.
    fn leave_if_quiescent(&mut self) -> Option<Instant> {
        if !self.table.is_empty() || !self.approvals.is_empty() || self.bounds.pending.count() > 0 {
            return None;
        }
        if self.table.is_draining() {
            self.stop.request(StopReason::Drained);
            return None;
        }
        let reason = match self.quiescence.judge(Instant::now()) {
            Verdict::Stay(until) => return until,
            Verdict::Idle => StopReason::Idle,
            Verdict::Successor => StopReason::Successor,
        };
        // Whoever comes in the meantime finds the next daemon.
        self.take_nobody();
        self.stop.request(reason);
        None
    }
}

#[derive(Serialize)]
struct Sessions {
    #[serde(skip_serializing_if = "Option::is_none")]
    sessions: Option<usize>,
}

impl Asked {
    fn answer(&self, sessions: usize) {
        let sessions = self.tells_sessions.then_some(sessions);
        let _gone = self.peer.answer(self.request, &Sessions { sessions }, None, self.receipt);
    }
}

/// A full pool, as it is told to a peer.
pub fn busy(full: Full) -> Refusal {
    Refusal::busy(full.resource())
}
