//! What `--help` says. It needs no home, no directory and no daemon.

use crate::version::version;

/// The program and its version.
pub const VERSION: &str = concat!("usher ", version!());

macro_rules! topics {
    ($($topic:ident $word:literal $text:literal;)+) => {
        /// What is explained.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Topic {
            /// The program.
            Usher,
            $(#[doc = $word] $topic,)+
        }

        impl Topic {
            /// The topic of a verb.
            pub fn of(verb: &str) -> Option<Self> {
                match verb { $($word => Some(Self::$topic),)+ _ => None }
            }

            /// How it is called.
            pub fn name(self) -> &'static str {
                match self { Self::Usher => "usher", $(Self::$topic => concat!("usher ", $word),)+ }
            }
        }

        /// The explanation.
        pub fn text(topic: Topic) -> &'static str {
            match topic { Topic::Usher => USHER, $(Topic::$topic => $text,)+ }
        }

        #[cfg(test)]
        const ALL: &[Topic] = &[Topic::Usher, $(Topic::$topic,)+];
    };
}

const USHER: &str = "\
usher: drive the programs you already have open

Usage: usher VERB [OPTION]… [ARGUMENT]…

Sessions
  run      run a program as a session that others can find and drive
  attach   make the program that starts it a session, over standard input and output
  list     show the sessions
  get      show one session and its latest snapshot
  send     send a command to a session and print its result
  wait     wait until a session is there
  events   show what happens

Approvals
  ask        ask a person, and wait for the answer
  approvals  show what is asked
  approve    say yes to questions
  reject     say no to questions

Daemon
  status   show the daemon, its limits and who uses them
  health   say whether a daemon is alive
  paths    show where everything is
  stop     end the daemon
  drain    let the daemon end with its last session
  restart  start the installed daemon in place of the one that runs
  keys     show, make, renew and revoke credentials
  audit    show and check what happened to keys, connections and sessions
  verify   check a receipt, without the daemon
  rpc      call a method of the protocol

Options of every verb
  --json            one JSON document on standard output; errors as JSON on standard error
  --credential DIR  use the bundle in DIR and no other key (also USHER_CREDENTIAL)
  --operator        use the operator's key although this runs inside a session
  -h, --help        explain; with a verb, explain the verb
  -V, --version     name the version

Environment: USHER_DIR names the directory, else ~/.local/state/usher/<host>.

Exit codes: 0 done · 1 negative answer · 2 usage · 3 no daemon, connection lost · 4 timeout · 5 denied · 6 not found ·
7 ambiguous · 8 incompatible daemon · 9 conflict · 10 no capacity · 70 a bug · 128+n signal n
";

