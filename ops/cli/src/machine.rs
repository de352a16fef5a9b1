//! What this machine is, for rows that others will compare with their own.

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

/// Bytes that processes can still take, where the system tells.
pub(crate) fn available_bytes() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    kibibytes(&meminfo, "MemAvailable").map(|kibibytes| kibibytes * 1024)
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
    fn reads_fields_of_proc_files() {
        let text = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nMemTotal:  16 kB\n";
        assert_eq!(field(text, "model name"), Some("Some CPU @ 2 GHz"));
        assert_eq!(field(text, "MemTotal"), Some("16 kB"));
        assert_eq!(field(text, "absent"), None);
    }
}
