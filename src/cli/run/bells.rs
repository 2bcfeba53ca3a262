//! The handlers that run now, and how they are woken.
//!
//! Owns: a bell for each, which its thread listens to beside the pipes of its shell. A ring says only that there is
//! something to look at: a child that ended, or an order. Nobody waits for anybody here.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use parking_lot::Mutex;

/// Shared by main, the handlers, and whoever cancels one.
#[derive(Clone, Default)]
pub struct Bells(Arc<Mutex<Table>>);

#[derive(Default)]
struct Table {
    bells: BTreeMap<u64, Arc<UnixStream>>,
    last: u64,
}

/// A handler's place; dropped, it runs no more.
pub struct Place {
    bells: Bells,
    key: u64,
    /// Where the handler listens. It never waits.
    pub ear: UnixStream,
    /// What rings there.
    pub bell: Arc<UnixStream>,
}

impl Bells {
    /// How many run.
    pub fn count(&self) -> usize {
        self.0.lock().bells.len()
    }

    /// A child of this process may have ended.
    pub fn ring(&self) {
        self.0.lock().bells.values().for_each(|bell| ring(bell));
    }

    /// For a handler that begins.
    pub fn place(&self) -> io::Result<Place> {
        let (bell, ear) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        ear.set_nonblocking(true)?;
        let bell = Arc::new(bell);
        let mut table = self.0.lock();
        table.last += 1;
        let key = table.last;
        table.bells.insert(key, Arc::clone(&bell));
        drop(table);
        Ok(Place { bells: self.clone(), key, ear, bell })
    }
}

/// A bell that is full rings already.
pub fn ring(mut bell: &UnixStream) {
    let _ = bell.write(&[0]);
}

impl Drop for Place {
    fn drop(&mut self) {
        self.bells.0.lock().bells.remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn every_handler_that_runs_is_woken_and_one_that_has_ended_is_forgotten() {
        let bells = Bells::default();
        let (mut one, two) = (bells.place().unwrap(), bells.place().unwrap());
        assert_eq!(bells.count(), 2);
        drop(two);
        assert_eq!(bells.count(), 1);
        assert!(one.ear.read(&mut [0]).is_err());
        bells.ring();
        ring(&one.bell);
        assert_eq!(one.ear.read(&mut [0; 8]).unwrap(), 2);
    }
}
