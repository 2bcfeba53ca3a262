//! Commands that the program has and has not answered.
//!
//! Owns: their ids, and who waits for which. Invariant: each is answered once, or given up once; what is said of it
//! afterwards changes nothing. A handler waits for the reader here; the reader waits for nobody.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

/// What came of a command: JSON text, or why not.
pub type Answer = Result<Vec<u8>, String>;

/// All of them, by id.
#[derive(Default)]
pub struct Calls(Mutex<Table>);

#[derive(Default)]
struct Table {
    open: BTreeMap<u64, Arc<Call>>,
    last: u64,
}

/// One that is not answered yet.
#[derive(Default)]
pub struct Call {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    answer: Option<Answer>,
    is_given_up: bool,
}

/// What an answer was worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Worth {
    /// It was waited for.
    Taken,
    /// The command is over: it was answered already, cancelled or too late.
    Over,
    /// No command has had that id.
    Never,
}

impl Calls {
    /// One more, and its id.
    pub fn open(&self) -> (u64, Arc<Call>) {
        let mut table = self.0.lock();
        table.last += 1;
        let (id, call) = (table.last, Arc::<Call>::default());
        table.open.insert(id, Arc::clone(&call));
        (id, call)
    }

    /// The program answered.
    pub fn answer(&self, id: u64, answer: Answer) -> Worth {
        let mut table = self.0.lock();
        let Some(call) = table.open.remove(&id) else {
            return if (1..=table.last).contains(&id) { Worth::Over } else { Worth::Never };
        };
        drop(table);
        let mut state = call.state.lock();
        if state.is_given_up {
            return Worth::Over;
        }
        state.answer = Some(answer);
        call.changed.notify_all();
        Worth::Taken
    }

    /// How many the program has not answered.
    pub fn unanswered(&self) -> usize {
        self.0.lock().open.len()
    }

    /// Nobody waits for it any more.
    pub fn close(&self, id: u64) {
        self.0.lock().open.remove(&id);
    }
}

impl Call {
    /// Wakes who waits, to look whether it is still to wait.
    pub fn wake(&self) {
        // With the lock: who has just looked would sleep through it.
        let _state = self.state.lock();
        self.changed.notify_all();
    }

    /// Waits for the answer, as long as this holds, and until then. None: given up, for good.
    pub fn wait(&self, until: Option<Instant>, is_wanted: impl Fn() -> bool) -> Option<Answer> {
        let mut state = self.state.lock();
        loop {
            if let Some(answer) = state.answer.take() {
                return Some(answer);
            }
            let is_late = until.is_some_and(|until| until <= Instant::now());
            if is_late || !is_wanted() {
                state.is_given_up = true;
                return None;
            }
            match until {
                Some(until) => drop(self.changed.wait_until(&mut state, until)),
                None => self.changed.wait(&mut state),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_answer_is_taken_once_and_one_that_nobody_asked_for_never() {
        let calls = Calls::default();
        let (id, call) = calls.open();
        assert_eq!((id, calls.answer(2, Ok(vec![])), calls.answer(0, Ok(vec![]))), (1, Worth::Never, Worth::Never));
        assert_eq!(calls.answer(1, Ok(b"1".to_vec())), Worth::Taken);
        assert_eq!(calls.answer(1, Ok(b"2".to_vec())), Worth::Over);
        assert_eq!(call.wait(None, || true), Some(Ok(b"1".to_vec())));
    }

    #[test]
    fn a_call_that_is_given_up_takes_no_answer() {
        let calls = Calls::default();
        let (id, call) = calls.open();
        assert_eq!(call.wait(Some(Instant::now() + Duration::from_millis(5)), || true), None);
        assert_eq!(calls.answer(id, Ok(vec![])), Worth::Over);
        let (id, call) = calls.open();
        let wanted = AtomicBool::new(true);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| call.wait(None, || wanted.load(Ordering::SeqCst)));
            wanted.store(false, Ordering::SeqCst);
            call.wake();
            assert_eq!(waits.join().unwrap(), None);
        });
        calls.close(id);
        assert_eq!(calls.answer(id, Ok(vec![])), Worth::Over);
    }
}
