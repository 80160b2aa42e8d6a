//! Changed files are used without a restart, broken ones are not.

use std::time::{Duration, Instant};

use taskd_cluster::security::{FILES_CHECK_INTERVAL, RejectReason, SecurityContext};

use super::service::{Greeting, greet, serve};
use super::{HOST, PATIENCE, authority, cause, member, rejected};

#[tokio::test]
async fn rotation_of_the_ca_keeps_members_and_connections() {
    let directories = [(); 3].map(|()| tempfile::tempdir().expect("a directory"));
    let (old, new) = (authority("CA of 2026"), authority("CA of 2027"));
    let server = member(&old, directories[0].path()).await;
    let agent = member(&old, directories[1].path()).await;
    let port = serve(&server);
    let mut kept = Greeting::new(&agent, port);
    kept.call(HOST).await.expect("access");

    // Both CAs in one file, then new certificates, then the new CA alone.
    let both = format!("{}{}", old.pem(), new.pem());
    for (context, directory) in [(&server, &directories[0]), (&agent, &directories[1])] {
        std::fs::write(directory.path().join("ca.pem"), &both).expect("written");
        context.reload().await.expect("usable");
    }
    let files = new.issue(&[HOST]).expect("issued").write(directories[1].path(), &both).expect("files");
    agent.reload().await.expect("usable");
    greet(&agent, port, HOST).await.expect("a new certificate at an old server");
    new.issue(&[HOST]).expect("issued").write(directories[0].path(), new.pem()).expect("files");
    server.reload().await.expect("usable");
    std::fs::write(files.ca, new.pem()).expect("written");
    agent.reload().await.expect("usable");
    greet(&agent, port, HOST).await.expect("the new CA on both sides");

    // The old CA has no access any more; the connection that it made continues.
    let late = member(&old, directories[2].path()).await;
    greet(&late, port, HOST).await.expect_err("the old CA");
    rejected(server.rejections(), RejectReason::RefusedByPeer, 1).await;
    kept.call(HOST).await.expect("the first connection");
    assert_eq!((server.reload_status().reloads, server.reload_status().failures), (2, 0));
}

#[tokio::test]
async fn session_of_a_removed_ca_is_not_resumed() {
    let directories = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
    let (old, new) = (authority("old"), authority("new"));
    let server = member(&old, directories[0].path()).await;
    // Trusts both, so that only the server can refuse.
    let both = format!("{}{}", old.pem(), new.pem());
    let agent =
        super::open(&old.issue(&[HOST]).expect("issued").write(directories[1].path(), &both).expect("files")).await;
    let port = serve(&server);
    greet(&agent, port, HOST).await.expect("a session with tickets");
    new.write(directories[0].path(), &[HOST]).expect("files");
    server.reload().await.expect("usable");
    let status = greet(&agent, port, HOST).await.expect_err("the old CA");
    assert!(cause(&status).contains("it does not trust the CA of"), "{}", cause(&status));
    rejected(server.rejections(), RejectReason::UnknownAuthority, 1).await;
}

#[tokio::test]
async fn half_written_file_keeps_the_old_certificate_in_force() {
    let directory = tempfile::tempdir().expect("a directory");
    let ca = authority("job");
    let files = ca.write(directory.path(), &[HOST]).expect("files");
    let context = super::open(&files).await;
    let port = serve(&context);
    let next = ca.issue(&[HOST]).expect("issued");

    std::fs::write(&files.certificate, &next.certificate[..next.certificate.len() / 2]).expect("written");
    let error = context.reload().await.expect_err("half of a file").to_string();
    assert!(error.contains("the file is not complete"), "{error}");
    greet(&context, port, HOST).await.expect("the old certificate");
    // The whole certificate, but still the old key.
    std::fs::write(&files.certificate, &next.certificate).expect("written");
    let error = context.reload().await.expect_err("another key").to_string();
    assert!(error.contains("does not match the certificate"), "{error}");
    greet(&context, port, HOST).await.expect("the old certificate");
    let status = context.reload_status();
    assert_eq!((status.reloads, status.failures), (0, 2));
    assert_eq!(status.error.as_deref(), Some(error.as_str()));

    std::fs::write(&files.key, &next.key).expect("written");
    context.reload().await.expect("usable");
    greet(&context, port, HOST).await.expect("the new certificate");
    let status = context.reload_status();
    assert_eq!((status.reloads, status.error), (1, None));
}

/// Waits in tokio's paused time, which advances while no file is read.
async fn until(context: &SecurityContext, reached: impl Fn(&SecurityContext) -> bool) {
    let end = Instant::now() + PATIENCE;
    while !reached(context) {
        assert!(Instant::now() < end, "{:?}", context.reload_status());
        tokio::time::sleep(FILES_CHECK_INTERVAL / 4).await;
    }
}

#[tokio::test(start_paused = true)]
async fn changed_files_are_loaded_by_themselves() {
    let directory = tempfile::tempdir().expect("a directory");
    let ca = authority("job");
    let context = member(&ca, directory.path()).await;
    tokio::time::sleep(FILES_CHECK_INTERVAL * 10).await;
    assert_eq!((context.reload_status().reloads, context.reload_status().failures), (0, 0));

    // As a secret of Kubernetes changes: a rename over the old file.
    let staged = tempfile::tempdir_in(directory.path()).expect("a directory");
    ca.write(staged.path(), &[HOST]).expect("files");
    for name in ["host.pem", "host.key", "ca.pem"] {
        std::fs::rename(staged.path().join(name), directory.path().join(name)).expect("renamed");
    }
    until(&context, |context| context.reload_status().reloads == 1).await;

    std::fs::write(directory.path().join("host.key"), "rubbish").expect("written");
    until(&context, |context| context.reload_status().failures >= 2).await;
    assert!(context.reload_status().error.expect("an error").contains("no section `BEGIN PRIVATE KEY`"));
    ca.write(directory.path(), &[HOST]).expect("files");
    until(&context, |context| context.reload_status().reloads == 2).await;
    assert_eq!(context.reload_status().error, None);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(context.reload_status().reloads, 2);
}
