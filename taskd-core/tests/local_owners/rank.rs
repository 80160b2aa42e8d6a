//! The rank of the lifeline tests: takes its lifeline, reports that, and does one thing.

#![allow(unsafe_code, reason = "ends in ways that no safe function offers")]

use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::Duration;
use taskd_core::worker::Lifeline;

/// Is the rank.
pub(crate) fn run(act: &str, argument: &str) -> ExitCode {
    let lifeline = Lifeline::take_from_env();
    println!("{}", if lifeline.is_some() { "held" } else { "none" });
    match (act, lifeline) {
        ("hold", _) => wait(),
        ("fill", _) => {
            let memory = vec![1u8; argument.parse::<usize>().unwrap() << 20];
            println!("full {}", memory.iter().step_by(4096).map(|byte| u64::from(*byte)).sum::<u64>());
            wait()
        }
        ("step", Some(lifeline)) => {
            (1..=argument.parse().unwrap()).for_each(|step| lifeline.step(step));
            println!("stepped");
            wait()
        }
        ("exec", _) => panic!("{}", Command::new("sleep").arg("1000").exec()),
        ("exec-from-thread", _) => {
            let exec = || panic!("{}", Command::new("sleep").arg("1000").exec());
            std::thread::spawn(exec).join().map_or(ExitCode::FAILURE, |never| never)
        }
        ("exit", _) => std::process::exit(argument.parse().unwrap()),
        // SAFETY: ends the process, and skips what would be run at its end.
        ("_exit", _) => unsafe { libc::_exit(argument.parse().unwrap()) },
        ("abort", _) => std::process::abort(),
        ("leave-main", _) => {
            let code = argument.parse().unwrap();
            std::thread::spawn(move || {
                until_given_up();
                std::process::exit(code)
            });
            // SAFETY: ends the main thread only. It never returns, and no code uses what is on its stack.
            unsafe { libc::syscall(libc::SYS_exit, 0) };
            unreachable!()
        }
        ("with-helpers", _) => {
            for _ in 0..3 {
                let helper =
                    Command::new(std::env::current_exe().unwrap()).args(["rank", "exit", "1"]).output().unwrap();
                assert_eq!(helper.stdout, b"none\n");
            }
            println!("helped");
            wait()
        }
        other => panic!("{other:?}"),
    }
}

/// A process whose first thread has ended while another one runs.
pub(crate) fn headless(file: &str) -> ExitCode {
    std::thread::spawn(|| {
        loop {
            std::thread::park();
        }
    });
    std::fs::write(file, std::process::id().to_string()).unwrap();
    // SAFETY: ends the main thread only. It never returns, and no code uses what is on its stack.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
    unreachable!()
}

/// Waits until the guard has given the lifeline up.
fn until_given_up() {
    let page = std::fs::File::open(std::env::var("TASKD_LIFELINE").unwrap()).unwrap();
    let mut state = [0; 4];
    while u32::from_ne_bytes(state) != 2 {
        std::thread::park_timeout(Duration::from_millis(2));
        page.read_exact_at(&mut state, 20).unwrap();
    }
}

fn wait() -> ! {
    loop {
        std::thread::park();
    }
}
