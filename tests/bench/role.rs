//! What the processes do that the benchmark starts of itself.

use std::io::{BufRead, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::Barrier;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::peer::{Identity, Peer, lossy, split};
use super::place::processor_time;
use super::relay;

/// After which readers that have nothing to read sleep.
const ASLEEP: Duration = Duration::from_millis(3);

/// `--as WHAT …`
pub fn run(words: &[String]) {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match *words.as_slice() {
        ["nothing"] => {}
        ["relay", socket] => relay::relay(Path::new(socket)),
        ["worker", socket] => relay::worker(Path::new(socket)),
        ["relay-callers", socket, callers, bytes, wanted] => {
            let (bytes, wanted) = (bytes.parse().unwrap(), wanted.parse().unwrap());
            let socket = socket.to_owned();
            load(callers.parse().unwrap(), move || {
                let mut caller = relay::Caller::new(Path::new(&socket), bytes, wanted);
                move || caller.turn()
            });
        }
        ["callers", folder, callers, bytes] => {
            let (folder, payload) = (folder.to_owned(), structured(bytes.parse().unwrap()));
            let identity = Arc::new(Identity::read(Path::new(&folder), "caller"));
            load(callers.parse().unwrap(), move || {
                let mut peer = Peer::connect(Path::new(&folder), &identity);
                let payload = payload.clone();
                move || {
                    let params = r#"{"selector":{"title":"echo"},"command":"echo"}"#;
                    let (_, result) = peer.call("session.send", params, Some(&payload));
                    assert_eq!(result.len(), payload.len());
                }
            });
        }
        ["lists", folder] => {
            let folder = folder.to_owned();
            let identity = Arc::new(Identity::read(Path::new(&folder), "caller"));
            load(1, move || {
                let mut peer = Peer::connect(Path::new(&folder), &identity);
                move || assert!(peer.call("session.list", "{}", None).1.len() > 100_000)
            });
        }
        ["hellos", folder] => {
            let folder = folder.to_owned();
            let identity = Arc::new(Identity::read(Path::new(&folder), "caller"));
            load(1, move || {
                let (folder, identity) = (folder.clone(), Arc::clone(&identity));
                move || drop(Peer::connect(Path::new(&folder), &identity))
            });
        }
        ["curves"] => load(1, || curves),
        ["events", folder, subscribers] => events(Path::new(folder), subscribers.parse().unwrap()),
        ["fan", readers, bytes] => fan(readers.parse().unwrap(), bytes.parse().unwrap()),
        ["echo", folder] => echo(Path::new(folder)),
        ["crowd", folder, count] => crowd(Path::new(folder), count.parse().unwrap()),
        _ => panic!("no such part: {words:?}"),
    }
}

/// JSON of about so many bytes, with the structure that programs send.
pub fn structured(bytes: usize) -> Vec<u8> {
    let mut text = String::from(r#"{"rows":["#);
    let mut number = 0;
    loop {
        let row =
            format!(r#"{{"id":{number},"path":"src/file-{number}.rs","ok":true,"tags":["a","b"],"score":{number}.5}}"#);
        if text.len() + row.len() + 12 > bytes {
            break;
        }
        if number > 0 {
            text.push(',');
        }
        text.push_str(&row);
        number += 1;
    }
    text.push_str(r#"],"pad":""#);
    while text.len() + 2 < bytes {
        text.push('x');
    }
    text.push_str("\"}");
    text.into_bytes()
}

/// Does `turn` so often in each of its threads whenever it is told a number, and answers with the nanoseconds of each turn
/// of all threads together: elapsed time by turns.
fn load<T: FnMut() + 'static>(callers: usize, begin: impl Fn() -> T + Clone + Send + 'static) {
    let gate = Arc::new(Barrier::new(callers + 1));
    let turns = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let threads: Vec<JoinHandle<()>> = (0..callers)
        .map(|_| {
            let (begin, gate, turns) = (begin.clone(), Arc::clone(&gate), Arc::clone(&turns));
            std::thread::spawn(move || {
                let mut turn = begin();
                gate.wait();
                loop {
                    gate.wait();
                    for _ in 0..turns.load(std::sync::atomic::Ordering::SeqCst) {
                        turn();
                    }
                    gate.wait();
                }
            })
        })
        .collect();
    gate.wait();
    say("ready");
    for line in std::io::stdin().lock().lines() {
        let each: usize = line.unwrap().parse().unwrap();
        turns.store(each, std::sync::atomic::Ordering::SeqCst);
        gate.wait();
        let begun = Instant::now();
        gate.wait();
        let elapsed = begun.elapsed().as_nanos();
        say(&format!("{}", elapsed / (each * callers) as u128));
    }
    drop(threads);
    std::process::exit(0);
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").unwrap();
    out.flush().unwrap();
}

/// The curve operations of one handshake, both sides of it.
fn curves() {
    use ring::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
    use ring::rand::SystemRandom;
    use ring::signature::{ED25519, Ed25519KeyPair, KeyPair};
    let random = SystemRandom::new();
    let pair = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
    let make = || EphemeralPrivateKey::generate(&X25519, &random).unwrap();
    let (one, two) = (make(), make());
    let (public_one, public_two) = (one.compute_public_key().unwrap(), two.compute_public_key().unwrap());
    for (ours, theirs) in [(one, public_two), (two, public_one)] {
        agree_ephemeral(ours, &UnparsedPublicKey::new(&X25519, theirs), |secret| assert_eq!(secret.len(), 32)).unwrap();
        let signature = pair.sign(b"a transcript");
        let key = ring::signature::UnparsedPublicKey::new(&ED25519, pair.public_key().as_ref());
        key.verify(b"a transcript", signature.as_ref()).unwrap();
    }
}

/// Of a key that nobody has: no session of a benchmark is taken back.
const RECONNECT_KEY: &str = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE";

fn registration(title: &str) -> String {
    format!(
        r#"{{"title":"{title}","cwd":"/tmp/{title}","pid":{},"started":1,"labels":{{"kind":"bench"}},"commands":[{{"name":"echo"}}],"max_in_flight":64,"reconnect_key":"{RECONNECT_KEY}"}}"#,
        std::process::id()
    )
}

/// A session that answers every command with its input.
fn echo(folder: &Path) {
    let mut peer = Peer::connect(folder, &Identity::read(folder, "producer"));
    peer.call("session.register", &registration("echo"), None);
    say("ready");
    let mut payload = Vec::new();
    while let Some(message) = peer.next() {
        let (header, input) = split(message);
        assert!(header.starts_with(br#"{"jsonrpc":"2.0","id":"#), "{}", lossy(header));
        let digits = header[22..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let id = std::str::from_utf8(&header[22..22 + digits]).unwrap().to_owned();
        payload.clear();
        payload.extend_from_slice(input);
        peer.say(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#), Some(&payload));
    }
}

/// So many sessions that do nothing but live; each line that it hears is another hundred, up to `count`.
fn crowd(folder: &Path, count: usize) {
    let identity = Identity::read(folder, "producer");
    let mut peers: Vec<Peer> = (0..count)
        .map(|number| {
            let mut peer = Peer::connect(folder, &identity);
            peer.call("session.register", &registration(&format!("idle-{number}")), None);
            // What a session does while nothing is asked of it; some memory comes with the first one.
            peer.call("session.heartbeat", "{}", None);
            peer
        })
        .collect();
    say("ready");
    loop {
        std::thread::sleep(Duration::from_secs(20));
        for peer in &mut peers {
            peer.call("session.heartbeat", "{}", None);
        }
    }
}

/// The baseline of telling an event: so many readers that sleep, and one who writes so many bytes to each of them. `step N`: that
/// many times, each when all sleep. Answers with the nanoseconds of processor time that the writer needs for a write.
fn fan(readers: usize, bytes: usize) {
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc::channel;
    let (read, all_read) = channel();
    let mut ends: Vec<UnixStream> = Vec::new();
    for _ in 0..readers {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ends.push(ours);
        let read = read.clone();
        std::thread::spawn(move || {
            let mut message = vec![0; bytes];
            while theirs.read_exact(&mut message).is_ok() {
                read.send(()).unwrap();
            }
        });
    }
    let message = vec![1; bytes];
    say("ready");
    for line in std::io::stdin().lock().lines() {
        let turns: usize = line.unwrap().strip_prefix("step ").unwrap().parse().unwrap();
        let mut spent = 0.0;
        for _ in 0..turns {
            std::thread::sleep(ASLEEP);
            let before = processor_time(Path::new("/proc/thread-self"));
            ends.iter_mut().for_each(|end| end.write_all(&message).unwrap());
            spent += processor_time(Path::new("/proc/thread-self")) - before;
            (0..readers).for_each(|_| all_read.recv().unwrap());
        }
        say(&(spent * 1_000.0 / (turns * readers) as f64).to_string());
    }
    std::process::exit(0);
}

/// A session that changes and so many subscribers, each with a thread that reads. `pour N`: that many updates, several under way
/// at a time; `step N`: one after another, each when all have heard of the one before. Answers with the nanoseconds of an
/// update, when all have heard of all.
fn events(folder: &Path, subscribers: usize) {
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
    const WINDOW: u64 = 64;
    let caller = Identity::read(folder, "caller");
    let heard: Arc<Vec<AtomicU64>> = Arc::new((0..subscribers).map(|_| AtomicU64::new(0)).collect());
    for number in 0..subscribers {
        let mut peer = Peer::connect(folder, &caller);
        peer.call("events.subscribe", r#"{"kinds":["session-updated"]}"#, None);
        let heard = Arc::clone(&heard);
        std::thread::spawn(move || {
            while let Some(message) = peer.next() {
                let (_, list) = split(message);
                assert!(!list.windows(9).any(|part| part == b"\"missed\":"), "a subscriber was overtaken");
                let events = list.windows(10).filter(|part| *part == b"{\"cursor\":").count() as u64;
                heard[number].fetch_add(events, SeqCst);
            }
        });
    }
    let mut peer = Peer::connect(folder, &Identity::read(folder, "producer"));
    peer.call("session.register", &registration("board"), None);
    let mut told = 0;
    let mut update = |peer: &mut Peer, count: u64, window: u64| {
        let (mut sent, mut answered, mut spent) = (0, 0, Duration::ZERO);
        while answered < count {
            let begun = Instant::now();
            while sent < count && sent - answered < window {
                peer.ask("session.update", r#"{"snapshot":true}"#, Some(b"1"));
                sent += 1;
            }
            peer.next().expect("an answer comes");
            answered += 1;
            spent += begun.elapsed();
            if window == 1 || answered == count {
                told += if window == 1 { 1 } else { count };
                if window == 1 {
                    // Everybody sleeps before the next one, subscribers or not.
                    std::thread::sleep(ASLEEP);
                }
                while heard.iter().any(|heard| heard.load(SeqCst) < told) {
                    std::thread::sleep(Duration::from_micros(100));
                }
            }
        }
        spent.as_nanos() / u128::from(count)
    };
    say("ready");
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        let (how, count) = line.split_once(' ').unwrap();
        let window = if how == "pour" { WINDOW } else { 1 };
        say(&update(&mut peer, count.parse().unwrap(), window).to_string());
    }
    std::process::exit(0);
}
