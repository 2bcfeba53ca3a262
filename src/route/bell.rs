//! Wakes one thread that has something to look at. Ringing twice before it looks is ringing once.

use parking_lot::{Condvar, Mutex};

/// Rung by whoever has work for a thread.
#[derive(Default)]
pub struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    /// There is something to do.
    pub fn ring(&self) {
        let mut rung = self.rung.lock();
        if !*rung {
            *rung = true;
            self.changed.notify_one();
        }
    }

    /// Waits until it is rung.
    pub fn wait(&self) {
        let mut rung = self.rung.lock();
        while !*rung {
            self.changed.wait(&mut rung);
        }
        *rung = false;
    }
}
