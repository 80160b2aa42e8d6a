//! The socket's file: its owner, the users that may connect, and the processes that may replace it.

use crate::support::*;
use rustix::process::Uid;
use serde_json::json;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use taskd_core::runtime::control::{ControlSocket, SocketError, SocketLimits};

async fn bind(path: &Path) -> Result<ControlSocket, SocketError> {
    let served = Served::new().await;
    ControlSocket::bind(path, served.handle.clone(), SocketLimits::default())
}

async fn refusal(path: &Path) -> String {
    bind(path).await.expect_err("it must not be bound").to_string()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[tokio::test]
async fn the_file_is_ours_alone_in_a_directory_of_its_own_and_goes_with_us() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run/taskd/demo.sock");
    let socket = bind(&path).await.unwrap();
    assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
    assert_eq!(socket.path(), path);
    drop(socket);
    assert!(!path.exists());
}

/// Connects as a user that is neither root nor this test's.
fn connect_as_another(path: &Path) -> std::io::Result<UnixStream> {
    let path = path.to_owned();
    let thread = std::thread::spawn(move || {
        rustix::thread::set_thread_uid(Uid::from_raw(65_534))?; // of this thread alone
        UnixStream::connect(path)
    });
    thread.join().unwrap()
}

#[tokio::test]
async fn another_user_is_kept_out_by_the_file_and_without_it_by_name() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root can be another user for a while");
    }
    let served = Served::new().await;
    let path = served.path();
    assert_eq!(connect_as_another(&path).unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
    if path.ancestors().skip(2).any(|dir| mode(dir) & 0o001 == 0) {
        return eprintln!("skipped: temporary files lie where no other user can look");
    }
    // Another process opens it for all users.
    fs::set_permissions(path.parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
    let stream = connect_as_another(&path).unwrap();
    stream.set_nonblocking(true).unwrap();
    let mut client = Client::over(tokio::net::UnixStream::from_std(stream).unwrap());
    let answer = client.line().await.expect("a reason");
    assert_eq!(answer["error"]["text"], "user 65534 may not control a runtime of user 0", "{answer}");
    assert!(client.line().await.is_none(), "and nothing more");
    assert_eq!(served.socket.counts().strangers, 1);
}

#[tokio::test]
async fn a_dead_socket_is_replaced_and_a_live_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("demo.sock");
    drop(UnixListener::bind(&path).unwrap()); // its file stays, as after a crash
    assert!(path.exists());
    let first = bind(&path).await.unwrap();
    let refused = refusal(&path).await;
    assert_eq!(
        refused,
        format!("the socket {} is served by another process: stop that one, or choose another path", path.display())
    );
    assert!(Client::of(&path).await.ask(json!({"do": "status"})).await.is_object(), "and it is served on");
    drop(first);
}

#[tokio::test]
async fn a_live_socket_whose_owner_is_too_busy_to_listen_is_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("demo.sock");
    let listener = UnixListener::bind(&path).unwrap();
    rustix::net::listen(&listener, 0).unwrap(); // room for one that waits
    let _waiting = UnixStream::connect(&path).unwrap();
    assert!(refusal(&path).await.contains("is served by another process"));
}

#[tokio::test]
async fn a_regular_file_at_the_socket_path_is_refused_and_untouched() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("demo.sock");
    fs::write(&path, "precious").unwrap();
    let refused = refusal(&path).await;
    assert!(refused.ends_with("exists and is not a socket: choose another path, or remove it"), "{refused}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
}

#[tokio::test]
async fn a_directory_where_others_can_write_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o777)).unwrap();
    let refused = refusal(&dir.path().join("demo.sock")).await;
    assert!(
        refused.contains("is writable for others (mode 0777): give the socket a directory of its own"),
        "{refused}"
    );
}

#[tokio::test]
async fn a_path_that_is_too_long_is_refused_with_the_systems_limit() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x".repeat(120));
    let refused = refusal(&path).await;
    let bytes = path.as_os_str().len();
    assert!(
        refused.ends_with(&format!("has {bytes} bytes, and the system allows 107: choose a shorter one")),
        "{refused}"
    );
    let fits = dir.path().join("y".repeat(107 - dir.path().as_os_str().len() - 1));
    assert_eq!(bind(&fits).await.unwrap().path(), fits, "one that just fits");
}

#[tokio::test]
async fn a_bound_of_nothing_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let served = Served::new().await;
    let mut limits = SocketLimits::default();
    limits.connections_max = 0;
    let refused = ControlSocket::bind(dir.path().join("demo.sock"), served.handle.clone(), limits).unwrap_err();
    assert_eq!(refused.to_string(), "control.connections_max must be at least 1");
}

#[tokio::test]
async fn a_file_that_replaced_the_socket_is_not_removed_on_drop() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("demo.sock");
    let socket = bind(&path).await.unwrap();
    fs::remove_file(&path).unwrap();
    fs::write(&path, "another's").unwrap();
    drop(socket);
    assert!(path.exists());
}
