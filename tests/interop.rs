//! The client in tests/interop, which was written from docs/protocol.md alone, against the programs that were built here.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::daemon::{USHER, USHERD};

/// Where it is `1`, a missing package fails the test in place of skipping it.
const REQUIRE: &str = "USHER_REQUIRE_INTEROP";

#[test]
fn a_client_that_was_written_from_the_page_alone_finds_every_promise_kept() {
    pass("test_interop.py");
}

#[test]
fn the_client_that_was_written_from_the_page_comes_to_the_bytes_of_the_vectors() {
    pass("test_wire_selfcheck.py");
}

fn pass(script: &str) {
    if let Some(missing) = missing() {
        let required = std::env::var_os(REQUIRE).is_some_and(|value| value == "1");
        assert!(!required, "{script}: {missing}, and {REQUIRE}=1 asks for it");
        // Not `eprintln`: what a test prints is only shown when it fails.
        let text =
            format!("\nSKIPPED tests/interop/{script}: {missing} (Debian: apt-get install python3-cryptography)\n");
        std::io::stderr().write_all(text.as_bytes()).unwrap();
        return;
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop").join(script);
    let mut python = Command::new("python3");
    python.arg(&path).env("USHERD", USHERD).env("USHER", USHER).env(REQUIRE, "1").stdin(Stdio::null());
    for name in ["USHER_DIR", "USHER_SESSION", "USHER_CREDENTIAL", "USHER_LOG"] {
        python.env_remove(name);
    }
    let ran = python.output().unwrap();
    let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{} ended with {}:\n{said}", path.display(), ran.status);
    let last = said.lines().rev().find(|line| !line.trim().is_empty());
    assert_eq!(last, Some("OK"), "not everything ran in {}:\n{said}", path.display());
}

/// What the client needs and this system has not.
fn missing() -> Option<&'static str> {
    let python = |code: &str| {
        let mut python = Command::new("python3");
        python.args(["-c", code]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        python.status().is_ok_and(|status| status.success())
    };
    if !python("import sys; sys.exit(sys.version_info < (3, 11))") {
        return Some("python3 of version 3.11 or later is missing");
    }
    (!python("import cryptography.hazmat.primitives")).then_some("the Python package cryptography is missing")
}
