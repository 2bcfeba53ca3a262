//! Bytes to the daemon, never past a deadline.

use std::io::{self, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Writes all of it until the deadline. After an error a part may have gone: the stream is of no use any more.
pub(super) fn write_all(mut stream: &UnixStream, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        stream.set_write_timeout(Some(left.max(Duration::from_millis(1))))?;
        match stream.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < deadline => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_does_not_read_ends_the_write_at_the_deadline() {
        let (_theirs, ours) = UnixStream::pair().unwrap();
        let started = Instant::now();
        let error = write_all(&ours, &vec![0; 16 << 20], started + Duration::from_millis(30)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        assert!(started.elapsed() < Duration::from_secs(5));
    }
}
