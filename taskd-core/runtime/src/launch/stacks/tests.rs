use super::*;
use crate::job::Rank;
use crate::trace::STACKS;

/// Starts a Python that waits in a known function, and returns once it is there.
fn waiting() -> Child {
    let program = "def load_batch():\n    print(flush=True)\n    input()\nload_batch()";
    let mut command = Command::new("python3");
    let mut child = command.args(["-c", program]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    child
}

fn end(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[tokio::test]
async fn the_stack_of_a_waiting_process_names_its_function() {
    let child = waiting();
    let pid = i32::try_from(child.id()).unwrap();
    let role = Role::Rank(Rank(0));
    let ask = Probe::new("test", STACKS, vec![Domain::Process(role.clone())], Duration::from_secs(1));
    let mut readers = StackReaders::default();
    // Where py-spy is not installed, is not allowed or is too slow, the kernel's view of the thread is the answer.
    let by_py_spy = |text: &str| text.contains("thread MainThread") && text.contains("load_batch (<string>:3)");
    let by_kernel = |text: &str| text.starts_with("main thread in state S in ") && text.contains("; py-spy ");
    let mut text = String::new();
    for tag in 3..500 {
        let answer = readers.answer(&ask.clone().with_tag(tag), &role, |_| Some(pid)).await;
        let ProbeResult::Text(read) = answer else { panic!("{answer:?}") };
        text = read;
        if by_py_spy(&text) || by_kernel(&text) {
            break; // it is asleep in its function by now
        }
    }
    eprintln!("read by {}: {text}", if by_py_spy(&text) { "py-spy" } else { "/proc, without py-spy" });
    assert!(by_py_spy(&text) || by_kernel(&text), "{text}");
    let gone = readers.answer(&ask.with_tag(2), &role, |_| None).await;
    assert_eq!(gone, ProbeResult::Unavailable("rank 0 has ended".into()));
    end(child);
}

#[test]
fn the_output_of_py_spy_becomes_one_line() {
    let output = r#"[{"pid": 9, "thread_id": 1, "thread_name": "MainThread", "os_thread_id": 9, "active": false,
        "owns_gil": false, "frames": [{"name": "read", "filename": "/srv/data.py", "module": null,
        "short_filename": "data.py", "line": 41, "locals": null}, {"name": "<module>", "filename": "/srv/train.py",
        "short_filename": null, "line": 3}], "process_info": null}, {"thread_name": null, "active": true, "frames": []}]"#;
    let threads: Vec<Thread> = serde_json::from_str(output).unwrap();
    let text =
        "thread MainThread (idle): read (data.py:41) < <module> (/srv/train.py:3); thread without a name (active): ";
    assert_eq!(described(&threads), text);
    assert_eq!(described(&[]), "it has no Python thread");
}

/// Makes an executable script.
fn script(dir: &Path, text: &str) -> PathBuf {
    let path = dir.join("py-spy");
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn py_spy_is_found_in_absolute_directories_only() {
    let dir = tempfile::tempdir().unwrap();
    let path = script(dir.path(), "");
    let search = |dirs: &[&Path]| program_in(&std::env::join_paths(dirs).unwrap());
    assert_eq!(search(&[Path::new("/nowhere"), dir.path()]), Some(path));
    let up = "../".repeat(std::env::current_dir().unwrap().components().count());
    let relative = Path::new(&up).join(dir.path().strip_prefix("/").unwrap());
    assert!(relative.join("py-spy").is_file());
    assert_eq!(search(&[&relative, Path::new("")]), None);
}

/// Passes a time limit that no test reaches.
fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

#[test]
fn a_py_spy_that_fails_or_hangs_is_an_error_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let denied = script(dir.path(), "#!/bin/sh\necho 'Permission Denied: Try again with sudo' >&2\nexit 1\n");
    let because = |text: &str| Err(Missing::Because(text.to_owned()));
    assert_eq!(py_spy(&denied, 1, soon()), because("Permission Denied: Try again with sudo"));
    let hangs = script(dir.path(), "#!/bin/sh\nexec sleep 60\n");
    assert_eq!(py_spy(&hangs, 1, Instant::now() + Duration::from_millis(50)), Err(Missing::TooLate));
    let endless = script(dir.path(), "#!/bin/sh\nexec cat /dev/zero\n");
    assert_eq!(py_spy(&endless, 1, soon()), because(&format!("its output exceeds {OUTPUT_BYTES_MAX} bytes")));
    // The script ends its output, but a process of its own keeps the error pipe open.
    let left = script(dir.path(), "#!/bin/sh\nsleep 60 >/dev/null &\necho no\n");
    assert_eq!(py_spy(&left, 1, Instant::now() + Duration::from_millis(500)), Err(Missing::TooLate));
}

#[tokio::test]
async fn a_hanging_py_spy_delays_no_answer_and_the_kernel_answers() {
    let dir = tempfile::tempdir().unwrap();
    // Neither the script nor the process that it starts ends.
    let program = Some(script(dir.path(), "#!/bin/sh\nsleep 60\nsleep 60\n"));
    let mut readers = StackReaders { program, ..StackReaders::default() };
    let roles = [0, 1, 2, 3].map(|rank| Role::Rank(Rank(rank)));
    let about = roles.iter().cloned().map(Domain::Process).collect();
    let ask = Probe::new("hang", STACKS, about, Duration::from_millis(400)).with_tag(1);
    let own = i32::try_from(std::process::id()).ok();
    let began = Instant::now();
    for role in &roles {
        let answer = readers.answer(&ask, role, |_| own).await;
        let ProbeResult::Text(text) = answer else { panic!("{answer:?}") };
        assert!(text.starts_with("main thread in state "), "{text}");
        assert!(text.ends_with("; py-spy cannot read it (it took longer than 300 ms)"), "{text}");
    }
    // All four together, not one after another: far less than the minute that one takes.
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(300) && took < Duration::from_secs(10), "{took:?}");
}
