//! Peers that do not keep to the protocol, and directories that do not do.

use crate::harness::tests;
use crate::support::*;
use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use taskd_core::launch::*;

tests![
    a_flood_of_connections_costs_a_new_owner_no_control_links,
    garbage_on_the_guards_socket_is_cut_and_counted,
    impossible_configuration_is_refused_in_one_sentence,
    a_guard_that_does_not_answer_is_named,
    a_flood_of_connections_to_the_guards_name_holds_nothing_up,
];

/// Connects as often as it can, and again as soon as a connection is closed, until it is killed.
pub(crate) fn flood(socket: &std::path::Path) -> std::process::ExitCode {
    let mut held: Vec<UnixStream> = Vec::new();
    loop {
        held.retain_mut(|one| {
            one.set_nonblocking(true).unwrap();
            one.read(&mut [0]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
        });
        if held.len() < 8 {
            held.extend(UnixStream::connect(socket));
        }
        std::thread::yield_now();
    }
}

async fn a_flood_of_connections_costs_a_new_owner_no_control_links() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = builder(dir.path()).build().await.unwrap();
    launcher.start(&batch(1, [sleeper()])).await.unwrap();
    let socket = dir.path().join("guard.sock");
    let flood = || {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.arg("flood").arg(&socket).spawn().unwrap()
    };
    let mut flooding: Vec<_> = (0..8).map(|_| flood()).collect();
    tokio::time::sleep(Duration::from_millis(300)).await; // as long as it takes to fill all places
    launcher.detach(Duration::from_secs(60)).await.unwrap();
    let next = builder(dir.path()).build().await.unwrap();
    for process in &mut flooding {
        process.kill().unwrap();
        process.wait().unwrap();
    }
    // The new owner serves the workers' socket: it closes a connection that sends no valid message.
    let mut worker = UnixStream::connect(dir.path().join("worker.sock")).unwrap();
    worker.write_all(b"\xff\xff\xff\xff").unwrap();
    worker.set_read_timeout(Some(PATIENCE)).unwrap();
    let cut = tokio::task::spawn_blocking(move || worker.read(&mut [0])).await.unwrap();
    assert!(matches!(cut, Ok(0)) || cut.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset));
    assert!(next.counters().await.unwrap().guard.connections_refused > 0);
    next.shutdown(Duration::ZERO).await.unwrap();
}

async fn garbage_on_the_guards_socket_is_cut_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = builder(dir.path()).build().await.unwrap();
    let connect = || UnixStream::connect(dir.path().join("guard.sock")).unwrap();
    let garbage: [&[u8]; 5] = [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\xff\xff\xff",
        b"\x02\0\0\0{]",
        b"\x00\0\0\0",
        b"\x0f\0\0\0{\"Call\":{\"id\":1",
    ];
    for bytes in garbage {
        let mut stream = connect();
        stream.write_all(bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap(); // it is cut
    }
    let mut stream = connect();
    let call = br#"{"Call":{"id":1,"call":"Counters"}}"#;
    stream.write_all(&[&(call.len() as u32).to_le_bytes()[..], call].concat()).unwrap();
    let mut refused = String::new();
    stream.take(4096).read_to_string(&mut refused).unwrap_or_default();

    let silent: Vec<UnixStream> = (0..100).map(|_| connect()).collect(); // far more than it takes
    let proc = batch(1, [sh("exit 3")]);
    launcher.start(&proc).await.unwrap();
    exit_of(&launcher, &proc.starts[0].proc).await;
    while launcher.counters().await.unwrap().guard.connections_refused < 80 {
        tokio::task::yield_now().await; // it takes a few in each turn
    }
    drop(silent);
    assert_eq!(launcher.counters().await.unwrap().guard.panics, 0);
    launcher.shutdown(Duration::ZERO).await.unwrap();
}

async fn impossible_configuration_is_refused_in_one_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let text = |error: Result<LocalLauncher, LocalError>| error.unwrap_err().to_string();
    assert!(text(builder(&file).build().await).contains(file.to_str().unwrap()));
    let program = |path: &str| LocalLauncher::builder(dir.path()).guard(GuardProgram::Path(path.into())).build();
    assert!(text(program("/no/such/guard").await).contains("cannot start taskd-guard from /no/such/guard"));
    assert!(text(program("/bin/true").await).contains("/bin/true ended before its first message"));
}

async fn a_guard_that_does_not_answer_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = builder(dir.path()).build().await.unwrap();
    let guard = guard_pid(dir.path());
    send(guard, rustix::process::Signal::STOP);
    let error = builder(dir.path()).takeover(true).build().await.unwrap_err().to_string();
    assert!(error.contains(&format!("guard {guard} ")) && error.contains("SIGCONT"), "{error}");
    send(guard, rustix::process::Signal::CONT);
    drop(launcher);
    eventually("it is gone", || (!is_alive(guard)).then_some(())).await;
}

/// Any user of the host can connect to an abstract name.
async fn a_flood_of_connections_to_the_guards_name_holds_nothing_up() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = builder(dir.path()).build().await.unwrap();
    let orders = batch(1, [sleeper()]);
    let here = std::fs::metadata(dir.path()).unwrap();
    let name = format!("taskd-guard/{:x}/{:x}", here.dev(), here.ino());
    let address = SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
    let (is_over, connected) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let flood = |_| {
        let (address, is_over, connected) = (address.clone(), Arc::clone(&is_over), Arc::clone(&connected));
        std::thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                let came = UnixStream::connect_addr(&address).is_ok();
                connected.fetch_add(u64::from(came), Ordering::Relaxed);
            }
        })
    };
    let flooding: Vec<_> = (0..8).map(flood).collect();
    eventually("the flood is on", || (connected.load(Ordering::Relaxed) > 10_000).then_some(())).await;
    launcher.start(&orders).await.unwrap();
    send(pid_of(&launcher, &orders.starts[0].proc).await, rustix::process::Signal::KILL);
    let exit = exit_of(&launcher, &orders.starts[0].proc).await;
    let refused = launcher.counters().await.unwrap().guard.connections_refused;
    is_over.store(true, Ordering::Relaxed);
    flooding.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!((exit.how.to_string().as_str(), refused > 0), ("signal 9 (SIGKILL)", true));
    launcher.shutdown(Duration::ZERO).await.unwrap();
}