topics! {
    Run "run" "\
usher run: run a program as a session

Usage: usher run [OPTION]… [--] PROGRAM [ARGUMENT]…

  --title TITLE        what lists show; the command line when absent
  --label KEY=VALUE    for selectors; repeatable
  --on NAME=COMMAND    offer the command NAME: a shell runs COMMAND for each, the input on its standard input,
                       its standard output is the result; repeatable
  --max-in-flight N    commands at once, 1 when absent

Every session has the commands status and signal too. The program starts at once and finds its session's id in
USHER_SESSION; a daemon is started where none runs, and the program never waits for it. Exits as the program does,
128+n when signal n ended it.
";
    Attach "attach" "\
usher attach: make the program that starts it a session, over standard input and output

Usage: usher attach [OPTION]…

  --title TITLE        what lists show; the folder's name when absent
  --label KEY=VALUE    for selectors; repeatable
  --command NAME       offer the command NAME; repeatable
  --max-in-flight N    commands at once, 1 when absent

Speaks JSON-RPC 2.0, one message a line. To the program: {\"id\":1,\"method\":\"command\",\"params\":{\"command\":…,\"input\":…}},
and the notifications $/cancel, connection and error. From it: {\"id\":1,\"result\":…}, {\"id\":1,\"error\":{\"message\":…}},
and update {title, labels, commands, snapshot}. docs/attach.md has examples for shell, Python and Node. A daemon is
started where none runs. The end of standard input ends the session, exit 0; 128+n for a signal.
";
    List "list" "\
usher list: show the sessions

Usage: usher list [SELECTOR]…

  --session ID     the id or its beginning, at least 4 characters
  --cwd PATH       exactly this working directory
  --repo PATH      the nearest root that contains PATH, inside the repository of PATH
  --label K=V      this label; repeatable
  --title TITLE    exactly this title

What is given must all match. Without a daemon the list is empty and the exit code 0.
";
    Ask "ask" "\
usher ask: ask a person, and wait for the answer

Usage: usher ask SUMMARY [--detail TEXT | --detail-file FILE] [--ttl DURATION] [--receipt FILE]

  --detail TEXT        what to read before deciding
  --detail-file FILE   the same from a file, from standard input with -; at most 256 KiB of text
  --ttl DURATION       how long the question stands: 10m when absent, 24h at most
  --receipt FILE       keep the signed decision in a new file; usher verify checks it

Exits 0 when somebody with an operator's key approved, and for no other reason: 1 rejected or withdrawn, 3 the daemon
was lost or ended, 4 nobody answered in time, 10 too many questions. Prints nothing on standard output without --json.
On a terminal it says how to answer. A daemon is started where none runs; the question ends with this program.

  usher ask 'apply this plan?' --detail-file plan.txt && terraform apply
";
    Approvals "approvals" "\
usher approvals: show what is asked

Usage: usher approvals [ID] [--follow]

  ID         one in full with its detail: its id or at least 4 characters of its beginning
  --follow   those that are open, then each new one and each end, as they come

Who asks and since when is the daemon's word; session, folder, terminal and process are the asker's. Uses the operator's
key, or the bundle's: a caller sees what its own key has asked. A bundle needs the scope approval.list, with --follow
events.subscribe too. Without a daemon nothing is asked, exit 0; with --follow 3, as when the daemon goes.
";
    Approve "approve" "\
usher approve: say yes to questions

Usage: usher approve ID… [--reason TEXT] [--receipt FILE]

  ID              an approval's id, or at least 4 characters of its beginning that mean one alone; several are decided
                  in turn
  --reason TEXT   told to the asker
  --receipt FILE  keep the daemon's signed answer in a new file

Each question has one answer: whoever is late exits 9 and is told who decided. Exits 6 for an unknown id, 7 for an
ambiguous one; with several ids as the first that failed. Signed with the operator's key.
";
    Reject "reject" "\
usher reject: say no to questions

Usage: usher reject ID… [--reason TEXT] [--receipt FILE]

As usher approve; the asker exits 1 and is told the reason.
";
    Get "get" "\
usher get: show one session and its latest snapshot

Usage: usher get [--session ID] [--cwd PATH] [--repo PATH] [--label K=V]… [--title TITLE]

Exits 6 when no session matches, 7 when several do.
";
    Send "send" "\
usher send: send a command to a session and print its result

Usage: usher send [SELECTOR]… COMMAND [INPUT | - | @FILE | --text TEXT]

  INPUT               one JSON text; from standard input with -, from a file with @FILE; null when absent
  --text TEXT         a text in place of JSON
  --deadline TIME     500ms, 30s, 5m; 15s when absent, 5m at most
  --key KEY           run it once: a repeat with this key within 10 minutes gets the first outcome
  SELECTOR            --session ID, --cwd PATH, --repo PATH, --label K=V, --title TITLE; none: the only session

Prints a result that is a string as it is, any other as JSON. Exits 1 when the command failed, 4 at the deadline,
6 when there is no such session or command, 7 when several sessions match.
";
    Wait "wait" "\
usher wait: wait until exactly one session matches, and print its id

Usage: usher wait [--session ID] [--cwd PATH] [--repo PATH] [--label K=V]… [--title TITLE] [--timeout TIME]

  --timeout TIME      500ms, 30s, 10m, 8h, 2d; 60s when absent

Waits for a daemon too, and never starts one. Exits 4 when the time is over, 7 as soon as several sessions match.
";
    Events "events" "\
usher events: show what happens

Usage: usher events [--follow] [--since CURSOR] [--kind KIND]… [SELECTOR]…

  --follow            from now on, until the daemon ends; without it what is kept, and then no more
  --since CURSOR      from behind this event on, or with start from the first one that is kept
  --kind KIND         only this kind: session-registered, awaiting-approval, …; repeatable
  SELECTOR            only of sessions that match: --session ID, --cwd PATH, --repo PATH, --label K=V, --title TITLE

One event a line; with --json each as the daemon tells it, its cursor in it. What is missing is told as lagged. Uses the
operator's key, and inside a session the caller's. Exits 3 when the daemon ends and names the cursor to go on from;
without --follow and without a daemon there is nothing, and the exit code is 0. docs/events.md tells more.
";
    Status "status" "\
usher status: show the daemon, its limits and who uses them

Usage: usher status [--human | --json]

Works with a daemon of any version, of which it may tell less. Exits 3 when no daemon runs.
";
    Health "health" "\
usher health: say whether a daemon is alive

Usage: usher health

Needs no key. Exits 3 when no daemon runs.
";
    Paths "paths" "\
usher paths: show where everything is

Usage: usher paths [NAME]

With NAME (root, socket, keys, log, …) only that path.
";
    Stop "stop" "\
usher stop: end the daemon, and wait until it is gone

Usage: usher stop [--force] [--receipt FILE]

  --force           although sessions are registered; they are told
  --receipt FILE    keep the daemon's signed answer, for usher verify

Exits 9 and names the sessions when there are some, 3 when no daemon runs. Questions that are open end unanswered.
";
    Drain "drain" "\
usher drain: let the daemon end with its last session

Usage: usher drain [--wait [--timeout DURATION]] [--receipt FILE]

  --wait               until the daemon is gone
  --timeout DURATION   at most so long, 24h when absent; then exit 4, and the daemon goes on draining
  --receipt FILE       keep the daemon's signed answer, for usher verify

From now on the daemon takes no new sessions and questions; it ends when the last session and the last open question
have ended. Works with a daemon of any version.
";
    Restart "restart" "\
usher restart: start the installed daemon in place of the one that runs

Usage: usher restart [--timeout DURATION]

  --timeout DURATION   how long pending commands may take, and then sessions to come back; 30s when absent

For a new build of the same protocol: waits until the commands that are pending have ended (exit 4 when some stay, and
nothing is changed), ends the daemon, starts the usherd beside this usher, and waits for the sessions, which come back
by themselves. Commands that come meanwhile have five seconds to end. Questions that
are open end unanswered.
";
    Keys "keys" "\
usher keys: credentials

Usage: usher keys list [--all]
       usher keys show WHO
       usher keys new --label LABEL GRANT --out DIR
       usher keys enroll --label LABEL GRANT --public-key KEY|@FILE
       usher keys revoke WHO [--receipt FILE]
       usher keys renew WHO [--expires TIME]

  WHO                 a credential's id or the beginning of it, its label; or producer, caller, operator: the default
  list                those in use; with --all the revoked and expired ones too
  new                 make a key and its credential; DIR becomes a bundle for --credential DIR
  enroll              give a credential to a key that was made elsewhere
  revoke              end a credential, cut its connections
  renew WHO           a new end for a credential (none without --expires); for a default: a new key

GRANT
  --role ROLE         producer, caller (when absent) or operator
  --scope METHOD      may call METHOD; repeatable
  --row               may call all methods of its role
  --session ID, --cwd PATH, --repo PATH, --title TITLE, --label-match K=V
                      only such sessions exist for it; an option given again begins a further choice
  --command NAME      may send only this command; repeatable
  --expires TIME      30m, 8h, 2d; never when absent
";
    Verify "verify" "\
usher verify: check a receipt, without the daemon

Usage: usher verify FILE [--daemon-key KEY|@FILE]

  --daemon-key KEY    the daemon's public key; that of this directory when absent

Prints what the receipt proves. Exits 1 when it proves nothing.
";
    Audit "audit" "\
usher audit: show and check what happened to keys, connections and sessions

Usage: usher audit [--since SEQ|TIME] [--follow]
       usher audit --verify

  --since SEQ|TIME    from this line, or this instant (RFC 3339), on
  --follow            then wait for what comes
  --verify            check that no line is altered, missing or added, and that the end is the end: against the running
                      daemon, else against the head that the last one recorded when it stopped

Reads the daemon's files and needs no daemon; --json prints the lines as they are. --verify exits 1 and names the first
line that does not verify. docs/audit.md says what each line means and what this proves. Exits 6 where there is none.
";
    Rpc "rpc" "\
usher rpc: call a method of the protocol

Usage: usher rpc METHOD [PARAMS | - | @FILE] [--payload JSON|-|@FILE] [--role ROLE]

  PARAMS              a JSON object; {} when absent; with \"receipt\":true the whole receipt is printed
  --role ROLE         whose key is used; the least that has the method when absent

Prints {\"result\":…,\"payload\":…}.
";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_is_explained_and_named_in_the_overview() {
        for topic in ALL {
            let text = text(*topic);
            assert!(text.contains(&format!("Usage: {}", topic.name())), "{topic:?}");
            assert!(text.lines().all(|line| line.chars().count() <= 120), "{topic:?}");
            if *topic != Topic::Usher {
                let word = topic.name().trim_start_matches("usher ");
                assert!(USHER.lines().any(|line| line.starts_with(&format!("  {word} "))), "{topic:?}");
            }
        }
    }
}
