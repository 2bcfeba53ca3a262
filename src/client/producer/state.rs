//! Where a producer's link to the daemon is, and what leads from there to where. Pure.
//!
//! ```text
//! Idle ──▶ Connecting ──▶ Open
//!           ▲  ▲  │         │ lost, refused
//!     retry │  │  ▼         ▼
//!     Revoked  Waiting ◀────┘          every state ──▶ Stopped, for good
//! ```
//!
//! Whatever is asked in whatever order, there is one attempt at a time: `Connecting` is entered from elsewhere only, and
//! only the link acts on it.

use std::time::Duration;

use crate::ids::Generation;
use crate::wire::codes::Code;

/// The first pause before looking at the daemon's health, and the longest one.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// The longest pause after what takes a program or a file to try.
const PAUSE_COSTLY_MAX: Duration = Duration::from_secs(60);
/// Of each pause, so that many windows do not come back at once.
const JITTER_PERCENT: u32 = 20;

/// Where the link is. `round` counts failures in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Nothing was tried.
    Idle,
    /// Hello and registration are under way.
    Connecting { round: u32 },
    /// Registered.
    Open,
    /// Only health is asked.
    Waiting { round: u32, wait: Wait },
    /// The daemon does not let this key in. Nothing is tried until somebody says so.
    Revoked,
    /// For good.
    Stopped,
}

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Any daemon that is well.
    Any,
    /// Any daemon, but every try costs something.
    Costly,
    /// A daemon that somebody else starts: an operator has stopped the last one, and that is not ours to undo.
    Started,
    /// Another than this one, which has said by its signature that it will not have us.
    OtherThan(Generation),
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// It is to be connected.
    Started,
    /// It is to be tried now, whatever was waited for.
    Retried,
    /// The daemon has the session.
    Registered,
    /// No connection, or not any more.
    Lost,
    /// The daemon was stopped by an operator.
    Dismissed,
    /// No daemon can be started, or files cannot be used.
    Unusable,
    /// The daemon refused, in this start of it if that is known.
    Refused(Code, Option<Generation>),
    /// The daemon speaks other protocols.
    Incompatible(Generation),
    /// Who listens is well.
    Healthy(Generation),
    /// Who listens does not answer.
    Unwell,
    /// Nobody listens.
    Vanished,
    /// Nothing more is wanted.
    Stopped,
}

impl State {
    /// The one table of transitions.
    pub fn next(self, event: Event) -> Self {
        let round = match self {
            Self::Connecting { round } | Self::Waiting { round, .. } => round,
            Self::Idle | Self::Open | Self::Revoked | Self::Stopped => 0,
        };
        let waiting = |wait| Self::Waiting { round: round.saturating_add(1), wait };
        match (self, event) {
            (Self::Stopped, _) | (_, Event::Stopped) => Self::Stopped,
            (Self::Idle, Event::Started | Event::Retried) | (Self::Waiting { .. } | Self::Revoked, Event::Retried) => {
                Self::Connecting { round }
            }
            (Self::Connecting { .. }, Event::Registered) => Self::Open,
            (Self::Connecting { .. } | Self::Open, Event::Lost) => waiting(Wait::Any),
            (Self::Connecting { .. } | Self::Open, Event::Dismissed) => waiting(Wait::Started),
            (Self::Waiting { wait: Wait::Started, .. }, Event::Vanished) => waiting(Wait::Started),
            (Self::Connecting { .. }, Event::Unusable) => waiting(Wait::Costly),
            (Self::Connecting { .. }, Event::Incompatible(generation)) => waiting(Wait::OtherThan(generation)),
            (Self::Connecting { .. } | Self::Open, Event::Refused(code, generation)) => {
                match (fate(code), generation) {
                    (Fate::Final, _) => Self::Revoked,
                    (Fate::OtherDaemon, Some(generation)) => waiting(Wait::OtherThan(generation)),
                    (Fate::OtherDaemon | Fate::Later, _) => waiting(Wait::Any),
                }
            }
            (Self::Waiting { wait: Wait::OtherThan(refused), .. }, Event::Healthy(generation))
                if generation == refused =>
            {
                waiting(Wait::OtherThan(refused))
            }
            (Self::Waiting { .. }, Event::Healthy(_) | Event::Vanished) => Self::Connecting { round },
            (Self::Waiting { wait, .. }, Event::Unwell) => waiting(wait),
            (state, _) => state,
        }
    }
}

enum Fate {
    /// This key will never be let in.
    Final,
    /// Not by this daemon.
    OtherDaemon,
    /// Perhaps in a moment.
    Later,
}

fn fate(code: Code) -> Fate {
    match code {
        Code::Revoked | Code::Unauthenticated | Code::Denied | Code::Expired | Code::Role => Fate::Final,
        // The old connection of this session may not have been noticed to be gone.
        Code::SessionOwned | Code::Busy | Code::QueueFull => Fate::Later,
        _ => Fate::OtherDaemon,
    }
}

