//! Reads lines, then sealed frames, from a blocking socket. Every length is compared before anything is allocated, and
//! everything that has begun has a deadline.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::account::{Charge, Pool};
use crate::limits::{FRAME_LENGTH_BYTES, HELLO_LINE_MAX_BYTES};
use crate::wire::frame::{self, Opener};

/// What a connection keeps while nothing comes: enough for a hello and for most commands.
const KEPT_BYTES: usize = 1_024;

/// How long a peer has to pause until the room of a larger frame is given back.
const PAUSE: Duration = Duration::from_millis(200);

/// Why reading is over. The words go into the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// End of the stream between two messages.
    Eof,
    /// End of the stream within one.
    Torn,
    /// A deadline passed.
    Late,
    /// A line without end.
    LineTooLong,
    /// N is out of its bounds.
    FrameLength,
    /// A frame that does not open.
    Seal,
    /// No room among all frames being read.
    NoRoom,
    /// The socket failed.
    Failed,
}

impl Ended {
    /// For the log and for `closing`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Eof => "end of stream",
            Self::Torn => "end of stream within a message",
            Self::Late => "deadline passed",
            Self::LineTooLong => "line too long",
            Self::FrameLength => "frame length out of bounds",
            Self::Seal => "frame does not open",
            Self::NoRoom => "no room for the frame",
            Self::Failed => "socket failed",
        }
    }
}

/// Who pays for large frames.
pub struct Budget {
    /// All frames being read.
    pub total: Arc<Pool>,
    /// Those of one credential.
    pub share: Arc<Pool>,
}

/// The reading side of one connection.
pub struct Reader {
    socket: Arc<UnixStream>,
    buffer: Vec<u8>,
    filled: usize,
    consumed: usize,
    timeout: Option<Duration>,
    charge: Option<Charge>,
}

impl Reader {
    /// At the connection's first byte.
    pub fn new(socket: Arc<UnixStream>) -> Self {
        Self { socket, buffer: vec![0; KEPT_BYTES], filled: 0, consumed: 0, timeout: None, charge: None }
    }

    /// The next line with its LF.
    pub fn line(&mut self, deadline: Instant) -> Result<Vec<u8>, Ended> {
        self.compact();
        let mut seen = 0;
        loop {
            if let Some(end) = self.buffer[seen..self.filled].iter().position(|&byte| byte == b'\n') {
                let end = seen + end + 1;
                self.consumed = end;
                return Ok(self.buffer[..end].to_vec());
            }
            seen = self.filled;
            if self.filled >= HELLO_LINE_MAX_BYTES {
                return Err(Ended::LineTooLong);
            }
            if self.filled == self.buffer.len() {
                self.buffer.resize(HELLO_LINE_MAX_BYTES, 0);
            }
            self.fill(Some(deadline))?;
        }
    }

