//! `usherd`: sets up, serves, tears down in reverse. Owns every thread and joins it.

mod acceptor;
mod background;
mod first_start;
mod logging;
mod options;
mod shutdown;
mod signals;
mod workers;

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded};
use nix::sys::stat::{Mode, umask};
use parking_lot::Mutex;

use crate::account::Pool;
use crate::audit::{Audit, Fact};
use crate::auth::credentials::Credentials;
use crate::auth::identity::Identity;
use crate::connection::hub::{Hub, Totals};
use crate::connection::outcomes::Outcomes;
use crate::connection::slots::Slots;
use crate::error::{Exit, Failure};
use crate::ids::Generation;
use crate::limits::Limits;
use crate::registry::approvals::Approvals;
use crate::registry::leases::Leases;
use crate::registry::report::{Report, Stop, StopReason};
use crate::registry::{self, Registry};
use crate::route::bell::Bell;
use crate::route::clock::Clock;
use crate::route::directory::Directory;
use crate::route::feed::Feed;
use crate::route::flusher::Flusher;
use crate::route::keys::Keyring;
use crate::route::lane::LaneBounds;
use crate::route::pending::Pending;
use crate::route::quiescence::Quiescence;
use crate::store::socket::Listener;
use crate::store::{Dir, Lock, Paths, Problem, StoreError, paths};
use crate::threads;
use crate::version::version;

use acceptor::Acceptor;
use options::{Action, Mode as RunMode, Options};

/// Reports under way to the registry: workers wait when it is this far behind.
const REPORTS: usize = 1_024;
/// How often expiries are looked at while one is near.
const SWEEP: Duration = Duration::from_secs(1);

/// Descriptors for everything but connections.
const OTHER_DESCRIPTORS: u64 = 32;
/// With fewer connections a daemon is of no use.
const CONNECTIONS_MIN: u64 = 16;

/// Program and version, as peers are told.
pub const BUILD: &str = concat!("usherd/", version!());

/// The program.
pub fn main() -> ExitCode {
    let said = match options::parse(std::env::args_os()) {
        Ok(Action::Print(text)) => return print(&text).map_or_else(|failure| fail(&failure), |()| ExitCode::SUCCESS),
        Ok(Action::Run(options)) => options,
        Err(failure) => return fail(&failure),
    };
    let done = match said.mode {
        RunMode::Background => background::launch(&said),
        RunMode::Foreground | RunMode::Detached => run(&said),
    };
    match done {
        Ok(()) => ExitCode::from(Exit::Done as u8),
        Err(failure) => fail(&failure),
    }
}

/// A reader that has gone away is no failure, a full disk is one.
fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::new(Exit::Negative, "output", format!("standard output cannot be written: {error}")))
        }
        _ => Ok(()),
    }
}

fn fail(failure: &Failure) -> ExitCode {
    let _closed = writeln!(std::io::stderr(), "usherd: {failure}");
    ExitCode::from(failure.exit as u8)
}

fn run(options: &Options) -> Result<(), Failure> {
    if options.mode == RunMode::Detached {
        background::leave_the_shell_behind();
    }
    umask(Mode::from_bits_truncate(0o077));
    let paths = Paths::from_env().map_err(store_failure)?;
    let root = Dir::create(paths.root()).map_err(store_failure)?;
    let lock = match root.lock(paths::LOCK) {
        Ok(lock) => Arc::new(lock),
        Err(error) if options.mode == RunMode::Detached && matches!(error.problem(), Problem::Held { .. }) => {
            background::tell_launcher(background::HELD);
            return Ok(());
        }
        Err(error) => return Err(held(error)),
    };
    logging::start(&root, options.mode)?;
    let limits = within_descriptors(options.limits.clone(), raise_descriptors())?;
    first_start::make_keys(&root, &lock).map_err(store_failure)?;
    let identity = Arc::new(first_start::load_daemon_key(&root).map_err(store_failure)?);
    let credentials = Credentials::load(root.try_clone().map_err(store_failure)?, &limits).map_err(store_failure)?;
    let folder = root.try_clone().map_err(store_failure)?;
    let leases = Leases::load(folder, &credentials, &limits).map_err(store_failure)?;
    // Blocked before any thread is made: each signal is taken by the one thread that waits for it.
    let signals = signals::block()?;
    let folder = root.create_sub(paths::SOCKET_FOLDER).map_err(store_failure)?;
    let listener = Listener::bind(&folder, &lock).map_err(store_failure)?;

    let (daemon, stop) = Daemon::start(
        &limits,
        options.idle_exit,
        identity,
        credentials,
        leases,
        root,
        folder,
        listener,
        Arc::clone(&lock),
        signals,
    )?;
    log::info!("{BUILD} is ready in {}, generation {}", paths.root().display(), daemon.hub.generation);
    if options.mode == RunMode::Detached {
        background::tell_launcher(background::READY);
    }
    let reason = stop.recv().unwrap_or(StopReason::Asked);
    log::info!("ending: {}", reason.word());
    daemon.end(reason);
    log::info!("ended");
    drop(lock);
    Ok(())
}

