//! What holds for the project as a whole and no compiler looks at: layers, exceptions to lints, the Makefile.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::support::daemon::ran;
use super::support::system::put_program;

/// The layers, lowest first; a module may use its own layer and those before it.
const LAYERS: &[&[&str]] = &[
    &["version", "limits", "ids", "error", "threads", "sys", "account"],
    &["store"],
    &["wire"],
    &["auth"],
    &["audit"],
    &["route"],
    &["registry"],
    &["connection"],
    &["daemon"],
];

/// Beside the layers: the module, and what it may use in addition to the first layer. Nobody else uses these.
const BESIDE: &[(&str, &[&str])] =
    &[("client", &["store", "wire", "auth"]), ("cli", &["store", "wire", "auth", "audit", "client"])];

#[test]
fn the_tests_say_the_same_where_they_are_started_with_signals_ignored() {
    let tests = [
        "asking::a_window_that_dies_takes_its_question_with_it_and_whoever_decides_hears_that",
        "run::program::the_program_has_an_empty_signal_mask_and_what_was_ignored_stays_so",
    ];
    let script = "trap '' HUP INT QUIT TERM; exec \"$0\" --exact \"$@\"";
    let ran = ran(Command::new("sh").args(["-c", script]).arg(std::env::current_exe().unwrap()).args(tests));
    assert!(ran.code == 0 && ran.stdout.contains("2 passed"), "{ran:?}");
}

#[test]
fn every_file_and_test_that_the_security_page_names_exists() {
    let page = fs::read_to_string(root().join("docs/SECURITY.md")).unwrap();
    let code: String = ["src", "tests"]
        .iter()
        .flat_map(|folder| files_under(&root().join(folder), "rs"))
        .map(|file| fs::read_to_string(file).unwrap())
        .collect();
    let table: Vec<_> = page.lines().filter(|line| line.starts_with("| ") && line.contains('`')).collect();
    assert!(table.len() > 10, "the table of attacks is gone");
    for name in table.iter().flat_map(|line| line.split('`').skip(1).step_by(2)) {
        let is_there = match name.strip_suffix(".rs") {
            Some(_) => root().join("src").join(name).exists(),
            None if name.contains('.') => true,
            None => code.contains(&format!("fn {name}()")),
        };
        assert!(is_there, "docs/SECURITY.md names {name}, which does not exist");
    }
}

