//! A standby gives way to the ranks while it is made. Once it is a rank it has a rank's priority, and records what a
//! rank does.

use std::fs::{File, read_to_string};

use rustix::process::setpriority_process;
use taskd_core::trace::recorder::RecorderReader;

use crate::ahead::{asks, have_parked, joining, kill};
use crate::job::{Job, template};

/// Notes its nice value, and records, before and after it has asked for its rank.
const NOTES: &str = "
import taskd
def note(when):
    taskd.mark(when)
    with open('%s-%d' % (when, os.getpid()), 'w') as file: file.write(str(os.nice(0)))
note('before')
rank = os.environ['RANK']
note('after')
";

/// What a template does when it has imported all, which no rank does.
const WARM: &str = "import os\nwith open('template', 'w') as file: file.write(str(os.nice(0)))";

#[tokio::test]
async fn a_standby_gives_way_to_ranks_until_it_is_one_and_records_from_then_on() {
    let job = Job::new(template().ahead(1)).await;
    let spec = job.program(&asks(NOTES)).with_env("WARM", WARM);
    let first = job.start(1, [spec.clone(), spec.clone()]).await;
    have_parked(&job, 1).await;
    kill(&job, &first[1..]).await;
    job.start_only(2, 1, joining(&spec)).await;
    let (new, old) = (job.report("report-rank-1.2").await, job.report("report-rank-0.1").await);
    assert_eq!(job.counters().await.standbys_seated, 1);

    let nice = |name: &str| read_to_string(job.path(name)).unwrap().parse::<i32>().unwrap();
    let of = |when: &str, report: &serde_json::Value| nice(&format!("{when}-{}", report["pid"]));
    let usual = of("before", &old);
    assert_eq!((of("after", &old), of("after", &new)), (usual, usual), "a rank is a rank");
    for (what, made_at) in [("the template", nice("template")), ("the standby", of("before", &new))] {
        assert_eq!(made_at > usual, can_be_taken_back(usual), "{what} was made at {made_at}, and ranks run at {usual}");
    }

    assert_eq!(marks(&old), ["before", "after"]);
    assert_eq!(marks(&new), ["after"]);
    job.end().await;
}

/// Whether a user that may slow a process down may also undo that: otherwise no process is slowed down.
fn can_be_taken_back(usual: i32) -> bool {
    let of_this_thread = move || {
        setpriority_process(None, usual + 1)?;
        setpriority_process(None, usual)
    };
    usual < 19 && std::thread::spawn(of_this_thread).join().unwrap().is_ok()
}

/// What a rank has recorded in the memory that the guard holds for it.
fn marks(report: &serde_json::Value) -> Vec<String> {
    let memory = report["env"]["TASKD_LIFELINE"].as_str().unwrap();
    let mut recording = RecorderReader::open(File::options().read(true).write(true).open(memory).unwrap()).unwrap();
    let mut names = Vec::new();
    recording.take(|one| names.push(one.record.name)).unwrap();
    names.into_iter().filter_map(|name| recording.name(name).map(str::to_owned)).collect()
}
