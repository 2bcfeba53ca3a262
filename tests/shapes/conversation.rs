//! One conversation with a real daemon in which everything is said: each method with all that it takes and with the least, each
//! answer, each notification, each kind of event.

use std::cell::RefCell;
use std::rc::Rc;

use serde_json::{Value, json};

use super::super::approvals::signature;
use super::super::support::daemon::Place;
use super::super::support::peers::{Lease, registration};
use super::super::support::wait::until;
use super::super::support::wire::{Hello, Identity, Key, Peer, Stream, base64, random};
use super::talk::{Notes, Talk, note_line, note_lines};

/// A path so long that few records fill a page.
fn long_path() -> String {
    format!("/{}", "x".repeat(4_000))
}

fn ahead(seconds: i64) -> String {
    (jiff::Timestamp::now() + jiff::SignedDuration::from_secs(seconds)).to_string()
}

fn everything_of_a_selector(session: &str) -> Value {
    json!({
        "session": session, "cwd": "/tmp", "repo": "/tmp/r", "boundary": "/tmp", "labels": {"k": "v"}, "title": "all",
    })
}

/// Takes part in the conversation.
struct Stage {
    place: Place,
    notes: Rc<RefCell<Notes>>,
    operator: Talk,
    caller: Talk,
    producer: Talk,
    lease: Lease,
}

pub fn held() -> Rc<RefCell<Notes>> {
    let place = Place::with_daemon(&[]);
    let notes = Rc::new(RefCell::new(Notes::default()));
    let connect = |role: &'static str| Talk::connect(&notes, role, &Identity::of(&place, role));
    let mut stage = Stage {
        operator: connect("operator"),
        caller: connect("caller"),
        producer: connect("producer"),
        lease: Lease::random(),
        notes: Rc::clone(&notes),
        place,
    };
    stage.operator.done("events.subscribe", json!({}));
    stage.lines();
    stage.sessions();
    stage.commands();
    stage.approvals();
    stage.events();
    stage.credentials();
    stage.pages();
    stage.leases();
    stage.probes();
    stage.end();
    notes
}

impl Stage {
    fn connect(&self, role: &'static str, identity: &Identity) -> Talk {
        Talk::connect(&self.notes, role, identity)
    }

    /// Before anybody is let in.
    fn lines(&mut self) {
        let answers = |line: &[u8]| {
            let stream = Stream::connect(&self.place.socket());
            stream.send(line);
            stream
        };
        let health = b"{\"health\":1}\n";
        note_line(&self.notes, "client: line health", health);
        note_line(&self.notes, "daemon: line health", &answers(health).line().unwrap());
        let narrowed = Identity::of(&self.place, "caller").with_scopes(&["session.list"]);
        note_lines(&self.notes, &Peer::connect(&narrowed).lines);
        let hello = String::from_utf8(Hello::new(&narrowed).lines.first).unwrap();
        let other = hello.replace("{\"max\":1,\"min\":1}", "{\"max\":9,\"min\":9}");
        let mut stream = answers(other.as_bytes());
        note_line(&self.notes, "daemon: line incompatible", &stream.line().unwrap());
        note_line(&self.notes, "daemon: line proof", &stream.line().unwrap());
        // Every place is taken.
        let place = Place::with_daemon(&["--limit", "connections=9"]);
        let caller = Identity::of(&place, "caller");
        let peers: Vec<Peer> = std::iter::from_fn(|| Peer::hello(&caller).ok()).collect();
        self.turned_away(&caller);
        drop(peers);
        let place = Place::with_daemon(&["--limit", "operator-connections=1"]);
        let operator = Identity::of(&place, "operator");
        let peers: Vec<Peer> = std::iter::from_fn(|| Peer::hello(&operator).ok()).collect();
        self.turned_away(&operator);
        drop(peers);
        // Strangers that are in the middle of their hellos take all places.
        let place = Place::with_daemon(&["--limit", "connections=9", "--limit", "unfinished-hellos=9"]);
        let caller = Identity::of(&place, "caller");
        let stranger = || {
            let mut stream = Stream::connect(&caller.socket);
            stream.send(&Hello::new(&caller).lines.first);
            stream.line().unwrap();
            stream
        };
        let strangers: Vec<Stream> = (0..9).map(|_| stranger()).collect();
        self.turned_away(&caller);
        drop(strangers);
    }

