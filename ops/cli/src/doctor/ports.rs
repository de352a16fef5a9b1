//! Whether addresses can be listened on, and who listens there already.

use std::io::ErrorKind;
use std::net::TcpListener;
use std::path::Path;

use super::Check;

/// Looks at the address of `--FLAG`.
pub(crate) fn look(flag: &str, address: &str) -> Check {
    let check = format!("port {flag}");
    match TcpListener::bind(address) {
        Ok(_) => Check::ok(&check, format!("{address} is free")),
        Err(error) if error.kind() == ErrorKind::AddrInUse => held(&check, flag, address),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            let next = format!("give --{flag} a port above 1023, or the process that right");
            Check::fail(&check, format!("{address}: {error}"), next)
        }
        Err(error) => {
            let next = format!("give --{flag} an address of this machine, as HOST:PORT");
            Check::fail(&check, format!("{address}: {error}"), next)
        }
    }
}

fn held(check: &str, flag: &str, address: &str) -> Check {
    let port = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    let next = format!("stop it, or give --{flag} another port");
    match port.and_then(holder) {
        Some((pid, name)) if name == "aqueduct" => {
            let found = format!("{address} is held by aqueduct, process {pid}");
            Check::warn(check, found, format!("well if that is to run; to start another, {next}"))
        }
        Some((pid, name)) => {
            Check::fail(check, format!("{address} is held by {name}, process {pid}"), next)
        }
        None => Check::fail(check, format!("{address} is held by another user's process"), next),
    }
}

/// Id and name of the process that listens on `port`, if we may know.
fn holder(port: u16) -> Option<(u32, String)> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let tables = read("/proc/net/tcp") + &read("/proc/net/tcp6");
    let sockets: Vec<_> = sockets(&tables, port).map(|inode| format!("socket:[{inode}]")).collect();
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    processes.map(|entry| entry.path()).find_map(|process| {
        let pid = process.file_name()?.to_str()?.parse().ok()?;
        let files = std::fs::read_dir(process.join("fd")).ok()?.flatten();
        let mut targets = files.filter_map(|file| std::fs::read_link(file.path()).ok());
        let is_ours = |target: &Path| sockets.iter().any(|socket| target == Path::new(socket));
        targets.any(|target| is_ours(&target)).then(|| {
            let name = read(&format!("/proc/{pid}/comm"));
            (pid, name.trim().to_owned())
        })
    })
}

/// Sockets that listen on `port`, in the words of `/proc/net/tcp`.
fn sockets(table: &str, port: u16) -> impl Iterator<Item = &str> {
    let local = format!(":{port:04X}");
    table.lines().filter_map(move |line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let is_it = fields.get(1)?.ends_with(&local) && *fields.get(3)? == "0A";
        is_it.then(|| fields.get(9).copied()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::State;

    #[test]
    fn listeners_are_found_in_the_tables_of_the_system() {
        let table = "sl local_address rem_address st ...\n\
            0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 0 0 0 4711 1 0\n\
            1: 0100007F:1F90 0100007F:C000 01 00000000:00000000 00:00000000 0 0 0 4712 1 0\n\
            2: short\n";
        assert_eq!(sockets(table, 8080).collect::<Vec<_>>(), ["4711"]);
        assert_eq!(sockets(table, 80).count(), 0);
    }

    #[test]
    fn who_holds_a_port_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let check = look("http", &address);
        assert_eq!(
            check.state,
            if check.found.contains("aqueduct,") { State::Warn } else { State::Fail }
        );
        assert!(check.found.ends_with(&format!("process {}", std::process::id())), "{check:?}");
        drop(listener);
        assert_eq!(look("http", &address).state, State::Ok);
        for wrong in ["127.0.0.1", "192.0.2.1:80", "nowhere:x"] {
            assert_eq!(look("http", wrong).state, State::Fail, "{wrong}");
        }
    }
}
