//! The helper with PyTorch: whose steps are seen, and that the workers of a data loader leave the rank alone.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod support;

use std::fs;
use std::path::PathBuf;

use serde_json::Value;
use taskd_core::testing::python::{Lifeline, Rank, STEP, STEP_TIME, system, text, version};
use taskd_pytorch::PYTHON_FILES;

/// Looks at the page from inside: `held()` is true while the lock is there and its owner lives.
const LOOK: &str = r"
import os, struct, sys, time
def words(form, at):
    with open(os.environ['PAGE'], 'rb') as page:
        page.seek(at)
        return struct.unpack(form, page.read(struct.calcsize(form)))[0]
def state(): return words('=I', 20)
def beat(): return words('=Q', 64)
def held(): return state() == 1 and not words('=I', words('=I', 72)) & 0x40000000
def beats():
    before, deadline = beat(), time.monotonic() + 20
    while beat() == before and time.monotonic() < deadline: time.sleep(0.005)
    return beat() != before
";

/// A torch.optim.optimizer with nothing but the hook, in the package layout of the real one.
fn fake_torch(rank: &Rank) {
    rank.file("torch/__init__.py", "");
    rank.file("torch/optim/__init__.py", "from . import optimizer");
    rank.file(
        "torch/optim/optimizer.py",
        "
hooks = []
def register_optimizer_step_post_hook(hook): hooks.append(hook)
class Optimizer: pass
one, other = Optimizer(), Optimizer()
def step(optimizer=one):
    for hook in hooks: hook(optimizer, (), {})
",
    );
}

#[test]
fn steps_of_an_optimizer_are_seen_without_torch() {
    let program = "
import os, sys
sys.path.insert(0, os.path.dirname(os.environ['PAGE']))
from torch.optim import optimizer
for n in range(3):
    optimizer.step(optimizer.one)
    optimizer.step(optimizer.other)
if os.fork() == 0:
    optimizer.step()
    os._exit(0)
os.wait()";
    // The helper has to work on Pythons for which there is no package `taskd`, nor a torch of today.
    for python in [6, 7].into_iter().filter_map(version).chain([PathBuf::from(system())]) {
        let rank = Rank::new(PYTHON_FILES);
        fake_torch(&rank);
        let mut command = rank.command(&[python.to_str().unwrap(), "-c", program]);
        let out = command.env("PYTHONWARNINGS", "ignore::DeprecationWarning").output().unwrap(); // of the fork, since 3.12
        assert_eq!((out.status.code(), text(&out.stderr)), (Some(0), String::new()), "{}", python.display());
        assert_eq!(rank.u64(STEP), 3, "two optimizers, one training step; a forked child's are its own");
    }
}

#[test]
fn the_workers_of_a_real_data_loader_come_and_go() {
    let Some(torch) = support::torch_python("the_workers_of_a_real_data_loader_come_and_go") else { return };
    let rank = Rank::new(PYTHON_FILES);
    let program = format!(
        "{LOOK}
import torch
from torch.utils.data import DataLoader, TensorDataset
if __name__ == '__main__':
    data = TensorDataset(torch.arange(64.0))
    for method in ('fork', 'fork', 'spawn'):
        seen = 0
        for (batch,) in DataLoader(data, batch_size=16, num_workers=2, multiprocessing_context=method):
            assert held(), method
            seen += len(batch)
        assert seen == 64 and held() and beats(), method
    os._exit(3)"
    );
    let program = rank.file("program.py", &program);
    let out = rank.command(&[torch.to_str().unwrap(), &program]).output().unwrap();
    assert_eq!(out.status.code(), Some(3), "{}", text(&out.stderr));
    assert_eq!(rank.lifeline(), Lifeline::Released);
}

#[test]
fn steps_of_real_optimizers_are_seen() {
    let Some(python) = support::torch_python("steps_of_real_optimizers_are_seen") else { return };
    let rank = Rank::new(PYTHON_FILES);
    let program = "
import torch
def train(steps, *optimizers):
    for step in range(steps):
        model(torch.ones(1, 4)).sum().backward()
        for optimizer in optimizers: optimizer.step()
model = torch.nn.Linear(4, 2)
before = torch.optim.AdamW([model.bias])
train(3, torch.optim.SGD([model.weight], lr=0.1), before)
print(int.from_bytes(open(__import__('os').environ['PAGE'], 'rb').read()[48:56], 'little'))
before.state_dict()['state'][0]['step'].fill_(40)
resumed = torch.optim.AdamW([model.bias])
resumed.load_state_dict(before.state_dict())
train(2, resumed)
raise ValueError('after two more')";
    let out = rank.command(&[python.to_str().unwrap(), "-c", program]).output().unwrap();
    assert_eq!(out.status.code(), Some(1), "{}", text(&out.stderr));
    assert_eq!(text(&out.stdout), "3\n", "two optimizers, three training steps");
    assert_eq!((rank.u64(STEP), rank.lifeline()), (42, Lifeline::Released), "{}", text(&out.stderr));
    assert!(rank.u64(STEP_TIME) > 0);
    let record: Value = serde_json::from_slice(&fs::read(rank.error_file()).unwrap()).unwrap();
    assert_eq!(record["message"]["extraInfo"]["taskd_step"], "42");
}

/// Python gives the address, and so the `id`, of an object that is gone to a later one.
#[test]
fn an_optimizer_in_the_place_of_another_is_a_new_one() {
    let Some(python) = support::torch_python("an_optimizer_in_the_place_of_another_is_a_new_one") else { return };
    let rank = Rank::new(PYTHON_FILES);
    let program = "
import gc, torch
model = torch.nn.Linear(4, 2)
def train(optimizer):
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
gone = [torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(100)]
for optimizer in gone: train(optimizer)
places = set(map(id, gone))
del gone, optimizer
gc.collect()
others = [torch.optim.AdamW(model.parameters()) for _ in range(1000)]
resumed = next(other for other in others if id(other) in places)
for parameter in model.parameters(): resumed.state[parameter] = {'step': torch.tensor(40.0),
    'exp_avg': torch.zeros_like(parameter), 'exp_avg_sq': torch.zeros_like(parameter)}
train(resumed)";
    let out = rank.command(&[python.to_str().unwrap(), "-c", program]).output().unwrap();
    assert_eq!((out.status.code(), text(&out.stderr)), (Some(0), String::new()));
    assert_eq!(rank.u64(STEP), 41);
}

/// Hooks are imported in the middle of `import torch`, when half of it is not there yet.
#[test]
fn the_hooks_of_recovery_are_whole_when_torch_is_imported_as_programs_do() {
    let test = "the_hooks_of_recovery_are_whole_when_torch_is_imported_as_programs_do";
    let Some(python) = support::torch_python(test) else { return };
    for first in ["torch", "torch.distributed", "torch.utils.data"] {
        let rank = Rank::new(PYTHON_FILES);
        let program = format!(
            "import {first}, sys\nimport torch.distributed\nfrom taskd import _session\n\
             print('taskd.torch.engine' in sys.modules, _session.current.engine is not None)"
        );
        let mut command = rank.command(&[python.to_str().unwrap(), "-W", "ignore", "-c", &program]);
        command.env("TASKD_CONTROL", "/nonexistent").env("RANK", "0").env("WORLD_SIZE", "1");
        let out = command.output().unwrap();
        let stderr = text(&out.stderr);
        assert!(!stderr.contains("cannot be recovered in place"), "import {first}: {stderr}");
        assert_eq!(text(&out.stdout).trim(), "True True", "import {first}: {stderr}");
    }
}
