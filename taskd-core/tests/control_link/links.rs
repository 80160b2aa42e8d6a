//! One link: which process is let in, what gets through, and what a change of owner leaves of it.

use super::{PATIENCE, local, received, until, worker};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use taskd_core::job::*;
use taskd_core::launch::*;

fn start(spec: WorkerSpec) -> StartBatch {
    let member = Member { incarnation: Incarnation(1), node: None, device: None };
    let proc = ProcId::rank(0, 1);
    let orders = vec![StartOrder::new(proc, Place::anywhere(), Arc::new(spec))];
    StartBatch::new(Arc::new(World::first([(Rank(0), member)].into())), orders)
}

fn directive(batch: &StartBatch, what: Directive) -> DirectiveBatch {
    let world = Arc::new(batch.world.successor(Counted::Yes, |_| ()));
    DirectiveBatch::new(world, vec![(ProcId::rank(0, 1), what)])
}

async fn linked(launcher: &dyn Launcher) -> ControlLink {
    until(launcher, "a link", |change| match change {
        Change::Link(LinkStatus { link: linked, .. }) => linked.clone(),
        _ => None,
    })
    .await
}

async fn answer(launcher: &dyn Launcher, from: Revision) -> (CommandId, Result<Box<DirectiveReply>, String>) {
    let looking = async {
        let mut from = from;
        loop {
            let (changes, next) = launcher.watch(from).await.unwrap();
            from = next;
            for change in changes {
                if let Change::Worker(WorkerEvent { message: WorkerMessage::Reply { id, result }, .. }) = change {
                    return (id, result);
                }
            }
        }
    };
    tokio::time::timeout(PATIENCE, looking).await.expect("an answer")
}

#[tokio::test]
async fn a_process_sends_its_hello_and_runs_each_directive_once() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = local(dir.path()).build().await.unwrap();
    let batch = start(worker(dir.path()));
    launcher.start(&batch).await.unwrap();
    let link = linked(&launcher).await;
    assert_eq!(
        (link.position, link.generation, link.framework.as_str()),
        (LoopPosition::InLoop, Generation(1), "stand-in")
    );
    assert!(link.capabilities.contains(&Name::new("abort")));
    let from = launcher.list().await.unwrap().revision;
    launcher.send_directives(CommandId(7), &directive(&batch, Directive::Abort {})).await.unwrap();
    launcher.send_directives(CommandId(7), &directive(&batch, Directive::Abort {})).await.unwrap(); // as after a lost answer
    let (id, result) = answer(&launcher, from).await;
    let state = result.unwrap().state.unwrap();
    assert_eq!((id, state.window, state.buckets), (CommandId(7), Window::Before, vec![8, 4]));
    let store = Some(Endpoint { host: "127.0.0.1".into(), port: 1, served: false });
    let from = launcher.list().await.unwrap().revision;
    let join = Directive::Join { rank: Rank(0), size: 1, members: Vec::new(), prefix: "taskd/2".into(), store };
    launcher.send_directives(CommandId(8), &directive(&batch, join)).await.unwrap();
    let figures = answer(&launcher, from).await.1.unwrap().figures;
    assert_eq!(figures, [(Name::new("joined_ms"), 1.5)].into());
    let moved = linked(&launcher).await;
    assert_eq!(moved.generation, Generation(2), "it trains in the next world now");
    assert_eq!(received(dir.path(), "rank-0.1"), ["abort", "join"], "once, though it was given twice");
    let unknown = DirectiveBatch::new(batch.world.clone(), vec![(ProcId::rank(9, 1), Directive::Abort {})]);
    let refused = launcher.send_directives(CommandId(9), &unknown).await;
    assert_eq!(refused, Err(LaunchError::Refused("rank 9#1 has no control link now".into())));
    launcher.shutdown(Duration::ZERO).await.unwrap();
}

#[tokio::test]
async fn a_process_that_sends_garbage_loses_its_link_and_reconnects() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = local(dir.path()).build().await.unwrap();
    let batch = start(worker(dir.path()).with_env("ODD", "garbage"));
    launcher.start(&batch).await.unwrap();
    linked(&launcher).await;
    launcher.send_directives(CommandId(1), &directive(&batch, Directive::Abort {})).await.unwrap();
    let mut lost = false;
    until(&launcher, "lost, and there again", |change| match change {
        Change::Link(LinkStatus { link: None, .. }) => {
            lost = true;
            None
        }
        Change::Link(LinkStatus { link: Some(_), .. }) => lost.then_some(()),
        _ => None,
    })
    .await;
    assert!(launcher.counters().await.unwrap().links.refused > 0);
    launcher.shutdown(Duration::ZERO).await.unwrap();
}

