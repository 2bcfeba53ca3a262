//! The examples of docs/attach.md, each taken from the page and run against the real daemon.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use super::super::support::daemon::{Place, USHER};
use super::super::support::system::put;
use super::super::support::wait::until;
use super::{is_gone, session};

/// A language's example: its heading, its fence, and what runs it.
struct Example {
    heading: &'static str,
    fence: &'static str,
    program: &'static str,
    /// Where it is `1`, a missing program fails the test in place of skipping it.
    require: &'static str,
}

/// The text of the first block of this kind below a heading of the page.
fn block(heading: &str, fence: &str) -> String {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/attach.md")).unwrap();
    let section = page.split(&format!("\n## {heading}\n")).nth(1).unwrap().split("\n## ").next().unwrap().to_owned();
    let code = section.split(&format!("```{fence}\n")).nth(1).unwrap_or_else(|| panic!("no {fence} in {heading}"));
    code.split("```").next().unwrap().to_owned()
}

impl Example {
    /// Runs it; the command line of the page is run too and prints what the page says. Then `more`, and the end.
    fn run(&self, title: &str, more: impl FnOnce(&Place)) {
        if Command::new(self.program).arg("--version").stdout(Stdio::null()).status().is_err() {
            let required = std::env::var_os(self.require).is_some_and(|value| value == "1");
            assert!(!required, "{} is missing, and {}=1 asks for it", self.program, self.require);
            // Not `eprintln`: what a test prints is only shown when it fails.
            let text = format!("\nSKIPPED docs/attach.md, {}: {} is missing\n", self.heading, self.program);
            std::io::stderr().write_all(text.as_bytes()).unwrap();
            return;
        }
        let place = Place::with_daemon(&[]);
        let script = place.path().join("example");
        put(&script, block(self.heading, self.fence));
        let folder = Path::new(USHER).parent().unwrap();
        let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
        let mut command = place.program(self.program);
        let mut child = command.arg(&script).env("PATH", &path).stdout(Stdio::null()).spawn().unwrap();
        let row = until("the session is listed", || {
            assert!(child.try_wait().unwrap().is_none(), "the example ended");
            session(&place, title)
        });
        assert_eq!(row["pid"], child.id(), "the session is the program's");
        let console = block(self.heading, "console");
        let (line, said) = console.split_once('\n').unwrap();
        let line = line.strip_prefix("$ ").unwrap();
        let ran = place.program("sh").args(["-c", line]).env("PATH", &path).output().unwrap();
        assert_eq!((String::from_utf8_lossy(&ran.stdout).as_ref(), ran.status.code()), (said, Some(0)), "{ran:?}");
        more(&place);
        let _ended_already = child.kill();
        child.wait().unwrap();
        is_gone(&place, title);
    }
}

#[test]
fn the_example_in_python_does_what_the_page_says() {
    let python = Example { heading: "Python", fence: "python", program: "python3", require: "USHER_REQUIRE_PYTHON" };
    python.run("sums", |place| {
        let ran = place.run(&["send", "--title", "sums", "add", "7"]);
        assert!(ran.code == 1 && ran.stderr.contains("not a list of numbers"), "{ran:?}");
        until("the snapshot counts", || {
            (place.json(&["get", "--title", "sums"])["snapshot"]["commands"] == 2).then_some(())
        });
    });
}

#[test]
fn the_example_in_shell_does_what_the_page_says() {
    let shell = Example { heading: "Shell", fence: "bash", program: "bash", require: "USHER_REQUIRE_BASH" };
    shell.run("counter", |place| {
        assert_eq!(place.run(&["send", "--title", "counter", "next"]).stdout, "2\n");
        assert_eq!(place.run(&["send", "--title", "counter", "quit"]).stdout, "bye\n");
        is_gone(place, "counter");
    });
}

#[test]
fn the_example_in_node_does_what_the_page_says() {
    let node = Example { heading: "Node", fence: "js", program: "node", require: "USHER_REQUIRE_NODE" };
    node.run("words", |place| {
        let ran = place.run(&["send", "--title", "words", "upper", "7"]);
        assert!(ran.code == 1 && ran.stderr.contains("not a text"), "{ran:?}");
    });
}
