//! The guide's loop where there is no taskd: the line that it shows, and the file, as they stand there.

use std::fs;
use std::path::Path;
use std::process::Command;

use taskd_core::testing::python::{Rank, system, text};

const GUIDE: &str = include_str!("../../src/guide/recovering.md");
const PLAIN_STEPS: &str = include_str!("../../src/guide/plain_steps.py");

/// The lines that the guide has a script begin with.
fn fallback() -> &'static str {
    let blocks = GUIDE.split("```python\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.into_iter().find(|block| block.starts_with("try: import taskd")).expect("the guide shows it")
}

/// Uses all that a step has, over more than one epoch, and prints what it gets.
const TRAINING: &str = "
import sys
class Sampler:
    epoch = 4 # as a program sets it that goes on from a checkpoint
    def set_epoch(self, epoch): self.epoch = epoch
class Loader:
    def __init__(self): self.sampler = Sampler()
    def __iter__(self): return (100 * self.sampler.epoch + at for at in range(3))
first, second, once = Loader(), [7, 8], iter([1, 2, 3])
began = []
for step in taskd.steps({}, data=first, start=2, until=9, with_rank=lambda: began.append(1)):
    with step, taskd.range('augment'):
        print(step.number, step.committed, step.warming, step.next(), list(step.batches(second, 3)), step.epoch(), step.epoch(second))
        print(step.completed)
    print(step.completed)
    taskd.counter('loss', 0.5); taskd.mark('logged'); taskd.range_end(taskd.range_start('dataloader'))
print(began)
for step in taskd.steps(data=once):
    try: print(step.next())
    except StopIteration: break
for step in taskd.steps(data=[], until=1):
    try: step.next()
    except ValueError as error: print(error)
for step in taskd.steps(until=5):
    with step:
        try: raise KeyError('of the program')
        except KeyError as error: print(error)
    if step.number == 3: break
print(step.number, issubclass(taskd.StepAborted, BaseException))
";

/// What the script prints under plain `python`.
fn plainly(script: &Path) -> String {
    let out = Command::new(system()).arg(script).env_remove("PYTHONPATH").output().unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
    text(&out.stdout)
}

#[test]
fn the_guide_script_runs_the_same_loop_with_and_without_taskd() {
    let rank = Rank::new(&[]);
    let script = rank.file("train.py", &format!("{}{TRAINING}print(taskd.__name__)\n", fallback()));
    let out = rank.command(&[system(), &script]).output().unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
    let in_rank = text(&out.stdout);
    assert!(
        in_rank.starts_with("2 None False 400 ") && in_rank.contains(" 500 ") && in_rank.ends_with("\ntaskd\n"),
        "{in_rank}"
    );

    let elsewhere = tempfile::tempdir().unwrap();
    let script = elsewhere.path().join("train.py");
    fs::write(&script, format!("{}{TRAINING}print(taskd.__name__)\n", fallback())).unwrap();
    fs::write(elsewhere.path().join("plain_steps.py"), PLAIN_STEPS).unwrap();
    let expected = in_rank.replace("\ntaskd\n", "\nplain_steps\n");
    assert_eq!(plainly(&script), expected);

    fs::write(elsewhere.path().join("taskd.py"), "class Task: 'of the other project of that name'\n").unwrap();
    assert_eq!(plainly(&script), expected, "the package index's");
}

#[test]
fn the_plain_loop_has_all_that_the_package_has() {
    let rank = Rank::new(&[]);
    rank.file("plain_steps.py", PLAIN_STEPS);
    let program = "
import inspect, os, sys
sys.path.insert(0, os.path.dirname(os.environ['PAGE']))
import taskd, plain_steps
from taskd import _batches, _loop
print([name for name in taskd.__all__ if not hasattr(plain_steps, name)])
public = [name for name in dir(_loop.Step) if not name.startswith('_')]
step = next(plain_steps.steps())
print([name for name in public if not hasattr(step, name)])
def arguments(function):
    return [(one.name, one.kind, one.default) for one in inspect.signature(function).parameters.values()]
for name in ('steps', 'load_checkpoint'):
    print(arguments(getattr(plain_steps, name)) == arguments(getattr(taskd, name)))
print(plain_steps.load_checkpoint({}))
for name in ('epoch_targets', 'inside', 'attribute', 'may_be_gone_through', 'epoch_of'):
    if inspect.getsource(getattr(plain_steps, name)) != inspect.getsource(getattr(_batches, name)):
        print(name, 'differs')";
    let out = rank.run(program);
    assert_eq!(text(&out.stdout), "[]\n[]\nTrue\nTrue\nNone\n", "{}", text(&out.stderr));
}
