//! What this machine is, for rows that others will compare with their own.

use std::path::Path;

use serde::Serialize;

/// The machine under a measurement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Machine {
    /// Model name of the processor.
    pub(crate) cpu: String,
    /// Cores that this process may use.
    pub(crate) cores: usize,
    /// Bytes of main memory, where the system tells.
    pub(crate) memory_bytes: Option<u64>,
}

/// Commit that the binary was built from, or `unknown` outside a repository.
pub(crate) const COMMIT: &str = env!("AQUEDUCT_COMMIT");

impl Machine {
    /// Looks at the machine.
    pub(crate) fn look() -> Self {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let kibibytes = kibibytes(&meminfo, "MemTotal");
        Self {
            cpu: field(&cpuinfo, "model name").unwrap_or(std::env::consts::ARCH).to_owned(),
            cores: cores(),
            memory_bytes: kibibytes.map(|kibibytes| kibibytes * 1024),
        }
    }
}

/// Bytes that processes here can still take, where the system tells: of its own, and of what the
/// container that this may be has.
pub(crate) fn available_bytes() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let system = kibibytes(&meminfo, "MemAvailable").map(|kibibytes| kibibytes * 1024);
    system.into_iter().chain(left_of_container(Path::new("/sys/fs/cgroup"))).min()
}

/// What a container's limit leaves, by version 2 of control groups or by version 1. Files that were
/// read and are let go of when memory is short do not count.
fn left_of_container(groups: &Path) -> Option<u64> {
    let read = |name: &str| std::fs::read_to_string(groups.join(name)).ok();
    let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
    let left = |(limit, used, stat, files): (&str, &str, &str, &str)| {
        let stat = read(stat).unwrap_or_default();
        let files = stat.lines().find_map(|line| line.strip_prefix(files)?.trim().parse().ok());
        let used = number(used)?.saturating_sub(files.unwrap_or(0));
        Some(number(limit)?.saturating_sub(used)) // a limit of "max" is none
    };
    let second = ("memory.max", "memory.current", "memory.stat", "inactive_file ");
    let first = (
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
        "memory/memory.stat",
        "total_inactive_file ",
    );
    left(second).or_else(|| left(first))
}

/// Cores that this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn kibibytes(meminfo: &str, name: &str) -> Option<u64> {
    field(meminfo, name).and_then(|value| value.trim_end_matches(" kB").parse().ok())
}

/// The value of the first line `name : value`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_once(':').map(|(_, value)| value.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_has_what_its_limit_leaves() {
        let folder = tempfile::tempdir().unwrap();
        let check = |want| assert_eq!(left_of_container(folder.path()), want);
        let write =
            |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        check(None);
        write("memory.max", "max\n");
        write("memory.current", "700\n");
        check(None);
        write("memory.max", "1000\n");
        check(Some(300));
        write("memory.stat", "anon 500\ninactive_file 200\n");
        check(Some(500));
        write("memory.max", "400\n");
        check(Some(0));
    }

    #[test]
    fn reads_fields_of_proc_files() {
        let text = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nMemTotal:  16 kB\n";
        assert_eq!(field(text, "model name"), Some("Some CPU @ 2 GHz"));
        assert_eq!(field(text, "MemTotal"), Some("16 kB"));
        assert_eq!(field(text, "absent"), None);
    }
}