/// Every thread of a running daemon, in the order in which they are made.
struct Daemon {
    hub: Arc<Hub>,
    feed: JoinHandle<()>,
    registry: JoinHandle<()>,
    clock: JoinHandle<()>,
    signals: signals::Signals,
    acceptor: Acceptor,
}

impl Daemon {
    #[expect(clippy::too_many_arguments, reason = "everything that the set-up has made, handed over once")]
    fn start(
        limits: &Limits,
        idle_exit: Option<Duration>,
        identity: Arc<Identity>,
        credentials: Credentials,
        leases: Leases,
        root: Dir,
        folder: Dir,
        listener: Listener,
        lock: Arc<Lock>,
        signals: signals::Blocked,
    ) -> Result<(Self, Receiver<StopReason>), Failure> {
        let (ask_stop, stop) = bounded(1);
        let (reports, to_registry) = bounded(REPORTS);
        let of_audit = root.try_clone().map_err(store_failure)?;
        let stop_by = Stop::new(ask_stop);
        let hub = Arc::new(hub(limits, idle_exit, identity, credentials, of_audit, leases, stop_by, reports)?);
        let feed = {
            let feed = Arc::clone(&hub.feed);
            thread("events", move || feed.run())?
        };
        let registry = {
            let totals = registry::Totals {
                sessions: Arc::clone(&hub.totals.sessions),
                snapshots: Arc::clone(&hub.totals.snapshots),
                streams: Arc::clone(&hub.totals.streams),
            };
            let registry = Registry::new(
                &hub.limits,
                totals,
                Approvals::new(hub.generation, Arc::clone(&hub.audit), Arc::clone(&hub.feed)),
                Arc::clone(&hub.feed),
                Arc::clone(&hub.audit),
                Arc::clone(&hub.leases),
                Arc::clone(&hub.directory),
                Arc::clone(&hub.lanes),
                Arc::clone(&hub.clock),
                hub.stop.clone(),
                Arc::clone(&hub.quiescence),
                Arc::clone(&hub.draining),
            );
            thread("registry", move || registry.run(&to_registry))?
        };
        let clock = {
            let hub = Arc::clone(&hub);
            thread("clock", move || hub.clock.run(|now, was_away| look(&hub, now, was_away)))?
        };
        let signals = signals.wait_in_thread(hub.stop.clone())?;
        let acceptor = Acceptor::start(Arc::clone(&hub), root, folder, listener, lock)?;
        Ok((Self { hub, feed, registry, clock, signals, acceptor }, stop))
    }
}

