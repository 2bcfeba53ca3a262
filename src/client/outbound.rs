//! Bytes to the daemon, never past a deadline.
//!
//! One system call where the kernel has room. No SIGPIPE is raised: how a program wants that signal is its own matter.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, send};

use crate::sys;

/// Writes all of it until the deadline. After an error a part may have gone: the stream is of no use any more.
pub(super) fn write_all(stream: &UnixStream, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    let flags = MsgFlags::MSG_DONTWAIT | sys::NO_SIGNAL;
    while !bytes.is_empty() {
        match send(stream.as_raw_fd(), bytes, flags) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) => wait_for_room(stream, deadline)?,
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

fn wait_for_room(stream: &UnixStream, deadline: Instant) -> io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(ErrorKind::WouldBlock.into());
    }
    // One millisecond more: poll counts whole ones and would return just before.
    let timeout = PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
    match poll(&mut [PollFd::new(stream.as_fd(), PollFlags::POLLOUT)], timeout) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
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

    /// A signal that is blocked stays with the thread that raised it, also where the process ignores it.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_peer_that_is_gone_is_an_error_and_no_signal() {
        use nix::sys::signal::{SigSet, Signal};

        let pipe: SigSet = [Signal::SIGPIPE].into_iter().collect();
        pipe.thread_block().unwrap();
        let signals = sys::Signals::new(&pipe).unwrap();
        let (theirs, ours) = UnixStream::pair().unwrap();
        drop(theirs);
        assert!(write_all(&ours, b"x", Instant::now() + Duration::from_secs(1)).is_err());
        assert_eq!(signals.wait(Some(Duration::ZERO)).unwrap(), None);
        assert_eq!(nix::unistd::write(&ours, b"x"), Err(Errno::EPIPE));
        assert_eq!(
            signals.wait(Some(Duration::ZERO)).unwrap().unwrap().signal,
            Signal::SIGPIPE,
            "the test would see it"
        );
        pipe.thread_unblock().unwrap();
    }

    #[test]
    fn a_peer_that_reads_slowly_gets_all_of_it() {
        let (theirs, ours) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| io::copy(&mut &theirs, &mut io::sink()).unwrap());
            write_all(&ours, &vec![0; 4 << 20], Instant::now() + Duration::from_secs(20)).unwrap();
            ours.shutdown(std::net::Shutdown::Both).unwrap();
            assert_eq!(reader.join().unwrap(), 4 << 20);
        });
    }
}