    fn turned_away(&self, identity: &Identity) {
        let said = Peer::turned_away(identity).header;
        assert_ne!(said["method"], "welcome");
        let what = if said.get("refused").is_some() { "line refused" } else { "notification refused" };
        let said = if said.get("refused").is_some() { said } else { json!({"params": said["params"]}) };
        self.notes.borrow_mut().book.note(&format!("daemon: {what}"), &said);
    }

    fn sessions(&mut self) {
        let mut all = self.lease.registration();
        for (name, value) in json!({
            "title": "all", "repo_root": "/tmp/r", "labels": {"k": "v"}, "info": {"any": 1}, "max_in_flight": 2,
            "runtimes": [{"id": "agent"}], "commands": [{"name": "echo", "description": "says it again"}],
            "terminal": {"tty": "/dev/pts/1", "tmux_pane": "%1", "tmux_socket": "/s", "iterm_session": "i", "term_session": "t", "program": "p"},
            "lease_signature": self.lease.signature(&self.producer.peer), "receipt": true,
        })
        .as_object()
        .unwrap()
        {
            all[name] = value.clone();
        }
        self.producer.done_with("session.register", all, Some(b"1"));
        let mut least = registration("least", 1);
        least.as_object_mut().unwrap().remove("max_in_flight");
        least["commands"] = json!([{"name": "echo"}]);
        self.connect("producer", &Identity::of(&self.place, "producer")).done("session.register", least);
        self.producer.done("session.update", json!({}));
        let update = json!({
            "title": "all", "labels": {"k": "v"}, "commands": [{"name": "echo", "description": "d"}, {"name": "hold"}],
            "runtimes": [{"id": "agent"}], "info": {"any": 1}, "snapshot": true, "receipt": true,
        });
        self.producer.done_with("session.update", update, Some(b"2"));
        self.producer.done("session.heartbeat", json!({}));
        self.producer.done("session.heartbeat", json!({"receipt": true}));
        let rotation = random::<16>();
        let new = Key::random();
        let mut staging = self.lease.staging(&self.producer.peer, &rotation, &new);
        self.producer.done("session.stage_key", staging.clone());
        staging["receipt"] = json!(true);
        self.producer.done("session.stage_key", staging);
        let another = self.lease.staging(&self.producer.peer, &random::<16>(), &Key::random());
        self.producer.refused("session.stage_key", another, "rotation-pending");
        let confirm = json!({"rotation_id": base64(&rotation)});
        self.producer.done("session.confirm_key", confirm.clone());
        self.producer.done("session.confirm_key", json!({"rotation_id": base64(&rotation), "receipt": true}));
        self.lease.key = new;

        let id = self.lease.id();
        for talk in [&mut self.caller, &mut self.operator] {
            let selector = everything_of_a_selector(&id);
            talk.done("session.list", json!({}));
            talk.done("session.list", json!({"selector": selector, "receipt": true}));
            talk.done("session.list", json!({"selector": {}}));
            talk.done("session.get", json!({"selector": {"session": id}}));
            talk.done("session.get", json!({"selector": {"title": "all"}}));
            talk.done("session.get", json!({"selector": selector, "receipt": true}));
            talk.done("session.wait", json!({"selector": {"session": id}}));
            talk.done("session.wait", json!({"selector": {"title": "all"}}));
            talk.done("session.wait", json!({"selector": selector, "deadline_ms": 1_000, "receipt": true}));
        }
        // One that says least about itself, and has no snapshot.
        let mut producer = self.connect("producer", &Identity::of(&self.place, "producer"));
        let mut bare = registration("bare", 1);
        bare["terminal"] = json!({});
        let registered = producer.done("session.register", bare).result;
        let bare = json!({"selector": {"session": registered["session_id"]}});
        self.caller.done("session.get", bare.clone());
        self.caller.done("session.wait", bare);
        self.caller.refused("session.wait", json!({"selector": {"cwd": "/tmp"}}), "ambiguous");
        producer.done("session.unregister", json!({}));
        producer.done("session.register", registration("bare", 1));
        producer.done("session.unregister", json!({"receipt": true}));
    }

