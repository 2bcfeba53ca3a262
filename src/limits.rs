//! Every bound of the daemon and of its clients, each with what it protects and why it has this value.
//!
//! Constants belong to the protocol and never move; what stands in [`Limits`] is a ceiling that
//! `usherd --limit NAME=N` can only lower.

use crate::version::PROTOCOLS;

/// The lowest protocol we speak (0, the frozen one for operators, stands outside the range).
pub const PROTOCOL_MIN: u16 = PROTOCOLS.0;
/// The highest protocol we speak.
pub const PROTOCOL_MAX: u16 = PROTOCOLS.1;

/// A line of the handshake with its LF: a hello with every scope there is takes a quarter of it.
pub const HELLO_LINE_MAX_BYTES: usize = 4_096;
/// N of a sealed frame: the largest payload (a result) and the largest header, with room.
pub const FRAME_MAX_BYTES: usize = 9 * 1024 * 1024;
/// The tag of AES-256-GCM.
pub const FRAME_TAG_BYTES: usize = 16;
/// The length in front of a frame.
pub const FRAME_LENGTH_BYTES: usize = 4;
/// A message's header: labels, commands and info at their own limits fit twice.
pub const HEADER_MAX_BYTES: usize = 65_536;
/// Requests that one peer may have open on a connection: bounds the lane entries a caller can hold.
pub const OPEN_REQUESTS_MAX: usize = 128;

/// A title, a description, a terminal's name: fits a line of a table.
pub const TITLE_MAX_BYTES: usize = 256;
/// A path, as the kernel bounds it.
pub const PATH_MAX_BYTES: usize = 4_096;
/// A command's key: room for any kind of unique id.
pub const KEY_MAX_BYTES: usize = 128;
/// What an approval asks, and the reason of a decision: a line for a person.
pub const SUMMARY_MAX_BYTES: usize = 1_024;
/// An approval's detail: more than a person reads, and 200 of them are bounded together.
pub const DETAIL_MAX_BYTES: usize = 256 * 1024;
/// All labels of a session together.
pub const LABELS_MAX_BYTES: usize = 4_096;
/// A label's key, a command's name.
pub const NAME_MAX_BYTES: usize = 64;
/// Commands of a session.
pub const COMMANDS_MAX: usize = 64;
/// Runtimes of a session.
pub const RUNTIMES_MAX: usize = 16;
/// All runtimes of a session, as text.
pub const RUNTIMES_MAX_BYTES: usize = 16 * 1024;
/// `info` of a session, as text.
pub const INFO_MAX_BYTES: usize = 4_096;
/// All that a session reports, as JSON, without its snapshot: fits a header with an answer's own fields.
pub const SESSION_MAX_BYTES: usize = 48 * 1024;
/// Sessions that an error names.
pub const NAMED_MAX: usize = 20;
/// Bytes of their titles and paths together: an error is a header.
pub const NAMED_MAX_BYTES: usize = 24 * 1024;
/// Holders, and sessions with their budgets, that `daemon.status` lists.
pub const HOLDERS_MAX: usize = 64;
/// Commands a producer may ask to have at once.
pub const IN_FLIGHT_MAX: u32 = 64;
/// A failure's text that a producer gives for the caller.
pub const FAILURE_MAX_BYTES: usize = 4_096;
/// Commands that a producer of ours holds: those that wait, those that run, and repeats that wait for them.
pub const HELD_MAX: usize = 32;
/// Their inputs together.
pub const HELD_MAX_BYTES: usize = 64 * 1024 * 1024;
/// Keys of commands that a producer of ours remembers.
pub const KEYS_KEPT_MAX: usize = 1_024;
/// What came of them, together.
pub const KEPT_RESULTS_MAX_BYTES: usize = 64 * 1024 * 1024;
/// How long a key is remembered, from its first command on: longer than any deadline.
pub const KEY_KEPT_MS: u64 = 600_000;
/// A line to `usher attach`, without its LF: the largest result and what is around it.
pub const ATTACH_LINE_MAX_BYTES: usize = FRAME_MAX_BYTES;
/// A credential's label.
pub const LABEL_MAX_BYTES: usize = 64;
/// Session selectors or command names of one grant.
pub const GRANT_LIST_MAX: usize = 64;
/// Records in `credentials.json`, the ended ones too.
pub const CREDENTIALS_MAX: usize = 4_096;
/// A list of ours, in one answer.
pub const PAGE_MAX_BYTES: usize = 1024 * 1024;
/// A session prefix in a selector: shorter ones are mistakes.
pub const SESSION_PREFIX_MIN: usize = 4;
/// Nesting of JSON that we read or write anew.
pub const JSON_DEPTH_MAX: usize = 128;