    /// The next frame, opened. Waits for its first byte without end, for the rest of it at most `within`.
    pub fn frame(&mut self, opener: &mut Opener, within: Duration, budget: &Budget) -> Result<&[u8], Ended> {
        self.compact();
        if self.charge.is_some() && budget.total.is_waited_for() {
            self.shrink();
        }
        let mut deadline = None;
        while self.filled < FRAME_LENGTH_BYTES {
            if self.filled > 0 {
                deadline.get_or_insert_with(|| Instant::now() + within);
            }
            self.fill(deadline)?;
        }
        let prefix = [self.buffer[0], self.buffer[1], self.buffer[2], self.buffer[3]];
        let end = FRAME_LENGTH_BYTES + frame::length(prefix).map_err(|_| Ended::FrameLength)?;
        if end > self.buffer.len() {
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + within);
            self.grow(end, budget, deadline)?;
        }
        while self.filled < end {
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + within);
            self.fill(Some(deadline))?;
        }
        self.consumed = end;
        opener.open(&mut self.buffer[FRAME_LENGTH_BYTES..end]).map(|plaintext| &*plaintext).map_err(|_| Ended::Seal)
    }

    /// Room for a frame that is larger than the buffer. Others give back when they are done: until then the peer waits, as
    /// long as a frame may take.
    fn grow(&mut self, end: usize, budget: &Budget, deadline: Instant) -> Result<(), Ended> {
        // What is held already is no help: two frames could then wait for each other.
        self.charge = None;
        let more = end.saturating_sub(KEPT_BYTES) as u64;
        let charge = Charge::take_by(&budget.total, &budget.share, more, deadline);
        self.charge = Some(charge.map_err(|_| Ended::NoRoom)?);
        self.buffer.resize(end, 0);
        Ok(())
    }

    /// Moves what was not consumed to the front.
    fn compact(&mut self) {
        if self.consumed > 0 {
            self.buffer.copy_within(self.consumed..self.filled, 0);
            self.filled -= self.consumed;
            self.consumed = 0;
        }
    }

    /// Gives back what a large frame, or a long hello, had taken.
    fn shrink(&mut self) {
        if self.filled <= KEPT_BYTES {
            self.buffer.truncate(KEPT_BYTES);
            self.buffer.shrink_to_fit();
            self.charge = None;
        }
    }

    /// Reads some. While the buffer is large it waits in short turns: a peer that pauses gives the room back, and one that
    /// goes on costs no system call for it.
    fn fill(&mut self, deadline: Option<Instant>) -> Result<(), Ended> {
        loop {
            let is_large = self.buffer.len() > KEPT_BYTES;
            let timeout = match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => return Err(Ended::Late),
                Some(left) if is_large => Some(left.min(PAUSE)),
                Some(left) => Some(left),
                None => is_large.then_some(PAUSE),
            };
            if timeout != self.timeout {
                self.socket.set_read_timeout(timeout).map_err(|_| Ended::Failed)?;
                self.timeout = timeout;
            }
            match (&*self.socket).read(&mut self.buffer[self.filled..]) {
                Ok(0) if self.filled == 0 => return Err(Ended::Eof),
                Ok(0) => return Err(Ended::Torn),
                Ok(count) => {
                    self.filled += count;
                    return Ok(());
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                        // Whether it is late is for the clock to say.
                        if deadline.is_none() {
                            self.shrink();
                        }
                    }
                    io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => return Err(Ended::Eof),
                    _ => return Err(Ended::Failed),
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::wire::frame::{Sealer, begin};

    fn budget(bytes: u64) -> Budget {
        Budget { total: Pool::new("total", bytes), share: Pool::new("share", bytes) }
    }

    fn frame(sealer: &mut Sealer, size: usize) -> Vec<u8> {
        let mut frame = begin(size);
        frame.resize(4 + size, b'x');
        sealer.seal(frame).unwrap()
    }

    #[test]
    fn lines_and_frames_that_arrive_in_pieces_or_together_are_read_one_by_one() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut sealer = Sealer::new(&[1; 32]).unwrap();
        let mut sent = b"one\ntwo\n".to_vec();
        sent.extend(frame(&mut sealer, 10));
        sent.extend(frame(&mut sealer, 100_000));
        sent.extend(frame(&mut sealer, 1));
        let writer = crate::threads::spawn("test", move || {
            for piece in sent.chunks(4_999) {
                theirs.write_all(piece).unwrap();
            }
            theirs
        })
        .unwrap();
        let mut reader = Reader::new(Arc::new(ours));
        let deadline = Instant::now() + Duration::from_secs(10);
        assert_eq!(reader.line(deadline), Ok(b"one\n".to_vec()));
        assert_eq!(reader.line(deadline), Ok(b"two\n".to_vec()));
        let (mut opener, within) = (Opener::new(&[1; 32]).unwrap(), Duration::from_secs(10));
        let budget = budget(200_000);
        let total = Arc::clone(&budget.total);
        for size in [10, 100_000, 1] {
            assert_eq!(reader.frame(&mut opener, within, &budget).unwrap().len(), size);
        }
        let theirs = writer.join().unwrap();
        let waiting = crate::threads::spawn("test", move || {
            let ended = reader.frame(&mut opener, within, &budget).unwrap_err();
            (ended, reader, budget)
        });
        while total.used() > 0 {
            std::thread::yield_now();
        }
        drop(theirs);
        let (ended, reader, _budget) = waiting.unwrap().join().unwrap();
        assert_eq!((ended, reader.buffer.len()), (Ended::Eof, KEPT_BYTES), "what a large frame had is given back");
    }

    #[test]
    fn a_line_without_end_a_late_line_and_a_torn_one_are_told_apart() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(&[b'x'; HELLO_LINE_MAX_BYTES]).unwrap();
        let mut reader = Reader::new(Arc::new(ours));
        assert_eq!(reader.line(Instant::now() + Duration::from_secs(5)), Err(Ended::LineTooLong));
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"half").unwrap();
        let mut reader = Reader::new(Arc::new(ours));
        assert_eq!(reader.line(Instant::now() + Duration::from_millis(20)), Err(Ended::Late));
        drop(theirs);
        assert_eq!(reader.line(Instant::now() + Duration::from_secs(5)), Err(Ended::Torn));
    }

    #[test]
    fn a_frame_that_is_too_large_or_has_no_room_is_refused_before_it_is_allocated() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(&u32::MAX.to_be_bytes()).unwrap();
        let mut reader = Reader::new(Arc::new(ours));
        let mut opener = Opener::new(&[1; 32]).unwrap();
        let within = Duration::from_secs(5);
        assert_eq!(reader.frame(&mut opener, within, &budget(1 << 30)).unwrap_err(), Ended::FrameLength);
        assert_eq!(reader.buffer.len(), KEPT_BYTES);
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(&1_000_000_u32.to_be_bytes()).unwrap();
        let mut reader = Reader::new(Arc::new(ours));
        let soon = Duration::from_millis(20);
        assert_eq!(reader.frame(&mut opener, soon, &budget(1_000)).unwrap_err(), Ended::NoRoom);
        assert_eq!(reader.buffer.len(), KEPT_BYTES);
    }

    #[test]
    fn a_frame_that_has_begun_has_a_deadline() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(&[0, 0, 0, 100, 1, 2]).unwrap();
        let mut reader = Reader::new(Arc::new(ours));
        let mut opener = Opener::new(&[1; 32]).unwrap();
        let ended = reader.frame(&mut opener, Duration::from_millis(20), &budget(1_000)).unwrap_err();
        assert_eq!(ended, Ended::Late);
    }
}
