//! The one table of methods: name, who may call it, whether it carries a payload.

use crate::wire::lines::Role;

macro_rules! methods {
    ($($variant:ident $name:literal [$($role:ident)+] $payload:literal;)+) => {
        /// A method that a peer may ask of the daemon. Its name is its scope.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Method {
            $(#[doc = $name] $variant,)+
        }

        impl Method {
            /// All of them, in the order of the manual.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The name on the wire.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// The method of a name.
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)+ _ => None }
            }

            /// Whether the role's row has it.
            pub fn is_for(self, role: Role) -> bool {
                match self { $(Self::$variant => matches!(role, $(Role::$role)|+),)+ }
            }

            /// Whether a request of it may carry a payload.
            pub fn takes_payload(self) -> bool {
                match self { $(Self::$variant => $payload,)+ }
            }
        }
    };
}

methods! {
    SessionRegister "session.register" [Producer] true;
    SessionUpdate "session.update" [Producer] true;
    SessionHeartbeat "session.heartbeat" [Producer] false;
    SessionUnregister "session.unregister" [Producer] false;
    SessionStageKey "session.stage_key" [Producer] false;
    SessionConfirmKey "session.confirm_key" [Producer] false;
    SessionList "session.list" [Caller Operator] false;
    SessionGet "session.get" [Caller Operator] false;
    SessionSend "session.send" [Caller] true;
    SessionWait "session.wait" [Caller Operator] false;
    ApprovalRequest "approval.request" [Caller] true;
    ApprovalList "approval.list" [Caller Operator] false;
    ApprovalWithdraw "approval.withdraw" [Caller] false;
    ApprovalDecide "approval.decide" [Operator] false;
    EventsSubscribe "events.subscribe" [Caller Operator] false;
    EventsUnsubscribe "events.unsubscribe" [Caller Operator] false;
    DaemonStatus "daemon.status" [Caller Operator] false;
    CredentialList "credential.list" [Operator] false;
    CredentialEnroll "credential.enroll" [Operator] false;
    CredentialRevoke "credential.revoke" [Operator] false;
    CredentialRenew "credential.renew" [Operator] false;
    AuditHead "audit.head" [Operator] false;
    DaemonDrain "daemon.drain" [Operator] false;
    DaemonStop "daemon.stop" [Operator] false;
}

/// What the daemon asks of a producer: run one command.
pub const COMMAND: &str = "command";
/// Either side: nobody waits for that id any more.
pub const CANCEL: &str = "$/cancel";
/// The daemon, to producers, before it ends.
pub const DAEMON_CLOSING: &str = "daemon.closing";
/// The daemon, to an asker: its question was taken.
pub const APPROVAL_PENDING: &str = "approval.pending";
/// The daemon, to a subscriber: what happened.
pub const EVENTS: &str = "events";
/// The daemon's first frame to a peer that it lets in.
pub const WELCOME: &str = "welcome";
/// The daemon's first and last frame to a peer that it does not let in.
pub const REFUSED: &str = "refused";
/// Each side's last frame.
pub const CLOSING: &str = "closing";

/// A set of methods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Scopes(u64);

const _: () = assert!(Method::ALL.len() <= 64);

impl Scopes {
    /// Everything in the role's row.
    pub fn row(role: Role) -> Self {
        Method::ALL.iter().filter(|method| method.is_for(role)).fold(Self::default(), |set, &method| set.with(method))
    }

    /// The set with one more.
    #[must_use]
    pub fn with(self, method: Method) -> Self {
        Self(self.0 | 1 << method as u32)
    }

    /// What is in both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Whether the method is in it.
    pub fn has(self, method: Method) -> bool {
        self.0 & (1 << method as u32) != 0
    }

    /// The names, in the order of the manual.
    pub fn names(self) -> Vec<&'static str> {
        Method::ALL.iter().filter(|&&method| self.has(method)).map(|method| method.name()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manual_has_the_same_table() {
        let manual = include_str!("../../docs/protocol.md");
        for method in Method::ALL {
            let start = format!("| `{}` |", method.name());
            let row = manual.lines().find(|line| line.starts_with(&start)).unwrap_or_else(|| panic!("no row {start}"));
            let cells: Vec<_> = row.split('|').map(str::trim).collect();
            for (cell, role) in cells[2..5].iter().zip(Role::ALL) {
                assert_eq!(*cell == "✓", method.is_for(role), "{row}");
            }
            assert_eq!(!cells[5].is_empty(), method.takes_payload(), "{row}");
        }
    }

    #[test]
    fn a_role_is_never_granted_the_row_of_another() {
        assert!(!Scopes::row(Role::Producer).has(Method::SessionList));
        assert!(!Scopes::row(Role::Caller).has(Method::CredentialRevoke));
        assert!(!Scopes::row(Role::Operator).has(Method::SessionSend));
        let narrowed = Scopes::row(Role::Caller).and(Scopes::default().with(Method::SessionList));
        assert_eq!(narrowed.names(), ["session.list"]);
    }
}
