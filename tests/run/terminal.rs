//! A run on a terminal, made by script(1): keys, job control, and what is told of it.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use super::super::support::daemon::{Place, USHER};
use super::super::support::wait::PATIENCE;
use super::{Window, session};

/// A program on a terminal of its own: what it shows, and keys for it.
pub(in super::super) struct Screen {
    script: Child,
    keys: ChildStdin,
    shown: Receiver<Vec<u8>>,
    text: String,
}

impl Screen {
    /// None where there is no script(1).
    pub(in super::super) fn new(place: &Place, command: &str) -> Option<Self> {
        if Command::new("script").arg("--version").stdout(Stdio::null()).status().is_err() {
            println!("SKIPPED: there is no script(1)");
            return None;
        }
        let mut script = place
            .program("script")
            .args(["-qec", command, "/dev/null"])
            .env("SHELL", "/bin/sh")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (keys, mut output) = (script.stdin.take().unwrap(), script.stdout.take().unwrap());
        let (sender, shown) = sync_channel(64);
        std::thread::Builder::new()
            .spawn(move || {
                let mut bytes = [0; 4_096];
                while let Ok(count @ 1..) = output.read(&mut bytes) {
                    let _nobody_looks = sender.send(bytes[..count].to_vec());
                }
            })
            .unwrap();
        Some(Self { script, keys, shown, text: String::new() })
    }

    pub(in super::super) fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    /// Waits until something is shown; what came until then is forgotten.
    pub(in super::super) fn wait_for(&mut self, what: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self.text.find(what) {
                self.text.drain(..at + what.len());
                return;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match self.shown.recv_timeout(left) {
                Ok(bytes) => self.text.push_str(&String::from_utf8_lossy(&bytes)),
                Err(_) => panic!("waited in vain for {what:?}, saw {:?}", self.text),
            }
        }
    }
}

impl Screen {
    /// Waits until the program has ended, and the run with it.
    fn wait_for_end(&mut self) {
        super::until("script(1) ends", || self.script.try_wait().unwrap());
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ended_already = self.script.kill();
        let _status = self.script.wait();
    }
}

/// bash(1) as people use it, or nothing.
pub(super) fn bash(place: &Place) -> Option<Screen> {
    let mut screen = Screen::new(place, "PS1='$ ' exec bash --norc --noediting -i")?;
    screen.wait_for("$ ");
    Some(screen)
}

#[test]
fn a_key_at_the_terminal_reaches_the_program_once() {
    let place = Place::with_daemon(&[]);
    // The run takes signals in the order of their numbers: when USR1 comes through, INT has been dealt with.
    let program = concat!(
        "n=0; trap 'n=$((n+1))' INT; trap 'echo total $n.; exit 0' USR1; echo ready; ",
        "while :; do sleep 0.02; test $n = 0 || sh -c \"kill -USR1 $PPID\"; done"
    );
    let file = place.path().join("program");
    std::fs::File::create(&file).unwrap().write_all(program.as_bytes()).unwrap();
    let Some(mut screen) = Screen::new(&place, &format!("'{USHER}' run -- sh '{}'", file.display())) else {
        return;
    };
    screen.wait_for("ready");
    screen.press("\u{3}");
    screen.wait_for("total 1.");
    screen.wait_for_end();
}

#[test]
fn a_key_ends_an_ordinary_program_and_the_shell_hears_130() {
    let place = Place::with_daemon(&[]);
    let Some(mut screen) = bash(&place) else { return };
    screen.press(&format!("'{USHER}' run -- sh -c 'echo up; exec sleep 600'; echo \"code $?\"\n"));
    screen.wait_for("up\r\n");
    screen.press("\u{3}");
    screen.wait_for("code 130");
}

#[test]
fn job_control_stops_and_continues_the_run_with_its_program() {
    let place = Place::with_daemon(&[]);
    let Some(mut screen) = bash(&place) else { return };
    screen.press(&format!("'{USHER}' run --title w -- sh -c 'echo up; exec sleep 600'\n"));
    screen.wait_for("up\r\n");
    let row = super::until("the session is listed", || session(&place, "w"));
    let program = u32::try_from(row["pid"].as_u64().unwrap()).unwrap();
    for _ in 0..3 {
        screen.press("\u{1a}");
        screen.wait_for("Stopped");
        screen.wait_for("$ ");
        screen.press("fg\n");
        // A key that comes before bash has handed the terminal over stops nobody.
        super::until("it runs again", || (super::state(program) == Some('S')).then_some(()));
    }
    screen.press("\u{3}");
    screen.wait_for("$ ");
    screen.press("echo \"code $?\"\n");
    screen.wait_for("code 130");
}

