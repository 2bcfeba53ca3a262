//! What the kernel says of a running process.

use std::path::PathBuf;

/// A process of ours.
#[derive(Clone, Copy)]
pub struct Process(pub u32);

impl Process {
    fn path(self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{name}", self.0))
    }

    /// Memory that it has in use.
    pub fn resident_kib(self) -> u64 {
        let status = std::fs::read_to_string(self.path("status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse().unwrap()
    }

    /// Its threads.
    pub fn threads(self) -> usize {
        std::fs::read_dir(self.path("task")).unwrap().count()
    }

    /// Its open descriptors.
    pub fn descriptors(self) -> usize {
        std::fs::read_dir(self.path("fd")).unwrap().count()
    }

    /// Processor time that it has used, in hundredths of a second.
    pub fn ticks(self) -> u64 {
        let stat = std::fs::read_to_string(self.path("stat")).unwrap();
        // Behind the name, which may hold anything, utime and stime are the 12th and 13th field.
        let fields: Vec<_> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    }
}
