//! The control socket: which users may connect, how it is handed over, what it refuses.

use crate::raw::Raw;
use crate::service::{Store, connect, program};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};
use taskd_core::job::Generation;
use taskd_pytorch::store::{Bound, ControlError, Refusal, StoreControl};

#[tokio::test]
async fn generations_are_served_and_retired() {
    let mut store = Store::start().await;
    let (one, two) = (store.serve(1).await, store.serve(2).await);
    let (mut old, mut new) = (Raw::client(one), Raw::client(two));
    old.set("k", b"old");
    new.set("k", b"new");
    assert_eq!((old.get("k"), new.get("k")), (b"old".to_vec(), b"new".to_vec()));
    assert!(store.control.retire(Generation(1)).await.unwrap());
    assert!(old.is_closed());
    assert!(std::net::TcpStream::connect(one).is_err(), "its port is free");
    assert_eq!(new.get("k"), b"new");
    assert!(!store.control.retire(Generation(1)).await.unwrap(), "called again, it is as it was");
    let listener = || TcpListener::bind("127.0.0.1:0").unwrap();
    let over = store.control.serve(Generation(1), listener()).await.unwrap_err();
    assert!(matches!(over, ControlError::Refused(Refusal::Retired { .. })), "{over}");
    let twice = store.control.serve(Generation(2), listener()).await.unwrap_err().to_string();
    assert_eq!(twice, format!("generation 2 is served already, at {two}: retire it first, or use it"));
    assert_eq!(store.control.pid(), store.child.id());
    let stats = store.control.stats().await.unwrap();
    assert_eq!(stats.generations.len(), 1);
    assert_eq!(stats.generations[0].address, two.to_string());
}

#[tokio::test]
async fn a_second_controller_sees_the_same_store_and_the_first_may_die() {
    let mut store = Store::start().await;
    let address = store.serve(1).await;
    let mut other = StoreControl::connect(&store.path).await.unwrap();
    other.serve(Generation(2), TcpListener::bind("[::1]:0").unwrap()).await.unwrap();
    assert_eq!(store.control.stats().await.unwrap().generations.len(), 2);
    drop(other);
    Raw::client(address).ping();
    assert_eq!(store.control.stats().await.unwrap().generations.len(), 2, "what it has served stays");
    let mut many = Vec::new();
    for _ in 0..15 {
        many.push(connect(&store.path).await);
    }
    assert!(StoreControl::connect(&store.path).await.is_err(), "sixteen at a time");
    assert_eq!(store.control.stats().await.unwrap().reached(Bound::Controllers), 1);
}

/// The socket is the process's standard input here, since a test cannot put a descriptor in a place of its choice.
#[tokio::test]
async fn a_socket_that_is_passed_outlives_the_process_and_is_used_by_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("control");
    let listener = UnixListener::bind(&path).unwrap();
    for round in 1..=2 {
        let mut shell = Command::new("sh");
        shell.args(["-c", r#"exec "$@" 3<&0 0</dev/null"#, "sh"]).args(program().command(None).unwrap());
        shell.env("TASKD_LISTEN_FD", "3");
        let passed: OwnedFd = listener.try_clone().unwrap().into();
        let mut child = shell.stdin(passed).spawn().unwrap();
        let mut control = connect(&path).await;
        assert_eq!(control.pid(), child.id());
        assert_eq!(control.stats().await.unwrap().generations, vec![], "the process of round {round} begins again");
        control.serve(Generation(round), TcpListener::bind("127.0.0.1:0").unwrap()).await.unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let lost = control.stats().await.unwrap_err();
        assert!(matches!(lost, ControlError::Lost(_)), "{lost}");
    }
}

#[test]
fn store_that_cannot_start_prints_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let output_of = |arguments: &[&str], variables: &[(&str, &str)]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_taskd-store"));
        command.args(arguments).envs(variables.iter().copied()).stdin(Stdio::null());
        let output = command.output().unwrap();
        assert!(output.stdout.is_empty());
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, text) = output_of(&[], &[]);
    assert_eq!((code, text.contains("name its path with --control")), (1, true), "{text}");
    let (code, text) = output_of(&[], &[("TASKD_LISTEN_FD", "3")]);
    assert_eq!((code, text.contains("descriptor 3 was passed as the control socket")), (1, true), "{text}");
    let (code, text) = output_of(&["--port", "1"], &[]);
    assert_eq!((code, text.contains("usage: taskd-store")), (64, true), "{text}");
    let (code, text) = output_of(&["--limit", "clients=0", "--control", "x"], &[]);
    assert_eq!((code, text.contains("must be at least 1")), (64, true), "{text}");
    let nowhere = dir.path().join("none/control");
    let (code, text) = output_of(&["--control", nowhere.to_str().unwrap()], &[]);
    assert_eq!((code, text.contains("cannot be created")), (1, true), "{text}");
}

