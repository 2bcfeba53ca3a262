//! The one way in which a daemon ends: terminal, in this order, once.

use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::registry::report::StopReason;
use crate::route::feed::Audience;
use crate::wire::codes::Code;
use crate::wire::events::Event;
use crate::wire::lines::Role;
use crate::wire::message;
use crate::wire::methods::DAEMON_CLOSING;

use super::Daemon;

/// How long those may take who came just when a daemon that nobody needs has made up its mind.
const LAST_COMERS: Duration = Duration::from_secs(1);
/// How long last words may take after everything else was flushed.
const LAST_WORDS: Duration = Duration::from_secs(1);

#[derive(Serialize)]
struct Closing {
    reason: &'static str,
}

impl Daemon {
    /// Refuses new work, lets what is pending end, tells everybody, joins every thread, gives the rendezvous back.
    pub(super) fn end(self, reason: StopReason) {
        let Self { hub, feed, registry, clock, signals, acceptor } = self;
        let (is_quiet, reason) = (reason.is_quiet(), reason.word());
        let limit = Duration::from_millis(hub.limits.shutdown_ms);

        hub.feed.publish(Audience::Everybody, &Event::ShutdownRequested { reason });
        let refuse_new = || {
            hub.closing.store(true, SeqCst);
            hub.leases.close();
            hub.slots.close();
        };
        let accepted = if is_quiet {
            // Whoever has come already is served.
            let accepted = acceptor.leave();
            hub.slots.wait_empty(Instant::now() + LAST_COMERS);
            refuse_new();
            accepted
        } else {
            refuse_new();
            acceptor.end()
        };
        let peers = || hub.peers.lock().values().cloned().collect::<Vec<_>>();
        for peer in peers().iter().filter(|peer| peer.authority().role() == Role::Producer) {
            let _gone = peer.send(message::notification(DAEMON_CLOSING, &Closing { reason }));
        }
        if !hub.lanes.pending.wait_none(Instant::now() + limit) {
            log::warn!("{} commands were pending at the end", hub.lanes.pending.count());
        }
        for session in hub.directory.all() {
            session.lane.end(Code::ShuttingDown);
        }
        // Nothing reports any more; the registry ends with its last sender and tells those who wait.
        hub.clock.end();
        let _panicked = clock.join();
        drop(hub.reports.lock().take());
        let _panicked = registry.join();
        hub.leases.store_rest();

        let deadline = Instant::now() + limit;
        hub.feed.wait_told(deadline);
        hub.flusher.wait_idle(deadline);
        let kept: usize = peers().iter().map(|peer| peer.undelivered()).sum();
        let undelivered = hub.feed.wait_told(Instant::now()) + kept as u64;
        if undelivered > 0 {
            log::warn!("{undelivered} messages and events never left");
        }
        hub.audit.end(reason, undelivered);
        hub.feed.publish(Audience::Everybody, &Event::ShutdownComplete { reason, undelivered });
        hub.feed.wait_told(Instant::now() + LAST_WORDS);
        hub.feed.end();
        let _panicked = feed.join();
        for peer in peers() {
            peer.say_closing(reason);
        }
        hub.flusher.wait_idle(Instant::now() + LAST_WORDS);
        for peer in peers() {
            peer.cut_now();
        }
        hub.flusher.join();
        if let Some((listener, workers)) = accepted {
            workers.join();
            listener.unlink();
        }
        signals.end();
    }
}
