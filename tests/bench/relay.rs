//! The baseline: caller → relay → worker → relay → caller. One blocking thread for each connection; whoever reads a message
//! writes it on. A message is a length, the number of its caller, and bytes that nobody looks at.
//!
//! The first four bytes of a request say how many the worker answers with, so that a small question with a large answer has
//! a baseline too.

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use super::frames::{Reader, write};

/// Passes messages on between one worker, which connects first, and everybody else.
pub fn relay(socket: &Path) {
    let listener = UnixListener::bind(socket).unwrap();
    let (worker, _) = listener.accept().unwrap();
    let worker = Arc::new(Mutex::new(worker));
    let callers: Arc<Mutex<Vec<Arc<Mutex<UnixStream>>>>> = Arc::default();
    let answers = worker.lock().unwrap().try_clone().unwrap();
    let known = Arc::clone(&callers);
    spawn(move || {
        let mut reader = Reader::new(answers);
        let mut out = Vec::new();
        while let Some((prefix, message)) = reader.frame() {
            let number = u32::from_be_bytes(message[..4].try_into().unwrap()) as usize;
            let caller = Arc::clone(&known.lock().unwrap()[number]);
            out.clear();
            out.extend_from_slice(&prefix);
            out.extend_from_slice(message);
            write(&caller.lock().unwrap(), &out);
        }
        std::process::exit(0);
    });
    for caller in listener.incoming() {
        let caller = caller.unwrap();
        let reading = caller.try_clone().unwrap();
        let mut callers = callers.lock().unwrap();
        let number = u32::try_from(callers.len()).unwrap();
        callers.push(Arc::new(Mutex::new(caller)));
        drop(callers);
        let worker = Arc::clone(&worker);
        spawn(move || {
            let mut reader = Reader::new(reading);
            let mut out = Vec::new();
            while let Some((prefix, message)) = reader.frame() {
                out.clear();
                out.extend_from_slice(&prefix);
                out.extend_from_slice(&number.to_be_bytes());
                out.extend_from_slice(&message[4..]);
                write(&worker.lock().unwrap(), &out);
            }
        });
    }
}

/// Answers every message with as many of its own bytes as it asks for.
pub fn worker(socket: &Path) {
    let socket = connect(socket);
    let mut reader = Reader::new(socket.try_clone().unwrap());
    let mut out = Vec::new();
    while let Some((_, message)) = reader.frame() {
        let wanted = u32::from_be_bytes(message[4..8].try_into().unwrap()) as usize;
        out.clear();
        out.extend_from_slice(&u32::try_from(4 + wanted).unwrap().to_be_bytes());
        out.extend_from_slice(&message[..4]);
        let body = &message[4..];
        out.extend_from_slice(&body[..body.len().min(wanted)]);
        out.resize(8 + wanted, b'x');
        write(&socket, &out);
    }
}

/// One caller.
pub struct Caller {
    socket: UnixStream,
    reader: Reader,
    request: Vec<u8>,
    wanted: usize,
}

impl Caller {
    /// Whose requests have `bytes` and are answered with `wanted`.
    pub fn new(socket: &Path, bytes: usize, wanted: usize) -> Self {
        let socket = connect(socket);
        let mut request = u32::try_from(4 + bytes).unwrap().to_be_bytes().to_vec();
        request.extend_from_slice(&[0; 4]);
        request.extend_from_slice(&u32::try_from(wanted).unwrap().to_be_bytes());
        request.resize(8 + bytes, b'x');
        Self { reader: Reader::new(socket.try_clone().unwrap()), socket, request, wanted }
    }

    /// Asks and waits.
    pub fn turn(&mut self) {
        assert!(write(&self.socket, &self.request), "the relay is gone");
        let (_, answer) = self.reader.frame().expect("the relay answers");
        assert_eq!(answer.len(), 4 + self.wanted);
    }
}

fn connect(socket: &Path) -> UnixStream {
    super::place::patiently("the relay listens", || UnixStream::connect(socket).ok())
}

fn spawn(body: impl FnOnce() + Send + 'static) {
    std::thread::Builder::new().stack_size(256 * 1024).spawn(body).unwrap();
}
