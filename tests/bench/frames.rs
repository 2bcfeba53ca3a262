//! Length-prefixed frames over a blocking socket: one read for a small frame, one write for any.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

/// The reading side.
pub struct Reader {
    socket: UnixStream,
    buffer: Vec<u8>,
    from: usize,
    filled: usize,
}

impl Reader {
    pub fn new(socket: UnixStream) -> Self {
        Self { socket, buffer: vec![0; 128 * 1024], from: 0, filled: 0 }
    }

    fn fill(&mut self, wanted: usize) -> Option<()> {
        if self.from > 0 && self.from + wanted > self.buffer.len() {
            self.buffer.copy_within(self.from..self.filled, 0);
            self.filled -= self.from;
            self.from = 0;
        }
        if wanted > self.buffer.len() {
            self.buffer.resize(wanted, 0);
        }
        while self.filled - self.from < wanted {
            match self.socket.read(&mut self.buffer[self.filled..]) {
                Ok(0) | Err(_) => return None,
                Ok(count) => self.filled += count,
            }
        }
        Some(())
    }

    /// The next line without its LF.
    pub fn line(&mut self) -> Option<Vec<u8>> {
        let mut seen = 0;
        loop {
            let have = &self.buffer[self.from..self.filled];
            if let Some(end) = have[seen..].iter().position(|&byte| byte == b'\n') {
                let line = have[..seen + end].to_vec();
                self.from += seen + end + 1;
                return Some(line);
            }
            seen = have.len();
            self.fill(seen + 1)?;
        }
    }

    /// The next frame: its prefix and what it holds, to be changed in place.
    pub fn frame(&mut self) -> Option<([u8; 4], &mut [u8])> {
        if self.from == self.filled {
            (self.from, self.filled) = (0, 0);
        }
        self.fill(4)?;
        let prefix: [u8; 4] = self.buffer[self.from..self.from + 4].try_into().unwrap();
        let length = u32::from_be_bytes(prefix) as usize;
        self.fill(4 + length)?;
        let start = self.from + 4;
        self.from = start + length;
        Some((prefix, &mut self.buffer[start..start + length]))
    }
}

/// Writes all of it; `false` once the other side is gone.
pub fn write(mut socket: &UnixStream, bytes: &[u8]) -> bool {
    socket.write_all(bytes).is_ok()
}
