//! Clients of another host: they reach no store of a job of one host, have a bound where a store is reached from other
//! hosts, and put nothing into what ranks read of each other.

use crate::raw::Raw;
use crate::service::Store;
use serde_json::{Value, json};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use taskd_core::job::Generation;
use taskd_core::launch::python::write_helper;
use taskd_core::testing::OtherHost;
use taskd_core::testing::python::system;
use taskd_pytorch::store::Bound;

/// What `bash` does on the other host.
fn there(other: &OtherHost, script: &str) -> Output {
    other.command("bash").args(["-c", script]).output().unwrap()
}

async fn serve(store: &mut Store, at: Ipv4Addr) -> SocketAddr {
    let listener = TcpListener::bind((at, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    store.control.serve(Generation(1), listener).await.unwrap();
    address
}

#[tokio::test]
async fn another_host_is_refused_at_once_by_the_store_of_a_job_of_one_host() {
    let Some(other) = OtherHost::join("another_host_is_refused_at_once_by_the_store") else { return };
    let mut store = Store::start().await;
    let port = serve(&mut store, Ipv4Addr::LOCALHOST).await.port();
    for address in [other.here(), Ipv4Addr::LOCALHOST] {
        let begun = Instant::now();
        let output = there(&other, &format!("exec 3<>/dev/tcp/{address}/{port}"));
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && stderr.contains("Connection refused"), "{address}: {stderr}");
        assert!(begun.elapsed() < Duration::from_secs(20), "it is refused, and does not run into a time limit");
    }
    assert_eq!(store.control.stats().await.unwrap().accepted, 0);
}

#[tokio::test]
async fn clients_of_another_host_have_a_bound_and_a_silence_limit() {
    let Some(other) = OtherHost::join("clients_of_another_host_have_a_bound") else { return };
    let mut store = Store::with(&["clients_of_host=3", "silent_ms=500"], None).await;
    let address = serve(&mut store, other.here()).await;
    let mut own = Raw::client(address);
    own.ping();
    // Descriptors 10 to 17 are clients, and live until their store closes them: three are served, five are closed.
    let dial = format!("exec {{fd}}<>/dev/tcp/{}/{}", address.ip(), address.port());
    let hello = r"printf '\x00\xce\xf7\x85\x3c\x0d1234' >&$fd";
    let script = format!(
        "trap '' PIPE; for i in 1 2 3 4 5 6 7 8; do {dial}; {hello}; pong=; read -t 9 -N 4 -u $fd pong; echo \"$pong.\"; done 2>/dev/null"
    );
    let output = there(&other, &script);
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(stdout.lines().filter(|line| *line == "1234.").count(), 3, "{stdout}");
    let stats = store.until("the others are closed", |stats| stats.reached(Bound::ClientsOfHost) == 5).await;
    assert_eq!(stats.foreign, 0, "{stats:#?}");
    own.ping();
    store.until("they have gone", |stats| stats.clients == 1).await;
    // One that shows nothing is closed after its time, however long it would wait.
    let waits = there(&other, &format!("{dial}; read -t 30 -N 1 -u $fd x; echo $?"));
    assert_eq!(String::from_utf8_lossy(&waits.stdout), "1\n", "closed, and no time limit (142)");
    own.ping();
}

/// What a role of that program prints.
fn answer_of(mut command: Command, role: &str, address: SocketAddr) -> Value {
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/store/other_host.py");
    let output =
        command.args([program, role, &address.ip().to_string(), &address.port().to_string()]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{role}: {error}: {stderr}"))
}

/// Left over, and not wanted: torch's client presents nothing by which it could be known, so a process of another host
/// that reaches the port reads and replaces torch's own keys, reads what taskd has put there, and can have a job fail
/// (SECURITY.md, *What is left*). What it puts there is read by no rank.
#[tokio::test]
async fn another_host_writes_no_key_that_ranks_read() {
    let Some(other) = OtherHost::join("another_host_puts_nothing_into_what_ranks_read") else { return };
    let mut store = Store::start().await;
    let address = serve(&mut store, other.here()).await;
    let helper = tempfile::tempdir().unwrap();
    write_helper(helper.path(), &[]).unwrap();
    let own = || {
        let mut command = Command::new(Path::new(system()));
        command.env("PYTHONPATH", helper.path()).env("TASKD_SECRET", "5a".repeat(32));
        command
    };
    assert_eq!(answer_of(own(), "rank", address), json!({}));
    let mut intruder = other.command(system());
    intruder.env_remove("TASKD_SECRET");
    answer_of(intruder, "intruder", address);
    let read = answer_of(own(), "reader", address);
    assert_eq!(read, json!({"state/0": null, "state/1": null, "state/2": "state/2"}));
}