/// How long to wait in a round, counted from 1. `dice` is any number.
pub fn pause(round: u32, wait: Wait, dice: u32) -> Duration {
    let most = if wait == Wait::Costly { PAUSE_COSTLY_MAX } else { PAUSE_MAX };
    let doublings = round.saturating_sub(1).min(16);
    let pause = (PAUSE * 2_u32.pow(doublings)).min(most);
    let percent = 100 - JITTER_PERCENT + dice % (2 * JITTER_PERCENT + 1);
    pause * percent / 100
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Generation = Generation([1; 16]);
    const NEW: Generation = Generation([2; 16]);

    fn after(events: &[Event]) -> State {
        events.iter().fold(State::Idle, |state, event| state.next(*event))
    }

    #[test]
    fn a_lost_daemon_is_waited_for_and_tried_again() {
        let lost = after(&[Event::Started, Event::Registered, Event::Lost]);
        assert_eq!(lost, State::Waiting { round: 1, wait: Wait::Any });
        assert_eq!(lost.next(Event::Unwell), State::Waiting { round: 2, wait: Wait::Any });
        assert_eq!(lost.next(Event::Vanished), State::Connecting { round: 1 });
        assert_eq!(lost.next(Event::Healthy(OLD)), State::Connecting { round: 1 });
        assert_eq!(lost.next(Event::Healthy(OLD)).next(Event::Registered), State::Open);
    }

    #[test]
    fn a_daemon_that_was_stopped_is_not_started_again_but_joined_when_somebody_does() {
        let stopped = after(&[Event::Started, Event::Registered, Event::Dismissed]);
        assert_eq!(stopped.next(Event::Vanished), State::Waiting { round: 2, wait: Wait::Started });
        assert_eq!(stopped.next(Event::Vanished).next(Event::Healthy(NEW)), State::Connecting { round: 2 });
    }

    #[test]
    fn a_daemon_that_refused_by_its_signature_is_not_asked_again() {
        for refusal in [Event::Refused(Code::Draining, Some(OLD)), Event::Incompatible(OLD)] {
            let refused = after(&[Event::Started, refusal]);
            assert_eq!(refused.next(Event::Healthy(OLD)), State::Waiting { round: 2, wait: Wait::OtherThan(OLD) });
            assert_eq!(refused.next(Event::Healthy(NEW)), State::Connecting { round: 1 });
            assert_eq!(refused.next(Event::Vanished), State::Connecting { round: 1 });
        }
    }

    #[test]
    fn a_session_that_is_still_owned_is_tried_again() {
        let owned = after(&[Event::Started, Event::Refused(Code::SessionOwned, Some(OLD))]);
        assert_eq!(owned.next(Event::Healthy(OLD)), State::Connecting { round: 1 });
    }

    #[test]
    fn a_key_that_is_not_let_in_is_not_shown_again_until_somebody_says_so() {
        for code in [Code::Revoked, Code::Unauthenticated, Code::Denied, Code::Expired, Code::Role] {
            let refused = after(&[Event::Started, Event::Refused(code, None)]);
            assert_eq!(refused, State::Revoked);
            for event in [Event::Started, Event::Healthy(NEW), Event::Vanished, Event::Lost] {
                assert_eq!(refused.next(event), State::Revoked);
            }
            assert_eq!(refused.next(Event::Retried), State::Connecting { round: 0 });
        }
    }

    #[test]
    fn a_link_that_was_stopped_does_nothing_more() {
        for before in
            [vec![], vec![Event::Started], vec![Event::Started, Event::Registered], vec![Event::Started, Event::Lost]]
        {
            let stopped = after(&before).next(Event::Stopped);
            for event in
                [Event::Started, Event::Retried, Event::Registered, Event::Lost, Event::Healthy(OLD), Event::Stopped]
            {
                assert_eq!(stopped.next(event), State::Stopped, "{before:?}");
            }
        }
    }

    #[test]
    fn whatever_is_asked_in_whatever_order_there_is_one_attempt_at_a_time() {
        let connecting = after(&[Event::Started]);
        assert_eq!(connecting.next(Event::Started), connecting);
        assert_eq!(connecting.next(Event::Retried), connecting);
        let open = connecting.next(Event::Registered);
        assert_eq!((open.next(Event::Started), open.next(Event::Retried)), (State::Open, State::Open));
        assert_eq!(after(&[Event::Retried]), connecting);
        let waiting = connecting.next(Event::Lost);
        assert_eq!(waiting.next(Event::Started), waiting, "a start is not a retry");
        assert_eq!(waiting.next(Event::Retried), State::Connecting { round: 1 });
        let dismissed = open.next(Event::Dismissed);
        assert_eq!(dismissed.next(Event::Retried), State::Connecting { round: 1 }, "who says so may start a daemon");
    }

    #[test]
    fn pauses_grow_from_one_second_to_five_and_are_never_the_same_for_all() {
        assert_eq!(pause(1, Wait::Any, 20), Duration::from_secs(1));
        assert_eq!(pause(1, Wait::Any, 0), Duration::from_millis(800));
        assert_eq!(pause(1, Wait::Any, 40), Duration::from_millis(1_200));
        assert_eq!(pause(3, Wait::Any, 20), Duration::from_secs(4));
        assert_eq!(pause(100, Wait::OtherThan(OLD), 20), Duration::from_secs(5));
        assert_eq!(pause(100, Wait::Costly, 20), Duration::from_secs(60));
    }
}