    fn commands(&mut self) {
        let id = self.lease.id();
        let least = json!({"selector": {"session": id}, "command": "echo"});
        let all = json!({
            "selector": everything_of_a_selector(&id), "command": "echo", "deadline_ms": 5_000, "key": "once", "receipt": true,
        });
        let by_title = json!({"selector": {"title": "all"}, "command": "echo"});
        for (params, input) in [(least.clone(), None), (by_title, None), (all, Some(b"1".as_slice()))] {
            let request = self.caller.ask("session.send", &params, input);
            let command = self.producer.next("command");
            self.producer.reply(&command, json!({"result": {}}), input);
            self.caller.answer(request).unwrap();
        }
        for error in [
            json!({"code": -32000, "message": "no"}),
            json!({"code": -32000, "message": "no", "data": {"code": "mine"}}),
        ] {
            let request = self.caller.ask("session.send", &least, None);
            let command = self.producer.next("command");
            self.producer.reply(&command, json!({"error": error}), None);
            assert_eq!(self.caller.answer(request).unwrap_err().code, "command-failed");
        }
        let request = self.caller.ask("session.send", &json!({"selector": {"session": id}, "command": "hold"}), None);
        let held = self.producer.next("command");
        self.caller.done("daemon.status", json!({}));
        self.caller.say("$/cancel", json!({"id": request}));
        assert_eq!(self.caller.answer(request).unwrap_err().code, "cancelled");
        self.producer.next("$/cancel");
        self.producer.reply(&held, json!({"result": {}}), None);
    }

    fn asked(&mut self, params: Value, detail: Option<&[u8]>) -> (u64, String) {
        let request = self.caller.ask("approval.request", &params, detail);
        let pending = self.caller.next("approval.pending");
        (request, pending.header["params"]["approval_id"].as_str().unwrap().to_owned())
    }

    fn deciding(&mut self, id: &str, decision: &str) -> Value {
        let rows = self.operator.done("approval.list", json!({"approval_id": id})).payload.unwrap();
        let rows: Value = serde_json::from_slice(&rows).unwrap();
        let text = rows[0]["text"].as_str().unwrap_or_default();
        let key = Identity::of(&self.place, "operator").key;
        let signature = signature(&key, &self.operator.peer, id, text, decision == "approved");
        json!({"approval_id": id, "decision": decision, "signature": signature})
    }

    fn approvals(&mut self) {
        let all = json!({
            "summary": "this?", "ttl_ms": 60_000, "session_id": self.lease.id(), "cwd": "/tmp", "pid": 7, "receipt": true,
            "terminal": {"tty": "/dev/pts/1", "tmux_pane": "%1", "tmux_socket": "/s", "iterm_session": "i", "term_session": "t", "program": "p"},
        });
        let (first, first_id) = self.asked(all, Some(b"\"why\""));
        let (second, second_id) = self.asked(json!({"summary": "that?"}), None);
        for talk in [&mut self.caller, &mut self.operator] {
            talk.done("approval.list", json!({}));
            talk.done("approval.list", json!({"approval_id": first_id, "receipt": true}));
        }
        let mut approve = self.deciding(&first_id, "approved");
        approve["reason"] = json!("fine");
        approve["receipt"] = json!(true);
        let late = self.deciding(&first_id, "rejected");
        self.operator.done("approval.decide", approve);
        self.caller.answer(first).unwrap();
        let told = self.operator.refused("approval.decide", late, "already-decided");
        assert!(told.error["data"]["outcome"].is_object(), "{told:?}");
        let reject = self.deciding(&second_id, "rejected");
        self.operator.done("approval.decide", reject);
        self.caller.answer(second).unwrap();
        // Withdrawn, expired, and what has ended.
        for params in [json!({}), json!({"receipt": true})] {
            let (asked, id) = self.asked(json!({"summary": "never mind", "terminal": {}}), None);
            let mut withdraw = params;
            withdraw["approval_id"] = json!(id);
            self.caller.done("approval.withdraw", withdraw);
            self.caller.answer(asked).unwrap();
        }
        let (asked, id) = self.asked(json!({"summary": "now?", "ttl_ms": 1}), None);
        self.caller.answer(asked).unwrap();
        let late = self.deciding(&id, "approved");
        self.operator.refused("approval.decide", late, "already-decided");
        for id in [&first_id, &second_id] {
            self.operator.done("approval.list", json!({"approval_id": id}));
        }
    }

