//! A network of the tests' own: hosts are network namespaces, and every pair that may speak has a
//! cable (a veth pair) of its own, which can be pulled. Needs root and Debian's iproute2.
#![allow(dead_code, reason = "every test file uses a part of it")]

use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// Hosts 0 and on, each of which has an address.
pub(crate) struct Net {
    /// Names of the namespaces.
    hosts: Vec<String>,
    /// The second and the third number of all addresses.
    subnet: (u32, u32),
    /// The test process's own ends of cables, by host.
    own: Vec<(usize, String)>,
}

/// Networks of this process so far.
static NETS: AtomicU32 = AtomicU32::new(0);

/// The last number of the test process's own address.
const OWN: usize = 250;

/// Whether this machine lets tests make networks. If not, says that `test` is left out.
pub(crate) fn can(test: &str) -> bool {
    let probe = format!("aqueduct-{}-probe", next_number());
    let made = ip(&["netns", "add", &probe]).map(|made| made.status.success()).unwrap_or(false);
    drop(ip(&["netns", "del", &probe]));
    if !made {
        eprintln!("{test}: LEFT OUT, for it needs root and iproute2 (`ip netns add` failed)");
    }
    made
}

/// Where this process begins to look for a subnet that is free, another place each time.
fn next_number() -> u32 {
    std::process::id().wrapping_mul(16).wrapping_add(NETS.fetch_add(1, Ordering::Relaxed))
}

/// The first subnet of 198.18.0.0/15 (which is for tests), from the one with this number on, that
/// nobody has, held from now on: the route to all of it, which leads nowhere, is the claim. Tests
/// that run beside this one have claims too, and so do tests that were killed: they leave their
/// cables behind as well.
pub(crate) fn claim(number: u32) -> (u32, u32) {
    for number in (0..512).map(|step| number.wrapping_add(step)) {
        let subnet = (18 + number / 256 % 2, number % 256);
        let output = ip(&["route", "add", "blackhole", &whole(subnet)]).unwrap();
        if output.status.success() {
            return subnet;
        }
        let why = String::from_utf8_lossy(&output.stderr);
        assert!(why.contains("File exists"), "no claim to {}: {why}", whole(subnet));
    }
    panic!("all subnets of 198.18.0.0/15 are taken: `ip route` shows them");
}

/// Gives a subnet back.
pub(crate) fn release(subnet: (u32, u32)) {
    drop(ip(&["route", "del", "blackhole", &whole(subnet)]));
}

/// All addresses of a subnet.
fn whole((second, third): (u32, u32)) -> String {
    format!("198.{second}.{third}.0/24")
}

fn ip(args: &[&str]) -> std::io::Result<Output> {
    Command::new("ip").args(args).stdin(Stdio::null()).output()
}

