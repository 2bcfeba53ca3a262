//! `usher attach`: the program that started it becomes a session, over standard input and output (docs/attach.md).
//!
//! Owns: the lines between the library's producer and the program: those to it ([`outbox`]), those from it ([`inbox`],
//! [`message`]), and the commands that it has and has not answered ([`calls`]). It must not know what commands do.
//! Invariants: a line that breaks a rule harms at most the command that it is about, and is told; memory is bounded
//! whatever the program reads or writes; the end of standard input ends the session at once.
//!
//! Threads: *main* waits for the end; *reader* for the program's lines; *writer* for the program to read; *signals* for
//! signals; the library's have a handler for each command, which waits for its answer, its cancellation or its deadline.
//!
//! ```text
//!  daemon ◀──▶ Producer ──▶ handler ── outbox ──▶ writer ──▶ standard output ──▶ program
//!                               ▲                                                  │
//!                               └── calls ◀── inbox ◀── reader ◀── standard input ◀┘
//! ```

mod calls;
mod inbox;
mod message;
mod outbox;
mod program;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, bounded};
use nix::sys::signal::{SigSet, Signal};

use crate::client::{Change, ConnectionState, Description, Producer};
use crate::error::{Exit, Failure};
use crate::limits::COMMANDS_MAX;
use crate::sys::{self, Signals};
use crate::threads;
use crate::wire::codes::Code;
use crate::wire::rows::is_name;

use super::args::Global;
use super::session::{self, Named};
use super::text::clean;
use super::{Outcome, ask};
use calls::Calls;
use inbox::Inbox;
use message::Notice;
use outbox::Outbox;
use program::Program;

/// How often it is looked at whether the last answers are out.
const LOOK: Duration = Duration::from_millis(1);
/// What the end may take: the last words to the daemon and to the program.
const FAREWELL: Duration = Duration::from_millis(200);

/// `usher attach [--title T] [--label K=V]… [--command NAME]… [--max-in-flight N]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachArgs {
    /// Title, labels, commands at once.
    pub named: Named,
    /// Commands of the session at its beginning.
    pub commands: Vec<String>,
}

impl AttachArgs {
    fn check(&self) -> Result<(), Failure> {
        self.named.check()?;
        if self.commands.len() > COMMANDS_MAX {
            return Err(Failure::usage(format!("--command can be given {COMMANDS_MAX} times")));
        }
        match self.commands.iter().find(|name| !is_name(name, false)) {
            None => Ok(()),
            Some(name) => {
                let name = clean(name);
                Err(Failure::usage(format!("--command {name}: a name takes 1 to 64 of A-Z a-z 0-9 . _ -")))
            }
        }
    }
}

/// Why it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The program says nothing more.
    Input,
    /// The program hears nothing more.
    Output,
    /// A signal.
    Signal(Signal),
}

/// Serves until the program goes; 0 then, 128+n for a signal.
pub fn main(global: &Global, args: &AttachArgs) -> Outcome {
    args.check()?;
    let target = ask::target(global)?;
    let taken: SigSet =
        [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().filter(|signal| !sys::ignores(*signal)).collect();
    // Before there is a second thread: each inherits this.
    taken.thread_block().map_err(no_signals)?;
    let signals = Signals::new(&taken).map_err(no_signals)?;

    let (tell, ended) = bounded(8);
    let (calls, outbox) = (Arc::new(Calls::default()), Arc::new(Outbox::default()));
    let program = Program::new(&calls, &outbox);
    let producer =
        Producer::new(target, describe(args, &program)).map_err(|error| Failure::usage(error.to_string()))?;
    let producer = Arc::new(producer);
    let _following = producer.follow(listener(&producer, &outbox));

    let writes = Arc::clone(&outbox);
    start("writer", &tell, move || {
        writes.write(&mut std::io::stdout());
        End::Output
    })?;
    let inbox = Inbox::new(&producer, &calls, &outbox, program);
    let asked = Arc::clone(&calls);
    start("reader", &tell, move || {
        inbox.read(&mut std::io::stdin().lock());
        End::Input
    })?;
    start("signals", &tell, move || {
        loop {
            match signals.wait(None) {
                Ok(Some(arrived)) => return End::Signal(arrived.signal),
                Ok(None) => {}
                Err(_) => std::thread::park(),
            }
        }
    })?;
    producer.start().map_err(|error| no_thread(&error))?;

    let end = ended.recv().unwrap_or(End::Input);
    let deadline = Instant::now() + FAREWELL;
    // What the program has said before it went is passed on.
    while producer.running() > asked.unanswered() && Instant::now() < deadline {
        std::thread::sleep(LOOK);
    }
    producer.stop_by(deadline);
    outbox.finish(deadline);
    // Who waits for a program that neither reads nor writes ends with the process.
    Ok(match end {
        End::Input | End::Output => ExitCode::SUCCESS,
        End::Signal(signal) => ExitCode::from(u8::try_from(128 + signal as i32).unwrap_or(Exit::Bug as u8)),
    })
}

fn start(name: &str, tell: &Sender<End>, body: impl FnOnce() -> End + Send + 'static) -> Result<(), Failure> {
    let tell = tell.clone();
    let body = move || {
        let _ = tell.send(body());
    };
    // Its end is told; main does not wait for it otherwise.
    threads::spawn(name, body).map(drop).map_err(|error| no_thread(&error))
}

/// The session: its process is the one that reads our standard output, which is the one that started us.
fn describe(args: &AttachArgs, program: &Program) -> Description {
    let folder = session::here().file_name().map(|name| name.to_string_lossy().into_owned());
    let mut description = args.named.describe(folder.as_deref().unwrap_or("attach"));
    let parent = nix::unistd::getppid().as_raw().unsigned_abs();
    if let Some(started) = sys::process_started(parent) {
        description = description.process(parent, started);
    }
    args.commands.iter().fold(description, |description, name| description.offer(program.offer(name, None)))
}

/// Tells the program where the connection is.
fn listener(producer: &Producer, outbox: &Arc<Outbox>) -> impl Fn(&Change) + Send + Sync + 'static {
    let (session, outbox) = (producer.session_id(), Arc::clone(outbox));
    let was_open = parking_lot::Mutex::new(false);
    move |change| {
        let mut was_open = was_open.lock();
        let tell = |state: &'static str| {
            let reason = change.reason.as_deref();
            outbox.connection(&Notice::Connection { state, session_id: session, reason });
        };
        if *was_open && change.state == ConnectionState::Open {
            return outbox.error(change.reason.as_deref().unwrap_or("an update was refused"), None);
        }
        if *was_open && change.state != ConnectionState::Stopped {
            tell("closed");
        }
        *was_open = change.state == ConnectionState::Open;
        match change.state {
            ConnectionState::Connecting => tell("connecting"),
            ConnectionState::Open => tell("open"),
            ConnectionState::Waiting => tell("waiting"),
            ConnectionState::Revoked => tell("revoked"),
            ConnectionState::Stopped => tell("closed"),
            ConnectionState::Idle => {}
        }
    }
}

fn no_signals(errno: nix::errno::Errno) -> Failure {
    Failure::new(Exit::Capacity, Code::Busy.word(), format!("signals cannot be taken: {}", errno.desc()))
}

fn no_thread(error: &std::io::Error) -> Failure {
    Failure::new(Exit::Capacity, Code::Busy.word(), format!("a thread cannot be started: {error}"))
}