#[test]
fn a_program_that_stops_itself_alone_gives_the_shell_its_prompt() {
    let place = Place::with_daemon(&[]);
    let Some(mut screen) = bash(&place) else { return };
    screen.press(&format!("'{USHER}' run -- sh -c 'echo up; kill -TSTP $$; echo again.; exit 7'\n"));
    screen.wait_for("up\r\n");
    screen.wait_for("Stopped");
    screen.wait_for("$ ");
    screen.press("fg; echo \"code $?\"\n");
    screen.wait_for("again.");
    screen.wait_for("code 7");
}

#[test]
fn a_program_reads_from_the_terminal_as_if_it_ran_alone() {
    let place = Place::with_daemon(&[]);
    let Some(mut screen) = bash(&place) else { return };
    screen.press(&format!(
        "'{USHER}' run -- sh -c 'test -t 0 && test -t 1 && test -t 2 && read x && echo got-$x'; echo \"code $?\"\n"
    ));
    screen.press("line\n");
    screen.wait_for("got-line");
    screen.wait_for("code 0");
}

#[test]
fn the_terminal_that_is_gone_ends_the_program() {
    let place = Place::with_daemon(&[]);
    let Some(mut screen) = Screen::new(&place, &format!("'{USHER}' run --title w -- sh -c 'echo up; exec sleep 600'"))
    else {
        return;
    };
    screen.wait_for("up");
    let program = super::until("the session is listed", || session(&place, "w"))["pid"].as_u64().unwrap();
    drop(screen);
    let program = u32::try_from(program).unwrap();
    super::until("the program ends", || super::state(program).is_none_or(|state| state == 'Z').then_some(()));
    super::until("the session ends", || session(&place, "w").is_none().then_some(()));
}

#[test]
fn the_terminal_and_the_place_are_told() {
    let place = Place::with_daemon(&[]);
    let repo = place.path().join("re\u{1b}po\u{e9}");
    std::fs::create_dir_all(repo.join("sub/.hidden")).unwrap();
    std::fs::create_dir(repo.join(".git")).unwrap();
    let mut command = place.usher();
    command.args(["run", "--title", "w", "--label", "k=v\n", "--on", "x=printf '\\033'\n", "--", "sleep", "600"]);
    command.current_dir(repo.join("sub")).env("TMUX", "/tmp/tmux-0/default,12,3").env("TMUX_PANE", "%5");
    command.env("ITERM_SESSION_ID", "w0t0p0:1").env("TERM_SESSION_ID", "T1").env("TERM_PROGRAM", "x".repeat(300));
    let row = Window::of(&place, "w", &mut command).row.clone();
    let root = place.path().canonicalize().unwrap();
    assert_eq!(row["cwd"], format!("{}/re po\u{e9}/sub", root.display()));
    assert_eq!(row["repo_root"], format!("{}/re po\u{e9}", root.display()));
    assert_eq!(row["labels"], serde_json::json!({"k": "v "}));
    let expected = serde_json::json!({
        "tmux_pane": "%5", "tmux_socket": "/tmp/tmux-0/default", "iterm_session": "w0t0p0:1", "term_session": "T1",
    });
    let mut terminal = row["terminal"].clone();
    terminal.as_object_mut().unwrap().remove("tty");
    assert_eq!(terminal, expected);
    let names: Vec<_> =
        row["commands"].as_array().unwrap().iter().map(|command| command["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["x", "status", "signal"]);
    let started = Duration::from_millis(row["started"].as_u64().unwrap());
    let age = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().abs_diff(started);
    assert!(age < Duration::from_secs(60), "{age:?}");
}

#[test]
fn the_tty_is_told_by_its_name() {
    let place = Place::with_daemon(&[]);
    let Some(mut screen) =
        Screen::new(&place, &format!("'{USHER}' run --title w -- sh -c 'tty; exec sleep 600' 0</dev/tty"))
    else {
        return;
    };
    screen.wait_for("/dev/tty");
    let row = super::until("the session is listed", || session(&place, "w"));
    let tty = row["terminal"]["tty"].as_str().unwrap().to_owned();
    assert!(tty.starts_with("/dev/pts/"), "{row}");
    screen.press("\u{3}");
    super::until("the session ends", || session(&place, "w").is_none().then_some(()));
}
