//! Upgrades and restarts while commands pass and programs are killed: how each command ended, and how often it took effect.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use nix::sys::signal::Signal;
use parking_lot::{Mutex, RwLock};
use serde_json::{Value, json};

use super::super::support::daemon::finished;
use super::super::support::system::{kill, put};
use super::super::support::threads;
use super::super::support::wait::within;
use super::builds::Build::{self, A, B};
use super::builds::digest_of;
use super::evidence::{Evidence, Run};
use super::machine::{AT_ONCE, Life, Machine, Window};

const WINDOWS: usize = 8;
const SENDERS: usize = 8;
/// Commands that are done after each change before the next one begins.
const BETWEEN: u64 = 8;

/// Random choices, the same in each run: xorshift64.
pub struct Dice(u64);

impl Dice {
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound as u64).unwrap()
    }
}

/// How a command ended for whoever sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum End {
    Done,
    NotDelivered,
    /// It may have taken effect.
    Unknown,
    /// Its sender was killed.
    Killed,
    /// With a result that is another command's, or from another session.
    Wrong,
}

/// To whom is sent now; nothing while nobody is there.
#[derive(Default)]
struct Stage {
    to: Vec<(String, String)>,
    usher: PathBuf,
}

/// What all senders share.
struct Load {
    /// Read while a command is under way.
    stage: RwLock<Stage>,
    is_over: AtomicBool,
    ends: Mutex<Vec<(String, End)>>,
    done: AtomicU64,
    /// One line for each time that a command took effect.
    effects: PathBuf,
    dir: PathBuf,
}

/// The senders, and the machine on which they send.
struct Scene {
    machine: Machine,
    load: Arc<Load>,
    senders: Vec<std::thread::JoinHandle<()>>,
    /// Rounds so far, without what the senders saw during the last one.
    rounds: Vec<Value>,
    counted: usize,
}

impl Load {
    fn send(&self, name: usize, number: usize, dice: &mut Dice) {
        let stage = self.stage.read();
        let Stage { to, usher } = &*stage;
        if to.is_empty() {
            return;
        }
        let (title, id) = &to[dice.below(to.len())];
        let text = format!("{name}-{number}");
        // A session remembers so many keys and no more.
        let has_key = number % 8 == 0;
        let mut end = self.once(usher, title, id, &text, has_key, dice);
        // Once more under its key, where nobody knows what became of it.
        if end == End::Unknown && has_key {
            end = match self.once(usher, title, id, &text, has_key, dice) {
                End::Done => End::Done,
                End::Wrong => End::Wrong,
                _ => End::Unknown,
            };
        }
        if end == End::Done {
            self.done.fetch_add(1, SeqCst);
        }
        self.ends.lock().push((text, end));
    }

    fn once(&self, usher: &Path, title: &str, id: &str, text: &str, has_key: bool, dice: &mut Dice) -> End {
        let mut command = Command::new(usher);
        command.env("USHER_DIR", &self.dir).env_remove("USHER_SESSION").env_remove("USHER_CREDENTIAL");
        command.args(["--json", "send", "--title", title, "--deadline", "30s"]);
        if has_key {
            command.args(["--key", text]);
        }
        command.arg("echo").arg(json!(text).to_string());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        if dice.below(8) == 0 {
            // At any moment of its short life.
            std::thread::sleep(Duration::from_micros(dice.below(20_000) as u64));
            kill(child.id(), Signal::SIGKILL);
        }
        let ran = finished(child);
        if ran.code == 137 {
            return End::Killed;
        }
        let document = if ran.code == 0 { &ran.stdout } else { &ran.stderr };
        let told: Value = serde_json::from_str(document).unwrap_or_default();
        if ran.code == 0 {
            let is_ours = told["result"] == text && told["session_id"] == id;
            return if is_ours { End::Done } else { End::Wrong };
        }
        let error = &told["error"];
        match (error["code"].as_str(), error["delivery"].as_str()) {
            // Commands that never reached a daemon say nothing of delivery.
            (Some(_), Some("not-delivered") | None) => End::NotDelivered,
            (Some("session-lost" | "superseded" | "shutting-down" | "connection-lost"), Some("unknown")) => {
                End::Unknown
            }
            _ => panic!("{text} ended as {ran:?}"),
        }
    }
}

