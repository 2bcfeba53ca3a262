//! What tests need of the system: other users, mounts, files of every kind, what the kernel says of a process.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::daemon::{Place, Ran, USHER, USHERD, ran};

/// Somebody else: `nobody` on Linux.
pub const NOBODY: u32 = 65_534;

/// Says loudly that a test cannot do its work here: past the runner, which keeps what a test that passes prints.
pub fn cannot(test: &str, why: &str) {
    let _unheard = writeln!(std::io::stderr(), "NOT TESTED: {test}: {why}");
}

/// Whether this process can become another user and give files away.
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Runs a program as somebody else.
pub fn as_nobody(command: &mut Command) -> &mut Command {
    command.uid(NOBODY).gid(NOBODY).current_dir("/")
}

/// The programs, copied where every user can run them; the folder goes with this.
pub struct Programs(tempfile::TempDir);

impl Programs {
    pub fn for_everybody() -> Self {
        let folder = tempfile::Builder::new().prefix("usher-bin-").tempdir_in("/tmp").unwrap();
        mode(folder.path(), 0o755);
        for program in [USHER, USHERD] {
            let to = folder.path().join(Path::new(program).file_name().unwrap());
            copy_program(program, &to);
            mode(&to, 0o755);
        }
        Self(folder)
    }

    pub fn usher(&self) -> PathBuf {
        self.0.path().join("usher")
    }

    pub fn usherd(&self) -> PathBuf {
        self.0.path().join("usherd")
    }
}

/// Writes a file with mode 0600, in place of what is there.
pub fn put(path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) {
    let mut file = fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(path).unwrap();
    file.write_all(bytes.as_ref()).unwrap();
}

/// Copies a program that is run from there. By another process: a child that is forked here at this moment would hold the
/// file open for writing, and whoever runs it would be told that it is busy.
pub fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    assert!(Command::new("cp").arg(from.as_ref()).arg(to.as_ref()).status().unwrap().success());
}

/// Makes a script that can be run, by another process for the same reason.
pub fn put_program(path: impl AsRef<Path>, text: &str) {
    let mut shell = Command::new("sh");
    shell.args(["-c", r#"cat >"$0" && chmod 755 "$0""#]).arg(path.as_ref()).stdin(Stdio::piped());
    let mut child = shell.spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}

/// Sets a mode.
pub fn mode(path: impl AsRef<Path>, bits: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(bits)).unwrap();
}

/// The mode of what is there, no link followed.
pub fn mode_of(path: impl AsRef<Path>) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

/// Makes a FIFO.
pub fn fifo(path: impl AsRef<Path>) {
    nix::unistd::mkfifo(path.as_ref(), nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
}

/// Everything below a folder, itself too: owner, mode, inode, size, and where a link leads or a small file's bytes.
pub fn tree(path: &Path) -> BTreeMap<PathBuf, (u32, u32, u64, u64, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut left = vec![path.to_owned()];
    while let Some(path) = left.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        let content = if meta.is_symlink() {
            fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
        } else if meta.is_file() && meta.len() < 65_536 {
            fs::read(&path).unwrap()
        } else {
            Vec::new()
        };
        let size = if meta.is_dir() { 0 } else { meta.len() };
        found.insert(path.clone(), (meta.uid(), meta.mode(), meta.ino(), size, content));
        if meta.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    found
}

/// A script in a mount namespace of its own, with the place and the programs as `$1`, `$2` (usher) and `$3` (usherd).
/// None where there is no such thing.
pub fn in_own_mounts(place: &Place, script: &str) -> Option<Ran> {
    let own = |words: &[&str]| {
        let mut command = place.program("unshare");
        command.arg("-m").args(words).stderr(Stdio::null());
        command
    };
    let probe = "mount -t tmpfs -o size=64k none \"$1\" && umount \"$1\"";
    let mut possible = own(&["sh", "-c", probe, "sh"]);
    fs::create_dir_all(place.path()).unwrap();
    if !possible.arg(place.path()).stdout(Stdio::null()).status().is_ok_and(|status| status.success()) {
        return None;
    }
    Some(ran(own(&["sh", "-c", script, "sh"]).arg(place.path()).args([USHER, USHERD])))
}

/// What the kernel says of a process.
pub struct Process(PathBuf);

impl Process {
    pub fn new(pid: u32) -> Self {
        Self(PathBuf::from(format!("/proc/{pid}")))
    }

    /// Where its descriptors lead, by number.
    pub fn descriptors(&self) -> BTreeMap<u32, String> {
        let entries = fs::read_dir(self.0.join("fd")).unwrap().flatten();
        let open = entries.filter_map(|entry| {
            let number = entry.file_name().to_str()?.parse().ok()?;
            Some((number, fs::read_link(entry.path()).ok()?.to_string_lossy().into_owned()))
        });
        open.collect()
    }

    /// Its environment, as it was started.
    pub fn environment(&self) -> BTreeMap<String, String> {
        let bytes = fs::read(self.0.join("environ")).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        let pairs = text.split('\0').filter_map(|pair| pair.split_once('='));
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    /// Its working directory.
    pub fn cwd(&self) -> PathBuf {
        fs::read_link(self.0.join("cwd")).unwrap()
    }

    /// A field of `status`.
    pub fn status(&self, field: &str) -> String {
        let text = fs::read_to_string(self.0.join("status")).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).map(str::trim);
        line.unwrap_or_else(|| panic!("no {field} in\n{text}")).to_owned()
    }

    /// A field of `stat` by its number in proc(5), from 3 on.
    pub fn stat(&self, number: usize) -> i64 {
        let text = fs::read_to_string(self.0.join("stat")).unwrap();
        let (_, fields) = text.rsplit_once(") ").unwrap();
        fields.split(' ').nth(number - 3).unwrap().trim().parse().unwrap()
    }
}

/// Ends a process that a test started and does not own as a child, as `kill` does.
pub fn kill(pid: u32, signal: nix::sys::signal::Signal) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(i32::try_from(pid).unwrap()), signal).unwrap();
}
