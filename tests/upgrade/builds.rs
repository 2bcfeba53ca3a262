//! Builds of this tree that differ in version and protocol only, and the manifest that says what they are.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use ring::digest::{Context, SHA256};
use serde_json::json;

use super::super::support::daemon::{USHER, USHERD};

/// One of the builds; each speaks one protocol, B a higher one than A, and C one higher still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Build {
    A,
    B,
    C,
    /// Another build of A's protocol. Only made, never given.
    Rebuilt,
}

/// Where the builds are, and what is known of them.
#[derive(Debug, Clone, Copy)]
pub enum Builds {
    /// A is the one under test, the others are made in folders beside it.
    Made,
    /// All of them, with their manifest, are in the folder that `USHER_UPGRADE` names: `scripts/upgrade.sh` has put them there.
    Given,
}

impl Build {
    pub fn name(self) -> &'static str {
        match self {
            Self::A => "A",
            Self::B => "B",
            Self::C => "C",
            Self::Rebuilt => "rebuilt",
        }
    }

    pub fn protocol(self) -> u16 {
        match self {
            Self::A | Self::Rebuilt => 1,
            Self::B => 2,
            Self::C => 3,
        }
    }
}

impl Builds {
    /// The `usher` of a build.
    pub fn usher(self, build: Build) -> PathBuf {
        self.program(build, "usher")
    }

    /// The `usherd` of a build.
    pub fn usherd(self, build: Build) -> PathBuf {
        self.program(build, "usherd")
    }

    fn program(self, build: Build, name: &str) -> PathBuf {
        match (self, build) {
            (Self::Given, _) => given().join(build.name()).join(name),
            (Self::Made, Build::A) => PathBuf::from(if name == "usher" { USHER } else { USHERD }),
            (Self::Made, _) => made(build).join(name),
        }
    }

    /// Whether this is the full form.
    pub fn is_full(self) -> bool {
        matches!(self, Self::Given)
    }

    /// The text of the manifest: what was built from what, and how.
    pub fn manifest(self) -> String {
        if self.is_full() {
            return fs::read_to_string(given().join("manifest.json")).unwrap();
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let compiler = Command::new("rustc").arg("-vV").output().unwrap().stdout;
        let compiler = String::from_utf8(compiler).unwrap().replace('\n', ", ");
        let (lock, flags) = (digest_of(root.join("Cargo.lock")), "--cfg usher_fixture for all but A, profile dev");
        let mut builds = json!({});
        for build in [Build::A, Build::B] {
            let other = if build == Build::A { "" } else { "+protocol.2" };
            builds[build.name()] = json!({
                "protocol": build.protocol(),
                "version": env!("CARGO_PKG_VERSION").to_owned() + other,
                "usher": digest_of(self.usher(build)),
                "usherd": digest_of(self.usherd(build)),
            });
        }
        let manifest = json!({
            "manifest": 1,
            "form": "short",
            "source": format!("files:{}", digest_of_source(root)),
            "inputs": {
                "digest": digest([&*lock, &*compiler, flags].join("\n").as_bytes()),
                "lock": lock,
                "compiler": compiler,
                "flags": flags,
            },
            "builds": builds,
        });
        serde_json::to_string_pretty(&manifest).unwrap()
    }
}

/// The folder of `scripts/upgrade.sh`.
pub fn given() -> PathBuf {
    PathBuf::from(std::env::var_os("USHER_UPGRADE").expect("make test-upgrade sets USHER_UPGRADE"))
}

/// Another build, made once, in a folder of its own beside this one's.
fn made(build: Build) -> &'static Path {
    static MADE: [OnceLock<PathBuf>; 3] = [const { OnceLock::new() }; 3];
    let protocol = build.protocol();
    MADE[usize::from(protocol) - 1].get_or_init(|| {
        let target = Path::new(USHER).parent().unwrap().parent().unwrap().join(format!("fixture-{protocol}"));
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--locked", "--bins", "--quiet"]).current_dir(env!("CARGO_MANIFEST_DIR"));
        cargo.env("RUSTFLAGS", "--cfg usher_fixture").env("USHER_FIXTURE", protocol.to_string());
        cargo.env("CARGO_TARGET_DIR", &target).env_remove("CARGO_ENCODED_RUSTFLAGS").stdin(Stdio::null());
        let built = cargo.output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        target.join("debug")
    })
}

/// SHA-256 in hex.
pub fn digest(bytes: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(ring::digest::digest(&SHA256, bytes).as_ref())
}

/// The same of a file.
pub fn digest_of(path: impl AsRef<Path>) -> String {
    digest(&fs::read(path).unwrap())
}

/// Of all that is compiled, names included.
fn digest_of_source(root: &Path) -> String {
    let mut left = vec![root.join("bin"), root.join("src"), root.join("Cargo.toml")];
    let mut files = Vec::new();
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else {
            files.push(path);
        }
    }
    files.sort();
    let mut all = Context::new(&SHA256);
    for file in files {
        let name = file.strip_prefix(root).unwrap();
        all.update(format!("{} {}\n", name.display(), digest_of(&file)).as_bytes());
    }
    data_encoding::HEXLOWER.encode(all.finish().as_ref())
}
