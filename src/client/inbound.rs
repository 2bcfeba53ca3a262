//! Bytes from the daemon: handshake lines, then frames, out of one buffer, never past a deadline.
//!
//! Owns: the reading half of the stream. It must not know what is in a line or frame. Invariant: a length is judged before
//! room for it exists, room grows with the bytes that came, and a timeout loses none of them: the next call goes on.

use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::limits::{FRAME_LENGTH_BYTES, HELLO_LINE_MAX_BYTES};
use crate::wire::frame::{self, Opener};

/// Bytes that are asked of the kernel at once: most messages are smaller, a large one comes in few steps.
const CHUNK_BYTES: usize = 64 * 1024;

/// Below this a timeout is exact.
const HALVED: Duration = Duration::from_millis(50);

/// A frame that began must be whole by then.
const FRAME: Duration = Duration::from_secs(10);

/// Why no line or frame came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// Nothing more until the deadline; asking again goes on.
    Timeout,
    /// The stream ended or failed.
    End,
    /// The bytes are not what the protocol allows.
    Broken,
}

/// The reading half.
pub(super) struct Inbound {
    stream: UnixStream,
    buffer: Vec<u8>,
    /// Bytes of the buffer that came from the stream.
    filled: usize,
    /// Bytes of the buffer that were used.
    used: usize,
    timeout: Option<Duration>,
    /// Since when the rest of a frame that has begun is waited for.
    began: Option<Instant>,
}

impl Inbound {
    pub fn new(stream: UnixStream) -> Self {
        Self { stream, buffer: Vec::new(), filled: 0, used: 0, timeout: None, began: None }
    }

    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// A line with its LF, at most [`HELLO_LINE_MAX_BYTES`].
    pub fn line(&mut self, deadline: Instant) -> Result<Vec<u8>, Stop> {
        let mut seen = 0;
        loop {
            let bytes = &self.buffer[self.used..self.filled];
            if let Some(end) = bytes[seen..].iter().position(|&byte| byte == b'\n') {
                let line = bytes[..=seen + end].to_vec();
                self.used += line.len();
                return if line.len() > HELLO_LINE_MAX_BYTES { Err(Stop::Broken) } else { Ok(line) };
            }
            seen = bytes.len();
            if seen >= HELLO_LINE_MAX_BYTES {
                return Err(Stop::Broken);
            }
            self.more(HELLO_LINE_MAX_BYTES, Some(deadline))?;
        }
    }

    /// The next frame's plaintext.
    pub fn frame<'a>(&'a mut self, opener: &mut Opener, deadline: Option<Instant>) -> Result<&'a [u8], Stop> {
        self.fill(FRAME_LENGTH_BYTES, deadline)?;
        let start = self.used + FRAME_LENGTH_BYTES;
        let prefix = self.buffer[self.used..start].try_into().map_err(|_| Stop::Broken)?;
        let length = frame::length(prefix).map_err(|_| Stop::Broken)?;
        self.fill(FRAME_LENGTH_BYTES + length, deadline)?;
        // Filling may have moved the bytes.
        let start = self.used + FRAME_LENGTH_BYTES;
        self.used = start + length;
        self.began = None;
        let plaintext = opener.open(&mut self.buffer[start..start + length]).map_err(|_| Stop::Broken)?;
        Ok(plaintext)
    }

    /// Waits until so many unused bytes are there.
    fn fill(&mut self, need: usize, deadline: Option<Instant>) -> Result<(), Stop> {
        while self.filled - self.used < need {
            if self.filled > self.used {
                let began = *self.began.get_or_insert_with(Instant::now);
                match self.more(need, Some(deadline.map_or(began + FRAME, |deadline| deadline.min(began + FRAME)))) {
                    Err(Stop::Timeout) if began.elapsed() >= FRAME => return Err(Stop::Broken),
                    Err(Stop::Timeout) => {
                        // Until it is asked again nobody reads, and the other side may have to wait.
                        self.began = None;
                        return Err(Stop::Timeout);
                    }
                    done => done?,
                }
            } else {
                self.more(need, deadline)?;
            }
        }
        Ok(())
    }

    /// Reads once; afterwards there is at least one byte more. `need` is how many unused bytes are wanted.
    fn more(&mut self, need: usize, deadline: Option<Instant>) -> Result<(), Stop> {
        if self.used == self.filled {
            (self.used, self.filled) = (0, 0);
            // The room of a large frame is not kept for small ones.
            if self.buffer.len() > 4 * CHUNK_BYTES {
                self.buffer = Vec::new();
            }
        } else if self.used > 0 && self.buffer.len() - self.used < need {
            self.buffer.copy_within(self.used..self.filled, 0);
            self.filled -= self.used;
            self.used = 0;
        }
        if self.buffer.len() - self.filled < CHUNK_BYTES / 2 {
            self.buffer.resize(self.filled + CHUNK_BYTES.max(self.filled), 0);
        }
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if let Some(timeout) = better_timeout(self.timeout, left) {
                self.stream.set_read_timeout(timeout).map_err(|_| Stop::End)?;
                self.timeout = timeout;
            }
            match self.stream.read(&mut self.buffer[self.filled..]) {
                Ok(0) => return Err(Stop::End),
                Ok(count) => {
                    self.filled += count;
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock || error.kind() == ErrorKind::TimedOut => {
                    if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                        return Err(Stop::Timeout);
                    }
                }
                Err(_) => return Err(Stop::End),
            }
        }
    }
}

