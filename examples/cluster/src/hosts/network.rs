//! Commands of iproute2.

use std::io;
use std::net::Ipv4Addr;
use std::process::Command;

/// Hardware address that no host has: a frame to it reaches no host, and its sender gets no error.
pub(super) const NO_HOST: &str = "02:00:00:00:de:ad";

/// Returns the address of the host with this number, which counts from 1.
pub(super) fn address(number: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, u8::try_from(number).unwrap_or(u8::MAX))
}

/// Runs `ip`, and returns its output.
pub(super) fn ip(arguments: &[&str]) -> io::Result<String> {
    let output = Command::new("ip").args(arguments).output()?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(io::Error::other(format!("ip {}: {why}", arguments.join(" "))))
}

/// Returns the process ids in a network namespace.
pub(super) fn pids(namespace: &str) -> io::Result<Vec<i32>> {
    let pids = ip(&["netns", "pids", namespace])?;
    Ok(pids.lines().filter_map(|line| line.trim().parse().ok()).collect())
}