impl Scene {
    fn new(run: &Run) -> Self {
        // Steps of the machine would be many; the rounds are what is recorded.
        let machine = Machine::new(Evidence::new(run.builds()).run("unjudged"), A);
        let load = Arc::new(Load {
            stage: RwLock::default(),
            is_over: AtomicBool::new(false),
            ends: Mutex::default(),
            done: AtomicU64::new(0),
            effects: machine.place.scratch().join("effects"),
            dir: machine.place.path().to_owned(),
        });
        put(&load.effects, "");
        let senders = (0..SENDERS).map(|name| {
            let load = Arc::clone(&load);
            threads::spawn("sender", move || {
                let mut dice = Dice(0x5eed + name as u64);
                let mut number = 0;
                while !load.is_over.load(SeqCst) {
                    load.send(name, number, &mut dice);
                    number += 1;
                    // Leaves something of two processors to the windows.
                    std::thread::sleep(Duration::from_millis(30));
                }
            })
        });
        let senders = senders.collect();
        Self { machine, load, senders, rounds: Vec::new(), counted: 0 }
    }

    /// A handler whose sender was killed may be given nothing.
    fn window(&self, build: Build, title: &str) -> Window {
        let echo =
            format!(r#"read -r x; [ "$x" ] || exit 1; echo "$x" >> '{}'; printf %s "$x""#, self.load.effects.display());
        self.machine.window_of(build, self.machine.usher(), title, &echo)
    }

    fn windows(&self, build: Build, name: &str) -> Vec<Window> {
        (0..WINDOWS).map(|number| self.window(build, &format!("{name}{number}"))).collect()
    }

    /// From now on commands go to these; what is under way ends first.
    fn send_to(&self, build: Build, windows: &[Window]) {
        let to = windows.iter().map(|window| (window.title.clone(), window.id.clone())).collect();
        *self.load.stage.write() = Stage { to, usher: self.machine.builds.usher(build) };
    }

    /// Waits until so many commands more are done.
    fn served(&self) {
        let wanted = self.load.done.load(SeqCst) + BETWEEN;
        within(Duration::from_secs(90), "commands are done", || (self.load.done.load(SeqCst) >= wanted).then_some(()));
    }

    fn life(&self, build: Build, (pid, start): Life) -> Value {
        json!({"build": build.name(), "pid": pid, "start": start, "exe": digest_of(format!("/proc/{pid}/exe"))})
    }

    /// What the senders saw since the last round.
    fn round(&mut self, mut facts: Value) {
        let ends = self.load.ends.lock();
        count(&ends[self.counted..], &mut facts);
        self.counted = ends.len();
        facts["number"] = json!(self.rounds.len() + 1);
        drop(ends);
        self.rounds.push(facts);
    }

    /// Ends the senders and records everything.
    fn finish(mut self, run: &Run) {
        self.load.is_over.store(true, SeqCst);
        self.senders.drain(..).for_each(|sender| sender.join().unwrap());
        let ends = std::mem::take(&mut *self.load.ends.lock());
        // What ended last belongs to the last round.
        let mut rest = json!({});
        count(&ends[self.counted..], &mut rest);
        let last = self.rounds.last_mut().unwrap();
        for name in ["sent", "done", "not_delivered", "unknown", "killed"] {
            last[name] = json!(last[name].as_u64().unwrap() + rest[name].as_u64().unwrap());
        }
        let mut effects: HashMap<String, u64> = HashMap::new();
        for line in fs::read_to_string(&self.load.effects).unwrap().lines() {
            *effects.entry(serde_json::from_str(line).unwrap()).or_default() += 1;
        }
        let times = |text: &String| effects.get(text).copied().unwrap_or(0);
        let that = |is: &dyn Fn(End, u64) -> bool| ends.iter().filter(|(text, end)| is(*end, times(text))).count();
        let mut facts = json!({
            "rounds": self.rounds.len(),
            "ran_twice": effects.values().filter(|times| **times > 1).count(),
            "done_without_effect": that(&|end, times| end == End::Done && times == 0),
            "effect_without_delivery": that(&|end, times| end == End::NotDelivered && times > 0),
            "wrong_results": that(&|end, _| end == End::Wrong),
        });
        count(&ends, &mut facts);
        for round in self.rounds.drain(..) {
            run.record("round", round);
        }
        for name in ["ran_twice", "done_without_effect", "effect_without_delivery", "wrong_results"] {
            assert_eq!(facts[name], 0, "{facts}");
        }
        run.record("load", facts);
    }
}

/// How many ended how.
fn count(ends: &[(String, End)], facts: &mut Value) {
    let that = |wanted| ends.iter().filter(|(_, end)| *end == wanted).count();
    facts["sent"] = json!(ends.len());
    facts["done"] = json!(that(End::Done));
    facts["not_delivered"] = json!(that(End::NotDelivered));
    facts["unknown"] = json!(that(End::Unknown));
    facts["killed"] = json!(that(End::Killed));
}

/// Each round: eight windows of A are served, eight of B wait, those of A close, and those of B are served.
pub fn upgrades(run: &Run, rounds: usize) {
    let mut scene = Scene::new(run);
    let mut dice = Dice(0xdead);
    for _ in 0..rounds {
        scene.machine.clear_log();
        scene.machine.install(A);
        let incumbent = scene.machine.start_daemon(AT_ONCE);
        let mut old = scene.windows(A, "a");
        scene.machine.listed(A, &old.iter().collect::<Vec<_>>());
        let before = scene.life(A, incumbent);
        scene.send_to(A, &old);
        scene.served();

        scene.machine.install(B);
        let mut new = scene.windows(B, "b");
        scene.machine.waiting(WINDOWS);
        // One that is served and one that waits are killed; somebody opens another.
        scene.machine.end(old.swap_remove(dice.below(old.len())), Signal::SIGKILL);
        let killed = new.swap_remove(dice.below(new.len()));
        let title = killed.title.clone();
        scene.machine.end(killed, Signal::SIGKILL);
        new.push(scene.window(B, &title));
        scene.machine.waiting(WINDOWS + 1);
        old.into_iter().for_each(|window| scene.machine.close(window));
        scene.machine.ended(incumbent);
        let successor = scene.machine.successor(B, incumbent);
        scene.machine.listed(B, &new.iter().collect::<Vec<_>>());
        let after = scene.life(B, successor);
        scene.send_to(B, &new);
        scene.served();
        let ids: BTreeMap<_, _> = new.iter().map(|window| (window.title.clone(), window.id.clone())).collect();
        let back = scene.machine.sessions(B);
        scene.round(json!({"before": before, "after": after, "windows": ids, "sessions": back}));
        scene.send_to(A, &[]);
        new.into_iter().for_each(|window| scene.machine.close(window));
        assert_eq!(scene.machine.run(&["stop"]).code, 0);
        scene.machine.gone(successor);
    }
    scene.finish(run);
}

/// Each round: `usher restart`, under load throughout.
pub fn restarts(run: &Run, rounds: usize) {
    let mut scene = Scene::new(run);
    let mut dice = Dice(0xbeef);
    let mut windows = scene.windows(A, "w");
    scene.machine.listed(A, &windows.iter().collect::<Vec<_>>());
    for number in 0..rounds {
        scene.send_to(A, &windows);
        scene.served();
        if dice.below(4) == 0 {
            let killed = windows.swap_remove(dice.below(windows.len()));
            scene.send_to(A, &windows);
            scene.machine.end(killed, Signal::SIGKILL);
            windows.push(scene.window(A, &format!("w-{number}")));
            scene.machine.listed(A, &windows.iter().collect::<Vec<_>>());
        }
        let incumbent = scene.machine.daemon().unwrap();
        let before = scene.life(A, incumbent);
        let restarted = scene.machine.run(&["restart"]);
        assert_eq!((restarted.code, restarted.stderr.as_str()), (0, ""), "{restarted:?}");
        let after = scene.machine.daemon().unwrap();
        let back = scene.machine.sessions(A);
        let ids: BTreeMap<_, _> = windows.iter().map(|window| (window.title.clone(), window.id.clone())).collect();
        assert_eq!(back, ids, "each under its id");
        let after = scene.life(A, after);
        scene.round(json!({"before": before, "after": after, "windows": ids, "sessions": back}));
    }
    scene.send_to(A, &[]);
    scene.finish(run);
    windows.into_iter().for_each(|mut window| {
        kill(window.child.id(), Signal::SIGTERM);
        window.child.wait().unwrap();
    });
}
