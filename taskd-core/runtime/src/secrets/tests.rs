use super::*;
use crate::job::{Exit, Name, ProcId, Rank, Role, Termination};
use crate::kernel::Input;
use crate::state::{Change, Phase, Place, ProcStatus};

fn batch_of(spec: &Arc<WorkerSpec>) -> StartBatch {
    let world = Arc::new(JobSpec::new("j", 2, WorkerSpec::new(["x"])).first_world());
    let order = |rank| StartOrder::new(ProcId::rank(rank, 1), Place::anywhere(), Arc::clone(spec));
    StartBatch::new(world, vec![order(0), order(1)])
}

/// A job with secrets of all kinds, in its program and in a service.
fn job() -> JobSpec {
    let worker = WorkerSpec::new(["train", "--token", "worker-argument", "--token=second-argument"])
        .with_env("TOKEN", "worker-variable")
        .with_env("URLS", "https://one:first-user@h https://two:second-user@h");
    JobSpec::new("j", 2, worker).with_service("store", WorkerSpec::new(["store"]).with_env("TOKEN", "service-variable"))
}

const VALUES: [&str; 6] =
    ["worker-argument", "second-argument", "worker-variable", "first-user", "second-user", "service-variable"];

#[test]
fn secrets_are_absent_from_every_form_and_restored_unchanged() {
    let spec = job();
    let (sealed, secrets) = Secrets::take(&spec);
    let forms = [format!("{sealed:?}"), sealed.to_json().expect("text"), format!("{spec:?}"), format!("{secrets:?}")];
    for value in VALUES {
        assert!(forms.iter().all(|form| !form.contains(value)), "{value} in {forms:#?}");
    }
    let store = Name::new("store");
    for (sealed, spec) in [(&sealed.worker, &spec.worker), (&sealed.services[&store], &spec.services[&store])] {
        let whole = secrets.put_back(&batch_of(sealed)).expect("all are there");
        assert_eq!(whole.starts[0].spec, *spec);
        assert!(Arc::ptr_eq(&whole.starts[0].spec, &whole.starts[1].spec), "ranks share it as before");
    }
    let again = Secrets::take(&sealed).0;
    assert_eq!(again.problems(), spec.problems());
}

#[test]
fn a_job_without_secrets_stays_the_job_that_it_was() {
    let spec = JobSpec::new("j", 1, WorkerSpec::new(["train", "--lr=1"]).with_env("A", "1"));
    let (sealed, secrets) = Secrets::take(&spec);
    assert!(Arc::ptr_eq(&sealed.worker, &spec.worker));
    assert!(Arc::ptr_eq(&secrets.put_back(&batch_of(&spec.worker)).expect("none").starts[0].spec, &spec.worker));
}

#[test]
fn orders_of_an_earlier_supervisor_get_the_values_of_this_ones_job() {
    let sealed = Secrets::take(&job()).0;
    let mut now = job();
    Arc::make_mut(&mut now.worker).env.insert("TOKEN".into(), "renewed".into());
    now.secrets = SecretNames::default().without("token"); // `token` is no longer a secret
    Arc::make_mut(&mut now.worker).argv = job().worker.argv.clone();
    let mut sealed = WorkerSpec::clone(&sealed.worker);
    sealed.argv.truncate(1);
    let whole = Secrets::take(&now).1.put_back(&batch_of(&Arc::new(sealed))).expect("all are there");
    assert_eq!(whole.starts[0].spec.env, now.worker.env);
}

#[test]
fn an_order_whose_values_are_not_there_is_refused_by_their_names() {
    let sealed = Secrets::take(&job()).0;
    let bare = Secrets::take(&JobSpec::new("j", 2, WorkerSpec::new(["train"]).with_env("TOKEN", "x"))).1;
    let refusal = bare.put_back(&batch_of(&sealed.worker)).expect_err("no values").to_string();
    assert_eq!(
        refusal,
        "the log does not keep secrets, and this supervisor's job has no value for --token, --token#2, URLS@h, URLS@h#2: give it \
         the variables and arguments that the job had before"
    );
}

#[test]
fn a_value_that_looks_like_a_mark_is_no_mark() {
    let worker =
        WorkerSpec::new(["train", "<redacted:TOKEN>"]).with_env("TOKEN", "secret").with_env("A", "x<redacted:TOKEN>");
    let spec = JobSpec::new("j", 2, worker);
    let (sealed, secrets) = Secrets::take(&spec);
    assert_eq!(secrets.put_back(&batch_of(&sealed.worker)).expect("all are there").starts[0].spec, spec.worker);
}

#[test]
fn secrets_that_a_program_has_printed_do_not_travel_with_its_exit() {
    let secrets = Secrets::take(&job()).1;
    let mut exit = Exit::new(Termination::Code(1));
    exit.stderr_tail = "login with worker-variable failed".into();
    let status = ProcStatus::new(
        ProcId { role: Role::Rank(Rank(0)), incarnation: crate::job::Incarnation(1) },
        "i",
        Phase::Exited(Box::new(exit)),
    );
    let mut input = Input::Changed(Change::Proc(status));
    secrets.mask(&mut input);
    let Input::Changed(Change::Proc(status)) = input else { panic!("another input") };
    let tail = &status.phase.exit().expect("an exit").stderr_tail;
    assert_eq!(tail, "login with <redacted:TOKEN> failed");
}

#[test]
fn texts_of_all_kinds_are_cut_where_characters_end() {
    let texts = [
        "—token=—",
        "é://é@é",
        "token:é",
        "TOKEN='é",
        "--password é",
        "key=",
        "key=\"",
        "key:",
        "://@",
        "\u{0}key=\u{0}",
    ];
    for text in texts {
        let spec = JobSpec::new("j", 1, WorkerSpec::new(["sh", text, text]).with_env("A", text).with_env("KEY", text));
        let (sealed, secrets) = Secrets::take(&spec);
        let batch = batch_of(&sealed.worker);
        assert_eq!(*secrets.put_back(&batch).expect("all are there").starts[0].spec, *spec.worker, "{text:?}");
    }
}

#[test]
fn a_launcher_knows_the_names_of_secrets_from_the_order() {
    let names = SecretNames::default().with("licence");
    let (sealed, secrets) = Secrets::take(&JobSpec::new("j", 1, WorkerSpec::new(["a"])).with_secrets(names.clone()));
    let whole = secrets.put_back(&batch_of(&sealed.worker)).expect("none");
    assert_eq!(whole.starts[0].spec.secrets, names, "a launcher knows them from the order");
}