#[expect(clippy::too_many_arguments, reason = "what the set-up has made, handed over once")]
fn hub(
    limits: &Limits,
    idle_exit: Option<Duration>,
    identity: Arc<Identity>,
    credentials: Credentials,
    of_audit: Dir,
    leases: Leases,
    stop: Stop,
    reports: crossbeam_channel::Sender<Report>,
) -> Result<Hub, Failure> {
    let operators = limits.operator_connections.min(limits.connections - 1);
    let (generation, bell) = (Generation::random(), Arc::new(Bell::default()));
    let flusher = Flusher::new(Arc::clone(&bell)).map_err(|error| {
        Failure::new(Exit::Unavailable, "start", format!("no socket pair for the flusher: {error}"))
    })?;
    let clock = Arc::new(Clock::default());
    let started = |after| Fact::Started { build: BUILD, generation, after };
    let audit = Audit::start(of_audit, Arc::clone(&identity), limits.audit_bytes, started);
    Ok(Hub {
        generation,
        build: BUILD.to_owned(),
        started: jiff::Timestamp::now(),
        identity,
        credentials,
        audit: Arc::new(audit),
        leases: Arc::new(leases),
        feed: Arc::new(Feed::new(generation, bell)),
        directory: Arc::new(Directory::default()),
        reports: Mutex::new(Some(reports)),
        flusher,
        lanes: Arc::new(LaneBounds {
            queued_max: usize::try_from(limits.session_queued).unwrap_or(usize::MAX),
            queued: Pool::new("queued", limits.queued),
            queued_bytes: Pool::new("queued-bytes", limits.queued_bytes),
            settle: Duration::from_millis(limits.settle_ms),
            result_max: limits.result_bytes,
            pending: Arc::new(Pending::default()),
            keyring: Keyring::new(limits, Arc::clone(&clock)),
        }),
        quiescence: Arc::new(Quiescence::new(Arc::clone(&clock), idle_exit, Duration::from_millis(limits.settled_ms))),
        clock,
        slots: Slots::new(limits),
        outcomes: Outcomes::default(),
        totals: Totals {
            connections: Pool::new("connections", limits.connections - operators),
            operators: Pool::new("operators", limits.connections),
            inbound_bytes: Pool::new("inbound-bytes", limits.inbound_bytes),
            outbound_bytes: Pool::new("outbound-bytes", limits.outbound_bytes),
            sessions: Pool::new("sessions", limits.sessions),
            snapshots: Pool::new("snapshots-total-bytes", limits.snapshots_total_bytes),
            streams: Pool::new("streams", limits.streams),
            approvals: Pool::new("approvals", limits.approvals),
            approvals_bytes: Pool::new("approvals-bytes", limits.approvals_bytes),
        },
        stop,
        peers: Mutex::default(),
        draining: Arc::default(),
        closing: AtomicBool::new(false),
        limits: limits.clone(),
    })
}

/// What the clock looks at when it rings; when it is to ring again.
fn look(hub: &Hub, now: Instant, was_away: bool) -> Option<Instant> {
    if was_away {
        // Who was silent while nobody listened has not been silent.
        log::info!("this daemon did not run for a while; sessions have their time again");
        hub.directory.all().iter().for_each(|session| session.seen());
    }
    let lanes = hub.directory.all().iter().filter_map(|session| session.lane.expire(now)).min();
    let expiries = hub.credentials.sweep().then(|| now + SWEEP);
    hub.forget_ended();
    // A registry that is behind will look by itself: it is told again at the next ring.
    let behind = match hub.reports.lock().as_ref() {
        Some(reports) => reports.try_send(Report::Tick).is_err().then(|| now + SWEEP),
        None => None,
    };
    let keys = hub.lanes.keyring.expire(now);
    [lanes, expiries, behind, keys].into_iter().flatten().min()
}

fn thread(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Failure> {
    threads::spawn(name, body)
        .map_err(|error| Failure::new(Exit::Unavailable, "start", format!("no thread for the {name}: {error}")))
}

/// A file that the daemon cannot start with.
fn store_failure(error: StoreError) -> Failure {
    Failure::new(Exit::Unavailable, "store", error.to_string())
}

fn held(error: StoreError) -> Failure {
    match error.problem() {
        Problem::Held { .. } => Failure::new(Exit::Conflict, "held", error.to_string()),
        _ => store_failure(error),
    }
}

/// The soft limit on descriptors goes up to the hard one, which is returned: each connection has one.
fn raise_descriptors() -> u64 {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return u64::MAX };
    if soft >= hard {
        return soft;
    }
    match setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
        Ok(()) => hard,
        Err(error) => {
            log::warn!("the limit on descriptors could not be raised: {error}");
            soft
        }
    }
}

/// Connections have a bound that can be kept: at it the newcomer hears `busy`, without a descriptor nobody hears anything.
fn within_descriptors(mut limits: Limits, descriptors: u64) -> Result<Limits, Failure> {
    let room = descriptors.saturating_sub(OTHER_DESCRIPTORS);
    if room < CONNECTIONS_MIN {
        let least = OTHER_DESCRIPTORS + CONNECTIONS_MIN;
        let text =
            format!("{descriptors} descriptors are allowed, and {least} are the least: raise the limit (ulimit -n)");
        return Err(Failure::new(Exit::Unavailable, "start", text));
    }
    if room < limits.connections {
        log::warn!("{descriptors} descriptors are allowed: no more than {room} connections at once");
        limits.connections = room;
    }
    Ok(limits)
}
