//! What is measured, in which order.

use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::time::Instant;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use super::place::{Part, Place, Process, USHER, USHERD, memory, part, patiently, processor_time, thread_of};
use super::report::{self, Document, Row};
use super::stats::Pairs;

pub const USAGE: &str = "usage: make bench [BENCH_ARGS='[--quick] [--json FILE] [--only TEXT]']

  --quick      few and short samples: to see that it works, not how fast it is
  --json FILE  where the figures go, target/bench.json when absent
  --only TEXT  only rows whose name holds TEXT";

const SMALL: usize = 256;
const LARGE: usize = 64 * 1024;
const MANY: usize = 1_000;
const SUBSCRIBERS: usize = 100;
/// About the bytes of the message that tells one event.
const EVENT: usize = 400;

pub struct Options {
    quick: bool,
    json: PathBuf,
    only: Option<String>,
}

impl Options {
    pub fn parse(words: &[String]) -> Result<Self, String> {
        let mut options = Self { quick: false, json: "target/bench.json".into(), only: None };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--quick" => options.quick = true,
                "--json" => options.json = words.next().ok_or("--json takes a file")?.into(),
                "--only" => options.only = Some(words.next().ok_or("--only takes a text")?.clone()),
                other => return Err(format!("{other} is not understood")),
            }
        }
        Ok(options)
    }

    fn samples(&self) -> usize {
        if self.quick { 3 } else { 21 }
    }

    /// How many turns a sample has.
    fn turns(&self, full: usize) -> usize {
        if self.quick { full.div_ceil(20) } else { full }
    }
}

struct Bench<'a> {
    options: &'a Options,
    rows: Vec<Row>,
}

/// Measures everything and tells it.
pub fn run(options: &Options) -> ExitCode {
    let mut bench = Bench { options, rows: Vec::new() };
    let all = sched_getaffinity(Pid::from_raw(0)).unwrap();
    let mut one = CpuSet::new();
    let first = (0..CpuSet::count()).find(|&cpu| all.is_set(cpu).unwrap_or(false)).unwrap();
    one.set(first).unwrap();
    report::head();
    // Children inherit it.
    sched_setaffinity(Pid::from_raw(0), &one).unwrap();
    bench.sends("one core", true);
    bench.sends_among_others();
    bench.hellos();
    sched_setaffinity(Pid::from_raw(0), &all).unwrap();
    bench.sends("all cores", false);
    bench.events();
    bench.programs();
    bench.start();
    bench.memory_and_list();
    bench.sizes();
    let document = Document {
        version: env!("CARGO_PKG_VERSION"),
        processors: std::thread::available_parallelism().map_or(1, usize::from),
        samples: options.samples(),
        rows: &bench.rows,
    };
    std::fs::write(&options.json, serde_json::to_vec_pretty(&document).unwrap()).unwrap();
    println!("\nthe figures are in {}", options.json.display());
    ExitCode::SUCCESS
}

/// The baseline's two processes.
struct Relay {
    place: Place,
    _worker: Process,
    _relay: Process,
}

impl Relay {
    fn start() -> Self {
        let place = Place::new();
        let socket = place.relay();
        let socket = socket.to_str().unwrap();
        let relay = Process::start(&mut part(&["relay", socket]));
        let worker = Process::start(&mut part(&["worker", socket]));
        // The first to connect is the worker.
        patiently("the worker has connected", || {
            let table = std::fs::read_to_string(format!("/proc/{}/task", relay.id()));
            let threads = std::fs::read_dir(format!("/proc/{}/task", relay.id())).unwrap().count();
            drop(table);
            (threads > 1).then_some(())
        });
        Self { place, _worker: worker, _relay: relay }
    }

    fn callers(&self, callers: usize, bytes: usize, wanted: usize) -> Part {
        let numbers = [callers, bytes, wanted].map(|number| number.to_string());
        let socket = self.place.relay();
        Part::start(&["relay-callers", socket.to_str().unwrap(), &numbers[0], &numbers[1], &numbers[2]])
    }
}

/// A daemon with a session that echoes.
struct Ours {
    place: Place,
    _echo: Part,
    daemon: Process,
}

impl Ours {
    fn start() -> Self {
        let place = Place::new();
        let daemon = place.daemon();
        let echo = Part::start(&["echo", place.path().to_str().unwrap()]);
        Self { place, _echo: echo, daemon }
    }

    fn part(&self, what: &str, more: &[usize]) -> Part {
        let numbers: Vec<String> = more.iter().map(usize::to_string).collect();
        let mut words = vec![what, self.place.path().to_str().unwrap()];
        words.extend(numbers.iter().map(String::as_str));
        Part::start(&words)
    }
}