/// Runs `ip`, which must go well.
fn must(args: &[&str]) {
    let output = ip(args).unwrap();
    assert!(output.status.success(), "ip {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

impl Net {
    /// So many hosts, without a cable.
    pub(crate) fn new(hosts: usize) -> Self {
        let subnet @ (second, third) = claim(next_number());
        let name = |host| format!("aqueduct-{}-{second}-{third}-{host}", std::process::id());
        let net = Self { hosts: (0..hosts).map(name).collect(), subnet, own: Vec::new() };
        for (host, name) in net.hosts.iter().enumerate() {
            must(&["netns", "add", name]);
            must(&["-n", name, "link", "set", "lo", "up"]);
            must(&["-n", name, "addr", "add", &format!("{}/32", net.address(host)), "dev", "lo"]);
        }
        net
    }

    /// Where a host is reached by those that it has a cable to.
    pub(crate) fn address(&self, host: usize) -> String {
        let (second, third) = self.subnet;
        format!("198.{second}.{third}.{}", host + 1)
    }

    /// What runs `program` on a host.
    pub(crate) fn on(&self, host: usize, program: &Command) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.hosts[host]]).arg(program.get_program());
        command.args(program.get_args()).stdin(Stdio::null());
        command
    }

    /// Lays a cable between each two of `hosts`.
    pub(crate) fn join_all(&self, hosts: &[usize]) {
        for (at, &one) in hosts.iter().enumerate() {
            for &other in &hosts[..at] {
                self.lay(one, other);
            }
        }
    }

    fn lay(&self, one: usize, other: usize) {
        let (here, there) = (cable_to(other), cable_to(one));
        let [netns, peer_netns] = [one, other].map(|host| self.hosts[host].as_str());
        let peer = ["peer", "name", &there, "netns", peer_netns];
        must(&[&["link", "add", &here, "netns", netns, "type", "veth"], &peer[..]].concat());
        self.plug(one, other);
        self.plug(other, one);
    }

    /// Lays a cable between a host and the test process.
    pub(crate) fn join_self(&mut self, host: usize) {
        let (second, third) = self.subnet;
        let cable = self.own_cable(host);
        let (own, there) = (format!("198.{second}.{third}.{}", OWN + 1), self.address(host));
        let peer = ["peer", "name", "to-test", "netns", self.hosts[host].as_str()];
        must(&[&["link", "add", &cable, "type", "veth"], &peer[..]].concat());
        self.own.push((host, cable.clone()));
        must(&["addr", "add", &format!("{own}/32"), "dev", &cable]);
        must(&["link", "set", &cable, "up"]);
        must(&["route", "add", &format!("{there}/32"), "dev", &cable, "src", &own]);
        self.plug_self(host);
    }

    /// What the test process calls its end of the cable to a host.
    fn own_cable(&self, host: usize) -> String {
        let (second, third) = self.subnet;
        format!("aq{second}-{third}-{host}")
    }

    /// Pulls a host's end of its cable to the test process.
    pub(crate) fn cut_self(&self, host: usize) {
        must(&["-n", &self.hosts[host], "link", "set", "to-test", "down"]);
    }

    /// Plugs it in again. Who asks next is answered, even if the kernel was just about to find that
    /// nobody has the host's address.
    pub(crate) fn plug_self(&self, host: usize) {
        let (name, (second, third)) = (&self.hosts[host], self.subnet);
        let own = format!("198.{second}.{third}.{}", OWN + 1);
        must(&["-n", name, "link", "set", "to-test", "up"]);
        let way = ["route", "replace", &own, "dev", "to-test", "src", &self.address(host)];
        must(&[&["-n", name], &way[..]].concat());
        must(&["neigh", "flush", "dev", &self.own_cable(host)]);
    }

    /// Pulls `one`'s end of its cable to `other`: `other` sees silence, `one` has no way.
    pub(crate) fn cut(&self, one: usize, other: usize) {
        must(&["-n", &self.hosts[one], "link", "set", &cable_to(other), "down"]);
    }

    /// Plugs it in again.
    pub(crate) fn plug(&self, one: usize, other: usize) {
        let (name, cable) = (&self.hosts[one], cable_to(other));
        must(&["-n", name, "link", "set", &cable, "up"]);
        let (from, to) = (self.address(one), format!("{}/32", self.address(other)));
        must(&["-n", name, "route", "replace", &to, "dev", &cable, "src", &from]);
    }

    /// Has a host lose so many of a hundred packets that come to it. False, and a word about
    /// `test`, where the machine has no such packet filter.
    pub(crate) fn lose(&self, test: &str, host: usize, percent: u32) -> bool {
        let rules = format!(
            "add table ip lossy; \
             add chain ip lossy coming {{ type filter hook input priority 0 ; }}; \
             add rule ip lossy coming iifname != \"lo\" numgen random mod 100 < {percent} drop"
        );
        let mut nft = Command::new("nft");
        nft.arg(rules);
        let done = self.on(host, &nft).output().unwrap();
        if !done.status.success() {
            let why = String::from_utf8_lossy(&done.stderr);
            eprintln!("{test}: LEFT OUT, for it needs nftables with numgen: {why}");
        }
        done.status.success()
    }
}

/// What a host calls its end of the cable to `other`.
fn cable_to(other: usize) -> String {
    format!("to-{other}")
}

impl Drop for Net {
    fn drop(&mut self) {
        for (_, cable) in &self.own {
            drop(ip(&["link", "del", cable]));
        }
        for name in &self.hosts {
            drop(ip(&["netns", "del", name]));
        }
        release(self.subnet);
    }
}