    fn events(&mut self) {
        let generation =
            self.operator.done("daemon.status", json!({})).result["generation"].as_str().unwrap().to_owned();
        for talk in [&mut self.caller, &mut self.operator] {
            let all = json!({
                "since": "start", "kinds": ["session-gone"], "selector": everything_of_a_selector(&self.lease.id()),
                "task_id": base64(&random::<16>()), "follow": false, "receipt": true,
            });
            talk.done("events.subscribe", all);
            talk.next("events");
            talk.done("events.subscribe", json!({"selector": {}, "follow": false}));
            talk.next("events");
            let subscribed = talk.done("events.subscribe", json!({})).result;
            let subscription = subscribed["subscription"].clone();
            talk.done("events.unsubscribe", json!({"subscription": subscription}));
            let subscribed = talk.done("events.subscribe", json!({"follow": true})).result;
            talk.done("events.unsubscribe", json!({"subscription": subscribed["subscription"], "receipt": true}));
            // Of another start of the daemon, and of what is not kept.
            talk.done("events.subscribe", json!({"since": format!("{}:1", base64(&random::<16>())), "follow": false}));
            talk.next("events");
        }
        // More than are kept: titles change.
        for number in 0..4_200 {
            self.producer.done("session.update", json!({"title": format!("t{}", number % 2)}));
        }
        self.producer.done("session.update", json!({"title": "all"}));
        self.caller.done("events.subscribe", json!({"since": format!("{generation}:1"), "follow": false}));
        self.caller.next("events");
    }

    fn enrolled(&mut self, role: &'static str, more: Value) -> (String, Identity) {
        let key = Key::random();
        let mut params = json!({"public_key": base64(&key.public()), "label": "one", "role": role, "scopes": "row"});
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let done = self.operator.done("credential.enroll", params);
        let id = done.result["credential"].as_str().unwrap().to_owned();
        (id, Identity::of(&self.place, role).with_key(key))
    }

    fn credentials(&mut self) {
        let everything = json!({
            "scopes": ["session.list", "events.subscribe", "daemon.status"], "sessions": [everything_of_a_selector(&self.lease.id())],
            "commands": ["echo"], "expires": ahead(3_600), "receipt": true,
        });
        let (narrowed, identity) = self.enrolled("caller", everything);
        let mut caller = self.connect("caller", &identity);
        caller.done("daemon.status", json!({"receipt": true}));
        self.caller.done("daemon.status", json!({}));
        self.operator.done("daemon.status", json!({"receipt": true}));
        self.operator
            .done("credential.renew", json!({"credential": narrowed, "expires": ahead(7_200), "receipt": true}));
        self.operator.done("credential.renew", json!({"credential": narrowed}));
        self.operator.done("credential.revoke", json!({"credential": narrowed}));
        self.operator.done("credential.revoke", json!({"credential": narrowed, "receipt": true}));
        // Its record says so.
        let (short, _) = self.enrolled("caller", json!({"expires": ahead(1)}));
        until("it expires", || {
            let list = self.operator.done("credential.list", json!({})).payload.unwrap();
            let list: Vec<Value> = serde_json::from_slice(&list).unwrap();
            list.iter()
                .any(|record| record["credential"] == short.as_str() && record["state"] == "expired")
                .then_some(())
        });
        self.operator.done("credential.list", json!({"receipt": true}));
        self.turned_away(&identity);
        // Registers and no more: without a lease.
        let (_, identity) = self.enrolled("producer", json!({"scopes": ["session.register"]}));
        self.connect("producer", &identity).done("session.register", registration("no lease", 1));
        let defaults = self.operator.done("credential.list", json!({})).payload.unwrap();
        let defaults: Vec<Value> = serde_json::from_slice(&defaults).unwrap();
        let of_callers =
            defaults.iter().find(|record| record["role"] == "caller" && record["default"] == true).unwrap();
        let of_callers = of_callers["credential"].clone();
        let (_, identity) = self.enrolled("caller", json!({"replaces": of_callers}));
        self.caller = self.connect("caller", &identity);
        self.enrolled("caller", json!({"sessions": [{"title": "all"}]}));
        self.operator.done("audit.head", json!({}));
        self.operator.done("audit.head", json!({"receipt": true}));
    }