/// µs of a turn, as a part says it.
fn sample(part: &mut Part, turns: usize) -> f64 {
    part.ask(&turns.to_string()).parse::<f64>().unwrap() / 1_000.0
}

/// µs of a program from its start to its end.
fn whole(command: &mut std::process::Command, runs: usize) -> f64 {
    let begun = Instant::now();
    for _ in 0..runs {
        let status = command.stdout(Stdio::null()).status().unwrap();
        assert!(status.success(), "{command:?} failed");
    }
    begun.elapsed().as_secs_f64() * 1e6 / runs as f64
}

impl Bench<'_> {
    fn wants(&self, name: &str) -> bool {
        self.options.only.as_ref().is_none_or(|only| name.contains(only.as_str()))
    }

    fn add(&mut self, row: Row) {
        row.tell();
        self.rows.push(row);
    }

    fn sends(&mut self, cores: &str, has_targets: bool) {
        let (relay, ours) = (Relay::start(), Ours::start());
        for (bytes, size, turns, target) in [(SMALL, "256 B", 4_000, 1.5), (LARGE, "64 KiB", 800, 2.5)] {
            for callers in [1, 16] {
                let name = format!("send {size}, {callers} caller{}, {cores}", if callers > 1 { "s" } else { "" });
                if !self.wants(&name) {
                    continue;
                }
                // 0.6 of the throughput is a time of 1 / 0.6.
                let target = if callers == 16 && bytes == SMALL { Some(1.0 / 0.6) } else { Some(target) };
                let target = target.filter(|_| has_targets && (callers == 1 || bytes == SMALL));
                let turns = self.options.turns(turns / callers).max(1);
                let mut through_ours = ours.part("callers", &[callers, bytes]);
                let mut through_relay = relay.callers(callers, bytes, bytes);
                let pairs = Pairs::take(
                    self.options.samples(),
                    || sample(&mut through_ours, turns),
                    || sample(&mut through_relay, turns),
                );
                self.add(Row::pairs(name, &pairs, target));
            }
        }
    }

    fn sends_among_others(&mut self) {
        let name = format!("send 256 B among {MANY} other sessions, one core");
        if !self.wants(&name) {
            return;
        }
        let (crowded, alone) = (Ours::start(), Ours::start());
        let crowd = crowded.part("crowd", &[MANY]);
        let mut with = crowded.part("callers", &[1, SMALL]);
        let mut without = alone.part("callers", &[1, SMALL]);
        let turns = self.options.turns(4_000);
        let pairs = Pairs::take(self.options.samples(), || sample(&mut with, turns), || sample(&mut without, turns));
        drop(crowd);
        self.add(Row::pairs(name, &pairs, Some(1.1)));
    }

    fn hellos(&mut self) {
        let name = "hello to welcome, against its curve operations";
        if !self.wants(name) {
            return;
        }
        let ours = Ours::start();
        let (mut hellos, mut curves) = (ours.part("hellos", &[]), Part::start(&["curves"]));
        let turns = self.options.turns(200);
        let pairs = Pairs::take(self.options.samples(), || sample(&mut hellos, turns), || sample(&mut curves, turns));
        self.add(Row::pairs(name, &pairs, None));
    }

    /// What it costs the daemon to tell an event, and the publisher that there is somebody to tell.
    fn events(&mut self) {
        let burst = format!("an event to each of {SUBSCRIBERS} subscribers, in a burst");
        let single = format!("an event to each of {SUBSCRIBERS} subscribers, by itself");
        let publishes = format!("session.update with {SUBSCRIBERS} subscribers, against none");
        if ![&burst, &single, &publishes].iter().any(|name| self.wants(name)) {
            return;
        }
        let (followed, alone) = (Ours::start(), Ours::start());
        let (mut with, mut without) = (followed.part("events", &[SUBSCRIBERS]), alone.part("events", &[0]));
        let mut fan = Part::start(&["fan", &SUBSCRIBERS.to_string(), &EVENT.to_string()]);
        let teller = thread_of(followed.daemon.id(), "events");
        let (samples, turns) = (self.options.samples(), self.options.turns(100));
        // Fewer than are kept: nobody is overtaken, and each is told each.
        let many = self.options.turns(4_000);
        // What is asked of the part that follows, and what the teller has worked meanwhile for an event and subscriber.
        let mut telling = |how: &str, count: usize| {
            let before = processor_time(&teller);
            let answer = with.ask(&format!("{how} {count}"));
            (answer, (processor_time(&teller) - before) / (count * SUBSCRIBERS) as f64)
        };
        let each: Vec<_> = (0..samples).map(|_| telling("pour", many).1).collect();
        self.add(Row::figure(burst, "us", &each, Some(2.5)));

        let step = format!("step {turns}");
        let us = |part: &mut Part| part.ask(&step).parse::<f64>().unwrap() / 1_000.0;
        let pairs = Pairs::take(samples, || telling("step", turns).1, || us(&mut fan));
        self.add(Row::pairs(single, &pairs, None));

        let pairs =
            Pairs::take(samples, || telling("step", turns).0.parse::<f64>().unwrap() / 1_000.0, || us(&mut without));
        self.add(Row::pairs(publishes, &pairs, None));
    }

    fn programs(&mut self) {
        let ours = Ours::start();
        for (name, words) in
            [("usher list, whole process", vec!["list"]), ("usher send, whole process", vec!["send", "echo", "1"])]
        {
            if !self.wants(name) {
                continue;
            }
            let runs = self.options.turns(20);
            let pairs = Pairs::take(
                self.options.samples(),
                || whole(ours.place.program(USHER).args(&words), runs),
                || whole(&mut part(&["nothing"]), runs),
            );
            self.add(Row::pairs(name, &pairs, None));
        }
    }

    fn start(&mut self) {
        let name = "usherd, start to first answer";
        if !self.wants(name) {
            return;
        }
        let place = Place::new();
        drop(place.daemon());
        let one = || {
            let begun = Instant::now();
            let daemon = place.daemon();
            let took = begun.elapsed().as_secs_f64() * 1e6;
            drop(daemon);
            took
        };
        let pairs = Pairs::take(self.options.samples(), one, || whole(&mut part(&["nothing"]), 1));
        self.add(Row::pairs(name, &pairs, None));
    }

    fn memory_and_list(&mut self) {
        let samples = if self.options.quick { 1 } else { 3 };
        let (mut idle, mut idle_anonymous, mut first) = (Vec::new(), Vec::new(), Vec::new());
        let mut each: Vec<(usize, Vec<f64>, Vec<f64>)> =
            vec![(100, Vec::new(), Vec::new()), (MANY, Vec::new(), Vec::new())];
        if !self.wants("memory") && !self.wants("session.list") {
            return;
        }
        for _ in 0..samples {
            for (count, all, anonymous) in &mut each {
                let place = Place::new();
                let daemon = place.daemon();
                let crowd = |count: &str| Part::start(&["crowd", place.path().to_str().unwrap(), count]);
                let untouched = memory(daemon.id());
                // The first one brings in the code that all of them run.
                let _first = crowd("1");
                let before = memory(daemon.id());
                let _others = crowd(&count.to_string());
                let after = memory(daemon.id());
                idle.push(untouched.0);
                idle_anonymous.push(untouched.1);
                first.push(before.0);
                all.push((after.0 - before.0) / *count as f64);
                anonymous.push((after.1 - before.1) / *count as f64);
            }
        }
        self.add(Row::figure("memory of an idle daemon", "KiB", &idle, Some(5.0 * 1024.0)));
        self.add(Row::figure("  of that, anonymous", "KiB", &idle_anonymous, None));
        self.add(Row::figure("memory of a daemon with one session", "KiB", &first, Some(5.0 * 1024.0)));
        for (count, all, anonymous) in &each {
            self.add(Row::figure(format!("memory of each of {count} more idle sessions"), "KiB", all, Some(18.0)));
            self.add(Row::figure("  of that, anonymous", "KiB", anonymous, None));
        }
        let (ours, relay) = (Ours::start(), Relay::start());
        let _crowd = ours.part("crowd", &[MANY]);
        let mut lists = ours.part("lists", &[]);
        // About as many bytes as the list has.
        let mut plain = relay.callers(1, SMALL, 300 * 1024);
        let turns = self.options.turns(40);
        let pairs = Pairs::take(self.options.samples(), || sample(&mut lists, turns), || sample(&mut plain, turns));
        self.add(Row::pairs(format!("session.list of {MANY}, against 300 KiB"), &pairs, None));
        drop(ours.daemon);
    }

    fn sizes(&mut self) {
        for (name, path) in [("size of usherd", USHERD), ("size of usher", USHER)] {
            if self.wants(name) {
                let bytes = std::fs::metadata(path).unwrap().len() as f64;
                self.add(Row::figure(name, "KiB", &[bytes / 1024.0], None));
            }
        }
    }
}