/// The timeout to set before a read that has so much time left; none where the one that is set will do. Setting it costs
/// a system call, so a shorter one that is set already is let stand: the reader looks at the time and reads on.
fn better_timeout(set: Option<Duration>, left: Option<Duration>) -> Option<Option<Duration>> {
    match (set, left) {
        (None, None) => None,
        (Some(_), None) => Some(None),
        (Some(set), Some(left)) if set <= left && set >= left / 16 => None,
        // Half of it, so that it will do for the next reads too; all of it at the end.
        (_, Some(left)) if left > HALVED => Some(Some(left / 2)),
        (_, Some(left)) => Some(Some(left.max(Duration::from_millis(1)))),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::wire::frame::{Sealer, begin};

    fn pair() -> (UnixStream, Inbound) {
        let (theirs, ours) = UnixStream::pair().unwrap();
        (theirs, Inbound::new(ours))
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(20)
    }

    fn sealed(sealer: &mut Sealer, text: &[u8]) -> Vec<u8> {
        let mut frame = begin(text.len());
        frame.extend_from_slice(text);
        sealer.seal(frame).unwrap()
    }

    #[test]
    fn lines_and_frames_come_out_of_one_write() {
        let (mut theirs, mut ours) = pair();
        let mut sealer = Sealer::new(&[1; 32]).unwrap();
        let mut bytes = b"{\"a\":1}\n{\"b\":2}\n".to_vec();
        bytes.extend(sealed(&mut sealer, b"one"));
        bytes.extend(sealed(&mut sealer, b"two"));
        theirs.write_all(&bytes).unwrap();
        assert_eq!(ours.line(soon()).unwrap(), b"{\"a\":1}\n");
        assert_eq!(ours.line(soon()).unwrap(), b"{\"b\":2}\n");
        let mut opener = Opener::new(&[1; 32]).unwrap();
        assert_eq!(ours.frame(&mut opener, Some(soon())).unwrap(), b"one");
        assert_eq!(ours.frame(&mut opener, None).unwrap(), b"two");
        assert_eq!(ours.frame(&mut opener, Some(soon())).unwrap_err(), Stop::Timeout);
        drop(theirs);
        assert_eq!(ours.frame(&mut opener, None).unwrap_err(), Stop::End);
    }

    #[test]
    fn a_timeout_in_the_middle_of_a_frame_loses_no_byte() {
        let (mut theirs, mut ours) = pair();
        let text = vec![b'x'; 300_000];
        let frame = sealed(&mut Sealer::new(&[1; 32]).unwrap(), &text);
        let mut opener = Opener::new(&[1; 32]).unwrap();
        for part in [&frame[..2], &frame[2..100]] {
            theirs.write_all(part).unwrap();
            assert_eq!(ours.frame(&mut opener, Some(soon())).unwrap_err(), Stop::Timeout);
        }
        std::thread::scope(|scope| {
            scope.spawn(|| theirs.write_all(&frame[100..]).unwrap());
            assert!(ours.frame(&mut opener, None).unwrap() == text);
        });
    }

    #[test]
    fn a_timeout_is_rarely_set_again_and_never_longer_than_what_is_left() {
        let seconds = Duration::from_secs;
        let (mut set, mut times) = (None, 0);
        // A message every 10 ms for as long as a heartbeat leaves.
        for passed in 0..1_000_u64 {
            let left = seconds(10) - Duration::from_millis(10 * passed);
            if let Some(timeout) = better_timeout(set, Some(left)) {
                (set, times) = (timeout, times + 1);
            }
            assert!(set.unwrap() <= left);
        }
        assert!(times < 15, "{times}");
        assert_eq!(better_timeout(None, None), None);
        assert_eq!(better_timeout(Some(seconds(1)), None), Some(None));
        assert_eq!(better_timeout(Some(seconds(1)), Some(Duration::ZERO)), Some(Some(Duration::from_millis(1))));
        assert_eq!(better_timeout(Some(Duration::from_millis(1)), Some(seconds(10))), Some(Some(seconds(5))));
    }

    #[test]
    fn an_endless_line_and_an_impossible_length_are_broken() {
        let (mut theirs, mut ours) = pair();
        theirs.write_all(&[b'x'; HELLO_LINE_MAX_BYTES]).unwrap();
        assert_eq!(ours.line(soon()).unwrap_err(), Stop::Broken);
        let (mut theirs, mut ours) = pair();
        theirs.write_all(&[255; 8]).unwrap();
        assert_eq!(ours.frame(&mut Opener::new(&[1; 32]).unwrap(), Some(soon())).unwrap_err(), Stop::Broken);
    }
}