#[tokio::test]
async fn a_foreign_process_cannot_open_a_link_for_a_rank() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = local(dir.path()).build().await.unwrap();
    let batch = start(WorkerSpec::new(["sleep", "1000"]));
    launcher.start(&batch).await.unwrap();
    let control = control_of(&launcher).await;
    let hello =
        br#"{"hello": {"version": 1, "proc": "rank-0.1", "generation": 1, "framework": "x", "position": "in-loop"}}"#;
    let old =
        br#"{"hello": {"version": 9, "proc": "rank-0.1", "generation": 1, "framework": "x", "position": "in-loop"}}"#;
    let noise: [&[u8]; 3] = [hello, old, b"[]"];
    for word in noise {
        let mut stream = UnixStream::connect(&control).unwrap();
        stream.write_all(&u32::try_from(word.len()).unwrap().to_le_bytes()).unwrap();
        stream.write_all(word).unwrap();
        let closed = tokio::task::spawn_blocking(move || stream.read(&mut [0; 8])).await.unwrap();
        assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
    }
    let mut stream = UnixStream::connect(&control).unwrap();
    stream.write_all(&u32::MAX.to_le_bytes()).unwrap(); // a frame that no process may send
    let closed = tokio::task::spawn_blocking(move || stream.read(&mut [0; 8])).await.unwrap();
    assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
    assert_eq!(launcher.counters().await.unwrap().links.refused, 4);
    assert!(launcher.list().await.unwrap().links.is_empty());
    launcher.shutdown(Duration::ZERO).await.unwrap();
}

/// Where the processes of this launcher connect: from the environment of the one that runs.
async fn control_of(launcher: &dyn Launcher) -> PathBuf {
    let pid = launcher.list().await.unwrap().procs[0].pid.unwrap();
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap();
    let environment = String::from_utf8(environment).unwrap();
    let control = environment.split('\0').find_map(|variable| variable.strip_prefix("TASKD_CONTROL="));
    Path::new(control.unwrap()).to_owned()
}

#[tokio::test]
async fn a_later_owner_finds_the_process_and_a_directive_runs_once() {
    let dir = tempfile::tempdir().unwrap();
    let keep = OnOwnerLoss::Keep { at_most: PATIENCE };
    let first = local(dir.path()).on_owner_loss(keep).build().await.unwrap();
    let batch = start(worker(dir.path()));
    first.start(&batch).await.unwrap();
    linked(&first).await;
    let from = first.list().await.unwrap().revision;
    first.send_directives(CommandId(1), &directive(&batch, Directive::Abort {})).await.unwrap();
    answer(&first, from).await.1.unwrap();
    first.detach(PATIENCE).await.unwrap();
    drop(first);
    let second = local(dir.path()).on_owner_loss(keep).build().await.unwrap();
    assert_eq!(linked(&second).await.position, LoopPosition::InLoop);
    let from = second.list().await.unwrap().revision;
    second.send_directives(CommandId(1), &directive(&batch, Directive::Abort {})).await.unwrap(); // as a kernel does that goes on
    assert!(answer(&second, from).await.1.is_ok());
    assert_eq!(received(dir.path(), "rank-0.1"), ["abort"]);
    second.shutdown(Duration::ZERO).await.unwrap();
}

#[tokio::test]
async fn without_a_guard_there_are_links_as_well() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = LocalLauncher::builder(dir.path().join("run")).guard(GuardProgram::None).build().await.unwrap();
    launcher.start(&start(worker(dir.path()))).await.unwrap();
    linked(&launcher).await;
    launcher.stop(&[ProcId::rank(0, 1)], Duration::ZERO).await.unwrap();
    until(&launcher, "its exit", |change| {
        matches!(change, Change::Proc(status) if status.phase.is_exited()).then_some(())
    })
    .await;
    assert!(launcher.list().await.unwrap().links.is_empty(), "an exited rank has no link");
    launcher.shutdown(Duration::ZERO).await.unwrap();
}
