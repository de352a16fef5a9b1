//! A terminal with somebody at it, for commands that want one: made by `script` (util-linux).

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};

use crate::binary::wait_for;

/// What a command writes to have a screen of its own.
pub(crate) const OTHER_SCREEN: &str = "\u{1b}[?1049h";
/// What it writes to give the terminal back.
pub(crate) const OWN_SCREEN: &str = "\u{1b}[?1049l";

/// A command at a terminal; killed when dropped.
pub(crate) struct Terminal {
    child: Child,
    keys: ChildStdin,
    seen: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    /// Runs a line of the shell.
    pub(crate) fn run(line: &str) -> Self {
        let mut child = Command::new("script")
            .args(["--quiet", "--flush", "--return", "--command", line, "/dev/null"])
            .env("TERM", "xterm-256color")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("script is on every Debian");
        let mut stdout = child.stdout.take().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let write = seen.clone();
        std::thread::spawn(move || {
            let mut part = [0; 4096];
            while let Ok(count) = stdout.read(&mut part) {
                if count == 0 {
                    return;
                }
                write.lock().unwrap().extend_from_slice(&part[..count]);
            }
        });
        let keys = child.stdin.take().unwrap();
        Self { child, keys, seen }
    }

    /// All that the terminal was told so far, once it is so.
    pub(crate) fn wait_for(&self, what: &str, is_so: impl Fn(&str) -> bool) -> String {
        wait_for(what, || {
            let seen = String::from_utf8_lossy(&self.seen.lock().unwrap()).into_owned();
            is_so(&seen).then_some(seen)
        })
    }

    pub(crate) fn type_keys(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    /// All that it was told, after the command ended with this code.
    pub(crate) fn ended(mut self, code: i32) -> String {
        let status = wait_for("the end of the command", || self.child.try_wait().unwrap());
        let seen = self.wait_for("its own screen", |seen| seen.contains(OWN_SCREEN));
        assert_eq!(status.code(), Some(code), "{seen:?}");
        seen
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        drop(self.child.kill()); // it may have ended by itself
        drop(self.child.wait());
    }
}
