//! Three real servers of etcd, which can be stopped and continued.

use rustix::process::{Pid, Signal, kill_process};
use std::process::Child;
use taskd_cluster_example::etcd_server::{Member, program};

/// Members of one etcd. They are killed on drop.
pub(crate) struct Servers {
    members: Vec<Child>,
    pub(crate) uris: Vec<String>,
    _dir: tempfile::TempDir,
}

impl Servers {
    /// Starts three members at these addresses. `None`: this machine has no etcd.
    pub(crate) fn start(addresses: &[String; 3]) -> Option<Servers> {
        let program = program()?;
        let dir = tempfile::tempdir().unwrap();
        let peer = |at: usize| format!("http://{}:2380", addresses[at]);
        let uris: Vec<String> = addresses.iter().map(|address| format!("http://{address}:2379")).collect();
        let all = [0, 1, 2].map(|at| format!("m{at}={}", peer(at))).join(",");
        let start = |at: usize| {
            let (name, peer) = (format!("m{at}"), peer(at));
            let member = Member { name: &name, client: &uris[at], peer: &peer, cluster: &all };
            member.command(&program, &dir.path().join(&name)).spawn().unwrap()
        };
        Some(Servers { members: (0..3).map(start).collect(), uris, _dir: dir })
    }

    /// Sends a signal to all members.
    pub(crate) fn signal(&self, signal: Signal) {
        for member in &self.members {
            let pid = i32::try_from(member.id()).ok().and_then(Pid::from_raw);
            kill_process(pid.unwrap(), signal).unwrap();
        }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for member in &mut self.members {
            let _ = member.kill();
            let _ = member.wait();
        }
    }
}
