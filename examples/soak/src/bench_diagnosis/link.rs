//! A network of the program's own, and a narrow bandwidth for the connections between two of its processes.
//!
//! The whole program runs in a network namespace, in which only the loopback interface exists: its traffic rules affect
//! nothing else on the machine.

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::process::Command;
use taskd_examples::program::Failure;

/// The environment variable that marks the program in its network namespace.
const INSIDE: &str = "BENCH_DIAGNOSIS_INSIDE";
/// Bandwidth of the narrow connections: the gradients of a step take some 30 ms longer, the pipeline some 100 ms.
const RATE: &str = "16mbit";

/// Continues this program in a network namespace of its own. Returns the reason if that is not possible: the program
/// then runs in the machine's network, without slow links.
pub(super) fn enter() -> Option<String> {
    if std::env::var_os(INSIDE).is_some() {
        let up = ["set dev lo up", "set dev lo mtu 1500"].map(|words| tool("ip", &format!("link {words}")));
        return up.into_iter().find_map(Result::err).map(|failure| failure.to_string());
    }
    let can = Command::new("unshare").args(["--net", "tc", "-Version"]).output();
    if !can.is_ok_and(|output| output.status.success()) {
        return Some("a network namespace needs root and the tools unshare, ip, tc and ss".to_owned());
    }
    let program = std::env::current_exe().ok()?;
    let words = std::env::args_os().skip(1);
    let failure = Command::new("unshare").arg("--net").arg(program).args(words).env(INSIDE, "1").exec();
    Some(format!("unshare: {failure}")) // it returns only then
}

/// Narrows the connections between two processes, in both directions.
pub(super) fn narrow(a: i32, b: i32) -> Result<(), Failure> {
    let ports = between(&tool("ss", "-tnpH state established")?, a, b);
    if ports.is_empty() {
        return Err(format!("processes {a} and {b} have no connection").into());
    }
    let _ = restore();
    // Traffic without a class is not limited.
    tool("tc", "qdisc add dev lo root handle 1: htb default 0")?;
    tool("tc", &format!("class add dev lo parent 1: classid 1:4 htb rate {RATE} burst 16kb cburst 16kb"))?;
    for (from, to) in ports {
        let ends = format!("match ip sport {from} 0xffff match ip dport {to} 0xffff");
        tool("tc", &format!("filter add dev lo parent 1: protocol ip prio 1 u32 {ends} flowid 1:4"))?;
    }
    Ok(())
}

/// Removes the limit.
pub(super) fn restore() -> Result<(), Failure> {
    tool("tc", "qdisc del dev lo root").map(drop)
}

/// Returns the ports of the connections between two processes, from the lines of `ss -tnp`: each direction once.
fn between(lines: &str, a: i32, b: i32) -> Vec<(u16, u16)> {
    let mut owners: BTreeMap<(u16, u16), i32> = BTreeMap::new();
    for line in lines.lines() {
        let mut words = line.split_whitespace().skip(2);
        let mut port = || words.next()?.rsplit_once(':')?.1.parse::<u16>().ok();
        let ends = port().zip(port());
        let pid = line.split_once("pid=").and_then(|(_, rest)| rest.split(',').next()?.parse().ok());
        if let Some((ends, pid)) = ends.zip(pid) {
            owners.insert(ends, pid);
        }
    }
    let is_between = |(from, to): &(u16, u16), pid: i32| {
        let other = owners.get(&(*to, *from)).copied();
        (pid == a && other == Some(b)) || (pid == b && other == Some(a))
    };
    owners.iter().filter(|(ends, pid)| is_between(ends, **pid)).map(|(ends, _)| *ends).collect()
}

fn tool(program: &str, words: &str) -> Result<String, Failure> {
    let output = Command::new(program).args(words.split(' ')).output()?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("{program} {words}: {}", String::from_utf8_lossy(&output.stderr).trim()).into())
}

#[cfg(test)]
mod tests {
    use super::between;

    #[test]
    fn connections_between_two_processes_are_found_in_both_directions() {
        let lines = "0 0 127.0.0.1:40 127.0.0.1:50 users:((\"python\",pid=7,fd=9))\n\
                     0 0 127.0.0.1:50 127.0.0.1:40 users:((\"python\",pid=8,fd=9))\n\
                     0 0 127.0.0.1:41 127.0.0.1:51 users:((\"python\",pid=7,fd=9))\n\
                     0 0 127.0.0.1:51 127.0.0.1:41 users:((\"python\",pid=9,fd=9))\n\
                     a line of another form\n";
        assert_eq!(between(lines, 7, 8), [(40, 50), (50, 40)]);
        assert_eq!(between(lines, 8, 9), []);
    }
}
