//! Signals: one thread waits for them. The first one ends the daemon in order, the second one at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;

use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::getpid;

use crate::error::{Exit, Failure};
use crate::registry::report::{Stop, StopReason};

/// Wakes the waiting thread at the end. From anybody else it means nothing.
const END: Signal = Signal::SIGUSR1;

/// Signals that no thread takes but the one that waits.
pub(super) struct Blocked(SigSet);

/// The waiting thread.
pub(super) struct Signals {
    thread: JoinHandle<()>,
    is_end: Arc<AtomicBool>,
}

/// Blocks them in this thread and in all that it makes. SIGHUP is among them so that a closed terminal ends nothing.
pub(super) fn block() -> Result<Blocked, Failure> {
    let mut set = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, END] {
        set.add(signal);
    }
    set.thread_block()
        .map_err(|error| Failure::new(Exit::Unavailable, "start", format!("signals cannot be blocked: {error}")))?;
    Ok(Blocked(set))
}

impl Blocked {
    pub(super) fn wait_in_thread(self, stop: Stop) -> Result<Signals, Failure> {
        let is_end = Arc::new(AtomicBool::new(false));
        let ours = Arc::clone(&is_end);
        let thread = super::thread("signals", move || wait(&self.0, &stop, &ours))?;
        Ok(Signals { thread, is_end })
    }
}

fn wait(set: &SigSet, stop: &Stop, is_end: &AtomicBool) {
    let mut asked = false;
    loop {
        match set.wait() {
            Ok(END) if is_end.load(SeqCst) => return,
            Ok(Signal::SIGHUP | END) | Err(_) => {}
            Ok(signal) if asked => {
                log::warn!("a second {signal}: ending at once");
                std::process::exit(128 + signal as i32);
            }
            Ok(signal) => {
                asked = true;
                stop.request(StopReason::Signal(signal as i32));
            }
        }
    }
}

impl Signals {
    pub(super) fn end(self) {
        // To the process: every other thread blocks it, so the waiting one takes it.
        self.is_end.store(true, SeqCst);
        if kill(getpid(), END).is_ok() {
            let _panicked = self.thread.join();
        }
    }
}
