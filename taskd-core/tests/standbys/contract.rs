//! The contract of a launcher, clause by clause, where what it starts is seated whenever it can be.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use taskd_core::job::WorkerSpec;
use taskd_core::launch::python::{PythonLauncher, Standbys};
use taskd_core::testing::conformance;
use taskd_core::testing::conformance::launcher::{Programs, Witnessed};
use taskd_core::testing::python::system;

use crate::job::{Plain, template};
use crate::support::{builder, is_alive};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn launcher_with_standbys_passes_the_conformance_suite() {
    for standbys in [template(), Standbys::pre_started(2).after(Duration::ZERO)] {
        let dir = tempfile::tempdir().unwrap();
        let attach = async |_owner| {
            let local = builder(&dir.path().join("run")).build().await.unwrap();
            PythonLauncher::<_, Plain>::new(local, dir.path().join("plain")).standbys(standbys.clone())
        };
        let acts = Arc::new(Acts { dir: tempfile::tempdir().unwrap(), next: AtomicU32::new(0) });
        std::fs::write(acts.dir.path().join("program.py"), PROGRAM).unwrap();
        conformance::launcher(attach, programs(&acts)).assert().await;
        println!("{} programs were seated", acts.seated());
        assert!(acts.seated() > 0, "no program was seated: this has shown nothing");
    }
}

/// What the suite's programs do, by their first argument. Each that was seated reports that.
const PROGRAM: &str = r"
import os, signal, subprocess, sys, time
def mark(path, pid):
    with open(path, 'a') as marks: marks.write('%d\n' % pid)
if 'calendar' in sys.modules: mark(sys.argv[1], os.getpid())
act = sys.argv[2]
if act == 'exits':
    time.sleep(float(sys.argv[3]))
    sys.exit(int(sys.argv[4]))
if act == 'stubborn': signal.signal(signal.SIGTERM, signal.SIG_IGN)
if act == 'tree':
    for alone in (False, True):
        mark(sys.argv[3], subprocess.Popen(['sleep', '600'], start_new_session=alone).pid)
if act in ('stubborn', 'counted', 'tree'): mark(sys.argv[3], os.getpid())
time.sleep(600)
";

struct Acts {
    dir: tempfile::TempDir,
    next: AtomicU32,
}

impl Acts {
    fn spec(&self, words: &[&str]) -> WorkerSpec {
        let path = |name: &str| self.dir.path().join(name).display().to_string();
        let argv = [system().to_owned(), path("program.py"), path("seated")];
        WorkerSpec::new(argv.into_iter().chain(words.iter().map(|word| (*word).to_owned())))
    }

    /// A program that marks its processes in a file of its own, and what `count` makes of them.
    fn witnessed(self: &Arc<Acts>, act: &str, count: fn(&[u32]) -> usize) -> Witnessed {
        let file = self.dir.path().join(self.next.fetch_add(1, Ordering::Relaxed).to_string());
        let spec = self.spec(&[act, file.to_str().unwrap()]);
        let keep = Arc::clone(self);
        Witnessed::new(spec, move || {
            let _ = &keep.dir;
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            count(&text.lines().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>())
        })
    }

    fn seated(&self) -> usize {
        std::fs::read_to_string(self.dir.path().join("seated")).unwrap_or_default().lines().count()
    }
}

fn programs(acts: &Arc<Acts>) -> Programs {
    let alive = |pids: &[u32]| pids.iter().filter(|pid| is_alive(**pid)).count();
    let [runs, exits, counted, stubborn, tree] = std::array::from_fn(|_| Arc::clone(acts));
    let ends =
        move |after: Duration, code: i32| exits.spec(&["exits", &after.as_secs_f64().to_string(), &code.to_string()]);
    Programs::new(move || runs.spec(&["runs"]), ends)
        .with_unstartable(WorkerSpec::new(["/nonexistent/command-of-this-test"]))
        .with_counted(move || counted.witnessed("counted", <[u32]>::len))
        .with_stubborn(move || stubborn.witnessed("stubborn", <[u32]>::len))
        .with_tree(move || tree.witnessed("tree", alive))
}