#[tokio::test]
async fn garbage_at_the_control_socket_ends_that_connection_alone() {
    let mut store = Store::start().await;
    let address = store.serve(1).await;
    let frame = |json: &str| [&u32::try_from(json.len()).unwrap().to_le_bytes(), json.as_bytes()].concat();
    let hello = frame(r#"{"hello":{"protocol":1}}"#);
    let stats = frame(r#"{"call":{"id":1,"call":"stats"}}"#);
    let garbage: [Vec<u8>; 8] = [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        u32::MAX.to_le_bytes().to_vec(),
        frame("{]"),
        frame("[]"),
        stats.clone(),                                          // before a hello
        [hello.clone(), hello.clone()].concat(),                // twice
        [frame(r#"{"hello":{"protocol":2}}"#), stats].concat(), // of another version
        [hello.clone(), frame(r#"{"call":{"id":1,"call":"dance"}}"#)].concat(),
    ];
    for output_of in garbage {
        let mut stream = UnixStream::connect(&store.path).unwrap();
        stream.set_read_timeout(Some(crate::service::PATIENCE)).unwrap();
        stream.write_all(&output_of).unwrap();
        let mut received = Vec::new();
        let _ = stream.read_to_end(&mut received); // an end, or that it was reset
        assert!(received.len() < 100, "at most a welcome: {received:?}");
    }
    // A call that needs a listener, without one; and a client that stops in the middle of a frame.
    let mut stream = UnixStream::connect(&store.path).unwrap();
    stream.write_all(&[&hello[..], &frame(r#"{"call":{"id":1,"call":{"serve":{"generation":9}}}}"#)].concat()).unwrap();
    let mut received = String::new();
    while !received.contains("no_listener") {
        let mut part = [0; 200];
        let bytes = stream.read(&mut part).unwrap();
        assert!(bytes > 0, "{received}");
        received += &String::from_utf8_lossy(&part[..bytes]);
    }
    stream.write_all(&[7, 0]).unwrap();
    Raw::client(address).ping();
    assert_eq!(store.control.stats().await.unwrap().generations.len(), 1);
}

#[tokio::test]
async fn control_connection_of_another_user_is_refused() {
    if !rustix::process::geteuid().is_root() {
        return crate::support::say(
            "skipped: control_connection_of_another_user_is_refused (only root can be another user)",
        );
    }
    use std::os::unix::fs::PermissionsExt;
    let mut store = Store::start().await;
    for path in [&store.path, &store.path.parent().unwrap().to_path_buf()] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    let program = "import os, socket, sys; os.setuid(65534); s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n\
                   s.sendall(bytes([24, 0, 0, 0]) + b'{\"hello\":{\"protocol\":1}}')\n\
                   sys.exit(len(s.recv(1)))";
    let mut command = Command::new(taskd_core::testing::python::system());
    let output = command.args(["-c", program]).arg(&store.path).output().unwrap();
    let output_of = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() || output_of.contains("ConnectionReset") || output_of.contains("BrokenPipe"),
        "{output_of}"
    );
    assert_eq!(store.control.stats().await.unwrap().strangers, 1);
}