/// A session's heartbeat.
pub const HEARTBEAT_MS: u64 = 10_000;
/// A command's deadline when the caller names none.
pub const DEADLINE_DEFAULT_MS: u64 = 15_000;
/// The longest deadline: what takes longer is a task.
pub const DEADLINE_MAX_MS: u64 = 300_000;
/// How long an approval stands when its asker names nothing.
pub const TTL_DEFAULT_MS: u64 = 600_000;
/// How long an approval can stand.
pub const TTL_MAX_MS: u64 = 24 * 60 * 60 * 1_000;
/// Approvals that have ended and are remembered, for those who decide too late.
pub const DECIDED_MAX: usize = 2_000;
/// Events that can be replayed.
pub const EVENTS_MAX: usize = 4_096;
/// Their bytes.
pub const EVENTS_MAX_BYTES: usize = 16 * 1024 * 1024;
/// How long the CLI waits for a daemon it has started.
pub const START_MS: u64 = 3_000;
/// How long the CLI waits for a hello's end.
pub const HELLO_CLIENT_MS: u64 = 5_000;

const _: () = assert!(FRAME_MAX_BYTES > 8 * 1024 * 1024 + HEADER_MAX_BYTES + FRAME_TAG_BYTES);
const _: () = assert!(HEADER_MAX_BYTES >= SESSION_MAX_BYTES + 4 * 1024);
const _: () = assert!(HEADER_MAX_BYTES > 2 * NAMED_MAX_BYTES + NAMED_MAX * 128);
const _: () = assert!(HEADER_MAX_BYTES > HOLDERS_MAX * (512 + 256) + 8 * 1024);
const _: () = assert!(DEADLINE_DEFAULT_MS < DEADLINE_MAX_MS);
const _: () = assert!(DEADLINE_MAX_MS < KEY_KEPT_MS);
const _: () = assert!(PROTOCOL_MIN <= PROTOCOL_MAX);