#[test]
fn no_layer_uses_one_above_it() {
    let src = root().join("src");
    let mut wrong = Vec::new();
    for file in files_under(&src, "rs") {
        let name = file.strip_prefix(&src).unwrap().display().to_string();
        if name == "lib.rs" {
            continue;
        }
        let path = module_path(&name);
        let code = without_comments(&fs::read_to_string(&file).unwrap());
        for used in names_after_crate(&code) {
            if let Err(why) = may_use(&path[0], &used) {
                wrong.push(format!("src/{name}: {why}"));
            }
        }
        if climbs_to_the_root(&code, path.len()) {
            wrong.push(format!("src/{name}: reaches the crate root through super, write crate:: instead"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_reader_of_layers_sees_every_way_to_name_a_module() {
    let code = without_comments(concat!(
        "use crate::store::Dir; // not crate::commented\n",
        "use crate::{\n    wire::{frame, message},\n    auth,\n};\n",
        "/// [`crate::linked`]\n",
        "fn f() -> crate::ids::SessionId { mycrate::other() }\n",
        "pub(in crate::registry) use crate :: limits as bounds;\n",
    ));
    assert_eq!(names_after_crate(&code), ["store", "wire", "auth", "ids", "registry", "limits"]);

    assert!(may_use("wire", "store").is_ok());
    assert!(may_use("wire", "wire").is_ok());
    assert!(may_use("client", "auth").is_ok());
    assert!(may_use("cli", "client").is_ok());
    assert!(may_use("store", "wire").is_err());
    assert!(may_use("client", "registry").is_err());
    assert!(may_use("daemon", "cli").is_err());
    assert!(may_use("cli", "daemon").is_err());
    assert!(may_use("wire", "nowhere").is_err());
    assert!(may_use("nowhere", "limits").is_err());

    assert_eq!(module_path("store/mod.rs"), ["store"]);
    assert_eq!(module_path("wire/hello/lines.rs"), ["wire", "hello", "lines"]);
    assert!(climbs_to_the_root("use super::wire;", 1));
    assert!(climbs_to_the_root("use super::super::wire;", 2));
    assert!(!climbs_to_the_root("use super::frame;", 2));
    assert!(!climbs_to_the_root("mod tests {\n    use super::*;\n}", 1));
}

#[test]
fn unsafe_code_is_forbidden_for_the_whole_crate() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let lints = manifest.split("[lints.rust]").nth(1).and_then(|rest| rest.split("\n[").next()).unwrap_or_default();
    assert!(
        lints.lines().any(|line| line.trim() == r#"unsafe_code = "forbid""#),
        "Cargo.toml, [lints.rust]: unsafe_code has to be \"forbid\""
    );
}

#[test]
fn every_exception_to_a_lint_says_why() {
    let mut wrong = Vec::new();
    for file in ["src", "bin"].iter().flat_map(|folder| files_under(&root().join(folder), "rs")) {
        let code = without_comments(&fs::read_to_string(&file).unwrap());
        for exception in exceptions(&code).into_iter().filter(|text| !text.contains("reason =")) {
            wrong.push(format!("{}: {exception}", file.display()));
        }
    }
    assert!(wrong.is_empty(), "without a reason:\n{}", wrong.join("\n"));

    let code = r#"#[allow(dead_code)] #![expect(a, reason = "b (c)")] x.expect("y"); cfg_attr(test, allow(z))"#;
    assert_eq!(exceptions(code), ["allow(dead_code)", r#"expect(a, reason = "b (c)")"#, "allow(z)"]);
}

#[test]
fn make_without_a_target_explains_every_target() {
    let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
    let targets: Vec<_> =
        makefile.lines().filter_map(|line| line.strip_prefix(".PHONY:")).flat_map(str::split_whitespace).collect();
    assert!(targets.contains(&"help"), "no .PHONY targets found in the Makefile");

    let help = stdout_of(make(&[]).current_dir(root()));
    for target in targets {
        let explained = help.lines().any(|line| {
            let mut words = line.split_whitespace();
            words.next() == Some(target) && words.count() > 1
        });
        assert!(explained, "make does not explain {target}:\n{help}");
    }
}

#[test]
fn make_install_copies_the_programs_twice_runs_nothing_and_is_undone_by_uninstall() {
    let work = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let ran = work.path().join("ran");
    let tools = work.path().join("tools");
    fs::create_dir(&tools).unwrap();
    for tool in ["cargo", "rustc", "cc"] {
        let script = format!("#!/bin/sh\necho {tool} >>'{}'\n", ran.display());
        put_program(tools.join(tool), &script);
    }
    let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap());
    let (usher, usherd) = (Path::new(env!("CARGO_BIN_EXE_usher")), Path::new(env!("CARGO_BIN_EXE_usherd")));
    let stage = work.path().join("stage");
    let variables = [
        format!("BUILD_DIR={}", usher.parent().unwrap().display()),
        format!("DESTDIR={}", stage.display()),
        "PREFIX=/usr".to_owned(),
    ];
    let run = |target: &str| stdout_of(make(&[target]).args(&variables).env("PATH", &path).current_dir(root()));

    for _ in 0..2 {
        run("install");
        assert_eq!(installed(&stage), expected_files());
    }
    for (built, name) in [(usher, "usher"), (usherd, "usherd")] {
        let copy = fs::read(stage.join("usr/bin").join(name)).unwrap();
        assert!(copy == fs::read(built).unwrap(), "{name} was altered on its way");
    }

    for _ in 0..2 {
        run("uninstall");
        assert_eq!(installed(&stage), BTreeMap::new());
        for ours in ["usr/share/doc/usher", "usr/share/licenses/usher"] {
            assert!(!stage.join(ours).exists(), "{ours} is left");
        }
    }
    assert!(!ran.exists(), "ran {}", fs::read_to_string(&ran).unwrap());
    let beside: Vec<_> = fs::read_dir(work.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(beside.len(), 2, "only the stage and the tools: {beside:?}");
}

/// Path under the stage and mode of every file that a release installs with `PREFIX=/usr`.
fn expected_files() -> BTreeMap<PathBuf, u32> {
    let mut files = BTreeMap::from([("usr/bin/usher".into(), 0o755), ("usr/bin/usherd".into(), 0o755)]);
    for license in ["LICENSE-APACHE", "LICENSE-MIT"] {
        files.insert(Path::new("usr/share/licenses/usher").join(license), 0o644);
    }
    for document in files_in(&root(), "md").iter().chain(&files_in(&root().join("docs"), "md")) {
        let name = document.strip_prefix(root()).unwrap();
        if name.parent() == Some(Path::new("docs"))
            || name == Path::new("README.md")
            || name == Path::new("CHANGELOG.md")
        {
            files.insert(Path::new("usr/share/doc/usher").join(name), 0o644);
        }
    }
    for section in 1..=8 {
        for page in files_in(&root().join("docs/man"), &section.to_string()) {
            let folder = format!("usr/share/man/man{section}");
            files.insert(Path::new(&folder).join(page.file_name().unwrap()), 0o644);
        }
    }
    files
}

fn installed(stage: &Path) -> BTreeMap<PathBuf, u32> {
    files_under(stage, "")
        .into_iter()
        .map(|file| {
            let mode = fs::symlink_metadata(&file).unwrap().permissions().mode() & 0o7777;
            (file.strip_prefix(stage).unwrap().to_owned(), mode)
        })
        .collect()
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// `make` as a user types it: nothing of the make or cargo that may have started this test reaches it.
fn make(arguments: &[&str]) -> Command {
    let mut command = Command::new("make");
    command.args(arguments).env_clear().env("PATH", std::env::var_os("PATH").unwrap());
    command
}

fn stdout_of(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}: {status}\n{stdout}{stderr}");
    stdout.into_owned()
}

/// The files of one folder whose name ends in `.extension`, all for an empty one; none where the folder is missing.
fn files_in(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut files: Vec<_> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| !path.is_dir() && (extension.is_empty() || path.extension().is_some_and(|end| end == extension)))
        .collect();
    files.sort();
    files
}

fn files_under(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut files = files_in(folder, extension);
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            files.extend(files_under(&entry.path(), extension));
        }
    }
    files
}

/// `wire/hello/lines.rs` is `wire`, `hello`, `lines`; `wire/mod.rs` and `wire.rs` are `wire`.
fn module_path(file: &str) -> Vec<String> {
    let module = file.trim_end_matches(".rs").trim_end_matches("/mod");
    module.split('/').map(str::to_owned).collect()
}

fn may_use(user: &str, used: &str) -> Result<(), String> {
    let layer = |name: &str| LAYERS.iter().position(|layer| layer.contains(&name));
    let beside = |name: &str| BESIDE.iter().find(|(module, _)| *module == name).map(|(_, allowed)| *allowed);
    if layer(used).is_none() && beside(used).is_none() {
        return Err(format!("crate::{used} has no layer in tests/project.rs"));
    }
    let allowed = match (layer(user), beside(user)) {
        (Some(own), _) => layer(used).is_some_and(|other| other <= own),
        (None, Some(allowed)) => user == used || layer(used) == Some(0) || allowed.contains(&used),
        (None, None) => return Err(format!("{user} has no layer in tests/project.rs")),
    };
    if allowed { Ok(()) } else { Err(format!("{user} must not use {used}")) }
}

/// What follows each `crate::`, in `use` lines and in expressions alike; of a group, the head of each member.
fn names_after_crate(code: &str) -> Vec<String> {
    let mut names = Vec::new();
    for (at, word) in code.match_indices("crate") {
        let after = code[at + word.len()..].trim_start();
        let Some(path) = after.strip_prefix("::") else { continue };
        if code[..at].ends_with(is_name) {
            continue;
        }
        match path.trim_start().strip_prefix('{') {
            Some(group) => names.extend(members(group).iter().map(|member| leading_name(member))),
            None => names.push(leading_name(path)),
        }
    }
    names
}

/// The members of a group whose opening brace is already read.
fn members(group: &str) -> Vec<String> {
    let mut members = vec![String::new()];
    let mut depth = 0;
    for character in group.chars() {
        match character {
            '}' if depth == 0 => break,
            ',' if depth == 0 => {
                members.push(String::new());
                continue;
            }
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        members.last_mut().unwrap().push(character);
    }
    members.retain(|member| !member.trim().is_empty());
    members
}

fn leading_name(path: &str) -> String {
    path.trim_start().chars().take_while(|character| is_name(*character)).collect()
}

fn is_name(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// Whether as many `super::` in a row as the module is deep stand before its tests, which lie one deeper.
fn climbs_to_the_root(code: &str, depth: usize) -> bool {
    let code = code.split("mod tests {").next().unwrap_or_default();
    code.contains(&"super::".repeat(depth))
}

/// Code without `//` comments, documentation included. What follows `//` in a string goes too, which hides nothing here.
fn without_comments(code: &str) -> String {
    code.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// Every `allow(…)` and `expect(…)` of an attribute, not the method of that name.
fn exceptions(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for word in ["allow(", "expect("] {
        for (at, _) in code.match_indices(word) {
            if code[..at].trim_end().ends_with(['[', ',']) {
                found.push((at, call(&code[at..])));
            }
        }
    }
    found.sort();
    found.into_iter().map(|(_, text)| text).collect()
}

/// From a name to the parenthesis that closes its call.
fn call(text: &str) -> String {
    let mut depth = 0;
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' if depth == 1 => return text[..=at].to_owned(),
            ')' => depth -= 1,
            _ => {}
        }
    }
    panic!("not closed: {text}")
}