    /// Lists of more than one page.
    fn pages(&mut self) {
        let sessions: Vec<Value> = (0..15).map(|_| json!({"cwd": long_path()})).collect();
        for _ in 0..20 {
            self.enrolled("caller", json!({"sessions": sessions}));
        }
        self.turn("operator", "credential.list", json!({}));
        let producer = Identity::of(&self.place, "producer");
        let producers: Vec<Talk> = (0..34)
            .map(|_| {
                let mut talk = self.connect("producer", &producer);
                let mut large = registration("large", 1);
                let runtimes: Vec<Value> = (0..15).map(|_| json!({"id": "agent", "note": "x".repeat(1_000)})).collect();
                let commands: Vec<Value> =
                    (0..60).map(|at| json!({"name": format!("c{at}"), "description": "x".repeat(240)})).collect();
                large["cwd"] = json!(long_path());
                large["runtimes"] = json!(runtimes);
                large["commands"] = json!(commands);
                talk.done("session.register", large);
                talk
            })
            .collect();
        self.turn("caller", "session.list", json!({"selector": {"title": "large"}}));
        drop(producers);
        let detail = json!("x".repeat(260_000)).to_string();
        let asked: Vec<_> = (0..5).map(|_| self.asked(json!({"summary": "long?"}), Some(detail.as_bytes()))).collect();
        self.turn("caller", "approval.list", json!({}));
        for (request, id) in asked {
            self.caller.done("approval.withdraw", json!({"approval_id": id}));
            self.caller.answer(request).unwrap();
        }
    }

    fn turn(&mut self, role: &str, method: &str, mut params: Value) {
        let talk = if role == "operator" { &mut self.operator } else { &mut self.caller };
        let first = talk.done(method, params.clone()).result;
        params["page"] = first["next"].clone();
        assert!(params["page"].is_string(), "{method} has one page: {first}");
        talk.done(method, params);
    }

    /// A session that comes back.
    fn leases(&mut self) {
        let mut params = self.lease.registration();
        let mut producer = self.connect("producer", &Identity::of(&self.place, "producer"));
        params["lease_signature"] = json!(self.lease.signature(&producer.peer));
        params["title"] = json!("all");
        producer.done("session.register", params);
        self.producer = producer;
    }

    /// What a request takes and needs, as the daemon says itself.
    fn probes(&mut self) {
        super::probe::all(&self.notes, &mut self.operator.peer, &mut self.caller.peer, &mut self.producer.peer);
    }

    fn end(mut self) {
        self.operator.refused("daemon.stop", json!({}), "sessions-live");
        self.operator.done("daemon.drain", json!({}));
        self.operator.done("daemon.drain", json!({"receipt": true}));
        let mut late = self.connect("producer", &Identity::of(&self.place, "producer"));
        late.refused("session.register", registration("late", 1), "draining");
        self.operator.done("daemon.stop", json!({"force": true, "receipt": true}));
        for talk in [&mut self.producer, &mut self.caller, &mut self.operator] {
            talk.rest();
        }
        // The least of it, where nobody is there.
        let place = Place::with_daemon(&[]);
        let mut caller = Talk::connect(&self.notes, "caller", &Identity::of(&place, "caller"));
        caller.say("closing", json!({"reason": "done"}));
        caller.rest();
        let mut operator = Talk::connect(&self.notes, "operator", &Identity::of(&place, "operator"));
        operator.done("daemon.stop", json!({}));
        operator.rest();
    }
}

/// Protocol 0: what an operator of any version may say to a daemon of any version.
pub fn held_in_zero() -> Rc<RefCell<Notes>> {
    let place = Place::with_daemon(&[]);
    let notes = Rc::new(RefCell::new(Notes::default()));
    let identity = Identity::of(&place, "operator");
    let mut producer = Peer::connect(&Identity::of(&place, "producer"));
    producer.call("session.register", &registration("there", 1), None).unwrap();
    let mut zero = Talk::connect_zero(&notes, &identity);
    zero.done("daemon.status", json!({}));
    zero.done("daemon.status", json!({"receipt": true}));
    zero.refused("session.list", json!({}), "unknown-method");
    zero.refused("daemon.stop", json!({"force": false}), "sessions-live");
    zero.done("daemon.drain", json!({}));
    zero.done("daemon.drain", json!({"receipt": true}));
    super::probe::zero(&notes, &mut zero.peer);
    zero.done("daemon.stop", json!({"force": true, "receipt": true}));
    zero.rest();
    let place = Place::with_daemon(&[]);
    let mut zero = Talk::connect_zero(&notes, &Identity::of(&place, "operator"));
    zero.done("daemon.stop", json!({"force": false}));
    zero.rest();
    notes
}