macro_rules! limits {
    ($($(#[doc = $doc:literal])+ $field:ident = $name:literal : $value:expr;)+) => {
        /// What one daemon holds at most. Made by [`Limits::default`], lowered by [`Limits::lower`].
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct Limits {
            $($(#[doc = $doc])+ pub $field: u64,)+
        }

        impl Default for Limits {
            fn default() -> Self {
                Self { $($field: $value,)+ }
            }
        }

        impl Limits {
            /// Lowers one limit by its name. Raising is refused: the defaults are what the design was measured at.
            pub fn lower(&mut self, name: &str, value: u64) -> Result<(), String> {
                let field = match name {
                    $($name => &mut self.$field,)+
                    _ => return Err(format!("no limit is called {name}; usherd --help lists them")),
                };
                if value == 0 || value > *field {
                    return Err(format!("limit {name} must be from 1 to {field}: limits can only be lowered"));
                }
                *field = value;
                Ok(())
            }

            /// Name, default and reason of each limit, for the manual and `--help`.
            pub fn table() -> Vec<(&'static str, u64, &'static str)> {
                vec![$(($name, $value, concat!($($doc),+).trim_ascii()),)+]
            }
        }
    };
}

limits! {
    /// connections at once: a thread and a descriptor each
    connections = "connections": 1_280;
    /// of them, kept for operators: who must revoke or stop gets in when all others are taken
    operator_connections = "operator-connections": 8;
    /// connections that have not finished their hello: strangers can hold no more
    unfinished_hellos = "unfinished-hellos": 64;
    /// connections of one default credential
    credential_connections = "credential-connections": 1_024;
    /// registered sessions
    sessions = "sessions": 1_024;
    /// ms for a connection's first line
    first_line_ms = "first-line-ms": 1_000;
    /// ms for the whole hello
    hello_ms = "hello-ms": 5_000;
    /// ms for a frame once begun
    frame_ms = "frame-ms": 10_000;
    /// bytes of a command's input
    input_bytes = "input-bytes": 1024 * 1024;
    /// bytes of a command's result
    result_bytes = "result-bytes": 8 * 1024 * 1024;
    /// bytes of one snapshot
    snapshot_bytes = "snapshot-bytes": 4 * 1024 * 1024;
    /// bytes of all snapshots
    snapshots_total_bytes = "snapshots-total-bytes": 256 * 1024 * 1024;
    /// commands queued for one session
    session_queued = "session-queued": 64;
    /// commands queued in all
    queued = "queued": 1_024;
    /// bytes of all queued commands
    queued_bytes = "queued-bytes": 64 * 1024 * 1024;
    /// keys of commands that are known for one session
    session_keys = "session-keys": 1_024;
    /// keys of commands that are known in all
    keys = "keys": 65_536;
    /// ms after a command's end for which its key is known
    key_ms = "key-ms": 10 * 60 * 1_000;
    /// bytes of the results that are kept for keys
    kept_results_bytes = "kept-results-bytes": 64 * 1024 * 1024;
    /// bytes of all frames being read
    inbound_bytes = "inbound-bytes": 64 * 1024 * 1024;
    /// bytes that one peer has not read yet
    peer_outbound_bytes = "peer-outbound-bytes": 20 * 1024 * 1024;
    /// bytes that all peers have not read yet
    outbound_bytes = "outbound-bytes": 64 * 1024 * 1024;
    /// callers waiting for a session, or following
    streams = "streams": 128;
    /// approvals that nobody has decided yet
    approvals = "approvals": 200;
    /// bytes of their texts
    approvals_bytes = "approvals-bytes": 16 * 1024 * 1024;
    /// leases: sessions that are registered or may be taken back
    leases = "leases": 4_096;
    /// ms after its session's end for which a lease takes it back
    lease_ms = "lease-ms": 24 * 60 * 60 * 1_000;
    /// ms after a start for which commands with a key wait for their session to come back
    recover_ms = "recover-ms": 30_000;
    /// ms without a word after which a session is shown stale
    stale_ms = "stale-ms": 45_000;
    /// ms without a word after which a session is removed
    gone_ms = "gone-ms": 120_000;
    /// ms after its deadline for which a command still holds its place at the producer
    settle_ms = "settle-ms": 5_000;
    /// ms after a start before which a daemon makes no room for a successor
    settled_ms = "settled-ms": 30_000;
    /// bytes of `audit.ndjson` before it becomes the old copy
    audit_bytes = "audit-bytes": 16 * 1024 * 1024;
    /// ms that pending commands get at shutdown, and then the last frames
    shutdown_ms = "shutdown-ms": 5_000;
}

impl Limits {
    /// The share of a total that a credential gets: all of it for a default one, a quarter for any other.
    pub fn share(total: u64, is_default: bool) -> u64 {
        if is_default { total } else { (total / 4).max(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_can_be_lowered_and_never_raised() {
        let mut limits = Limits::default();
        assert_eq!(limits.lower("sessions", 10), Ok(()));
        assert_eq!(limits.sessions, 10);
        assert!(limits.lower("sessions", 11).is_err());
        assert!(limits.lower("sessions", 0).is_err());
        assert!(limits.lower("no-such", 1).is_err());
    }

    /// The number that stands in the manual's table "Limits" beside a name.
    fn told(name: &str) -> Option<&'static str> {
        let section = include_str!("../docs/protocol.md").split("\n## Limits\n").nth(1)?.split("\n## ").next()?;
        let row = section.lines().find_map(|line| line.strip_prefix(&format!("| `{name}` | ")))?;
        row.split(" | ").next()
    }

    fn with_commas(number: u64) -> String {
        let digits = number.to_string();
        let mut text = String::new();
        for (place, digit) in digits.chars().enumerate() {
            if place > 0 && (digits.len() - place) % 3 == 0 {
                text.push(',');
            }
            text.push(digit);
        }
        text
    }

    #[test]
    fn the_manual_has_every_limit_with_its_number() {
        for (name, value, _) in Limits::table() {
            assert_eq!(told(name), Some(with_commas(value).as_str()), "{name}");
        }
    }

    #[test]
    fn the_manual_has_every_constant_with_its_number() {
        macro_rules! named {
            ($($name:ident)+) => { [$((stringify!($name), u64::try_from($name).unwrap())),+] };
        }
        let constants = named!(
            PROTOCOL_MIN PROTOCOL_MAX HELLO_LINE_MAX_BYTES FRAME_MAX_BYTES FRAME_TAG_BYTES FRAME_LENGTH_BYTES
            HEADER_MAX_BYTES OPEN_REQUESTS_MAX TITLE_MAX_BYTES PATH_MAX_BYTES KEY_MAX_BYTES
            SUMMARY_MAX_BYTES DETAIL_MAX_BYTES LABELS_MAX_BYTES NAME_MAX_BYTES
            COMMANDS_MAX RUNTIMES_MAX RUNTIMES_MAX_BYTES INFO_MAX_BYTES SESSION_MAX_BYTES NAMED_MAX NAMED_MAX_BYTES
            HOLDERS_MAX IN_FLIGHT_MAX FAILURE_MAX_BYTES
            HELD_MAX HELD_MAX_BYTES KEYS_KEPT_MAX KEPT_RESULTS_MAX_BYTES KEY_KEPT_MS ATTACH_LINE_MAX_BYTES
            LABEL_MAX_BYTES GRANT_LIST_MAX CREDENTIALS_MAX PAGE_MAX_BYTES SESSION_PREFIX_MIN JSON_DEPTH_MAX
            HEARTBEAT_MS DEADLINE_DEFAULT_MS DEADLINE_MAX_MS TTL_DEFAULT_MS TTL_MAX_MS DECIDED_MAX EVENTS_MAX EVENTS_MAX_BYTES
            START_MS HELLO_CLIENT_MS
        );
        let source = include_str!("limits.rs").lines().filter_map(|line| line.strip_prefix("pub const "));
        let in_source: Vec<_> = source.filter_map(|line| line.split(':').next()).collect();
        assert_eq!(in_source, constants.map(|(name, _)| name), "a constant is missing in this test");
        for (name, value) in constants {
            let name = name.to_lowercase().replace('_', "-");
            assert_eq!(told(&name), Some(with_commas(value).as_str()), "{name}");
        }
    }

    #[test]
    fn a_frame_holds_every_payload_with_its_header() {
        let limits = Limits::default();
        for payload in [limits.input_bytes, limits.result_bytes, limits.snapshot_bytes] {
            assert!(payload + HEADER_MAX_BYTES as u64 + 17 <= FRAME_MAX_BYTES as u64);
        }
    }
}
