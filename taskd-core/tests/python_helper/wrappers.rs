//! The helper behind scripts that do not exec their program: which process is the rank, and which leaves the page
//! alone.

use super::sitecustomize::{LOOK, with_engine};
use std::fs;
use taskd_core::testing::python::{BEAT_TIME, Lifeline, Rank, STEP, text};

#[test]
fn the_program_of_a_wrapper_that_does_not_exec_it_is_the_rank() {
    let wrappers = [
        "$PYTHON $PROGRAM; exit $?",
        "$PYTHON -c pass; (cd /; $PYTHON $PROGRAM); exit $?",
        "setsid -w $PYTHON $PROGRAM; exit $?",
        "nohup $PYTHON $PROGRAM & wait $!; exit $?",
    ];
    for wrapper in wrappers {
        let rank = with_engine();
        let program = format!(
            "{LOOK}
sys.path.insert(0, os.path.dirname(os.environ['PAGE']))
assert state() == 0 and beat() == 0, 'it has nothing to do with training so far'
import engine.optim
assert words('=I', 16) == os.getpid() and state() == 0 and beats()
engine.optim.step(); engine.optim.step()
raise ValueError('of the program')"
        );
        let program = rank.file("program.py", &program);
        let out = rank.command(&["bash", "-c", wrapper]).env("PROGRAM", program).output().unwrap();
        assert_eq!(out.status.code(), Some(1), "{wrapper}: {}", text(&out.stderr));
        assert_eq!(rank.u64(STEP), 2, "{wrapper}: {}", text(&out.stderr));
        let record = text(&fs::read(rank.error_file()).unwrap());
        assert!(record.contains("of the program"), "{wrapper}");
        assert!(
            !record.contains("taskd_uncaught"),
            "{wrapper}: it may go on after its program (`program || true`): {record}"
        );
        assert_eq!(rank.lifeline(), Lifeline::Untaken, "{wrapper}: how it ended is known from the wrapper");
        assert!(!text(&out.stderr).contains("taskd:"), "{wrapper}: {}", text(&out.stderr));
    }
}

#[test]
fn children_of_a_wrapped_rank_are_not_the_rank() {
    let rank = with_engine();
    let program = format!(
        "{LOOK}
sys.path.insert(0, os.path.dirname(os.environ['PAGE']))
import multiprocessing, subprocess
def child():
    import engine.optim
    for _ in range(9): engine.optim.step()
if __name__ == '__main__':
    import engine.optim
    engine.optim.step()
    for method in ('fork', 'spawn', 'forkserver'):
        process = multiprocessing.get_context(method).Process(target=child)
        process.start()
        process.join()
        assert process.exitcode == 0
    subprocess.check_call([sys.executable, '-c', 'import taskd'])
    assert words('=I', 16) == os.getpid() and words('=Q', 48) == 1 and beats()
    os._exit(0)"
    );
    let program = rank.file("program.py", &program);
    let out = rank.command(&["bash", "-c", "$PYTHON $PROGRAM; exit $?"]).env("PROGRAM", program).output().unwrap();
    assert_eq!((out.status.code(), text(&out.stderr)), (Some(0), String::new()));
    assert_eq!(rank.u64(STEP), 1);
}

/// Imports the engine, runs `steps` steps, and then `then`.
fn with_steps(rank: &Rank, name: &str, steps: u32, then: &str) -> String {
    let program = format!(
        "{LOOK}
sys.path.insert(0, os.path.dirname(os.environ['PAGE']))
import engine.optim
for _ in range({steps}): engine.optim.step()
{then}"
    );
    rank.file(name, &program)
}

#[test]
fn second_program_of_a_wrapper_replaces_the_first_as_the_rank() {
    let rank = with_engine();
    let first = with_steps(&rank, "first.py", 7, "raise OSError('of the first')");
    let second = with_steps(&rank, "second.py", 2, "raise ValueError('of the second')");
    let out = rank.command(&["bash", "-c", &format!("$PYTHON {first}; $PYTHON {second}; exit $?")]).output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    assert_eq!(rank.u64(STEP), 2, "{}", text(&out.stderr));
    let record = text(&fs::read(rank.error_file()).unwrap());
    assert!(record.contains("of the second") && !record.contains("of the first"), "{record}");

    let rank = with_engine();
    let first = with_steps(&rank, "first.py", 7, "");
    let last = with_steps(&rank, "last.py", 2, "assert held() and beats() and words('=I', 16) == os.getpid()");
    let out = rank.command(&["bash", "-c", &format!("$PYTHON {first}; exec $PYTHON {last}")]).output().unwrap();
    assert_eq!((out.status.code(), text(&out.stderr)), (Some(0), String::new()), "its page is its own again");
    assert_eq!((rank.lifeline(), rank.u64(STEP)), (Lifeline::Released, 2));
}

#[test]
fn process_that_cannot_become_the_rank_logs_one_line() {
    let rank = with_engine();
    let waits = "open(os.environ['PAGE'] + '.runs', 'w').close()\nwhile not os.path.exists(os.environ['PAGE'] + '.done'): time.sleep(0.005)";
    let first = with_steps(&rank, "first.py", 1, waits);
    let second = with_steps(&rank, "second.py", 5, "import taskd");
    let wrapper = format!(
        "$PYTHON {first} & until [ -e $PAGE.runs ]; do sleep 0.01; done; $PYTHON {second}; touch $PAGE.done; wait $!"
    );
    let out = rank.command(&["bash", "-c", &wrapper]).env("TASKD_PROC", "rank-3.1").output().unwrap();
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    let stderr = text(&out.stderr);
    assert!(stderr.starts_with("taskd: process ") && stderr.contains("is not seen as rank-3.1 (process "), "{stderr}");
    assert_eq!((stderr.lines().count(), rank.u64(STEP)), (1, 1), "{stderr}");

    let rank = with_engine();
    let program = with_steps(&rank, "program.py", 5, "");
    let out =
        rank.command(&["bash", "-c", &format!("TASKD_LIFELINE=/nonexistent $PYTHON {program}; exit $?")]).output();
    let out = out.unwrap();
    let stderr = text(&out.stderr);
    assert!(out.status.success() && stderr.contains("No such file") && stderr.lines().count() == 1, "{stderr}");
}

#[test]
fn wrapped_python_without_training_leaves_the_page_unchanged() {
    let rank = Rank::new(&[]);
    let program = rank.file("program.py", "raise ValueError('of the child')");
    let out = rank.command(&["bash", "-c", &format!("$PYTHON {program}; exit $?")]).output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    assert_eq!(rank.lifeline(), Lifeline::Untaken);
    assert_eq!(rank.u64(BEAT_TIME), 0);
    assert!(!rank.error_file().exists(), "only the rank itself writes its error file");
}
