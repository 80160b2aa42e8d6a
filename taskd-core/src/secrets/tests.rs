use super::*;
use crate::job::{Exit, Name, ProcId, Rank, Role, Termination};
use crate::kernel::Input;
use crate::launch::{Change, Phase, Place, ProcStatus};

/// The arguments with what is found in them in brackets.
fn in_arguments(arguments: &[&str], names: &SecretNames) -> Vec<String> {
    arguments.iter().zip(text::in_arguments(arguments, names)).map(|(text, found)| bracketed(text, &found)).collect()
}

fn bracketed(text: &str, found: &[Found]) -> String {
    let mut shown = text.to_owned();
    for Found { range, .. } in found.iter().rev() {
        shown.replace_range(range.clone(), &format!("[{}]", &text[range.clone()]));
    }
    shown
}

fn in_variable(name: &str, value: &str) -> String {
    bracketed(value, &text::in_variable(name, value, &SecretNames::default()))
}

#[test]
fn names_of_secrets_are_known_by_their_parts_whatever_their_case() {
    let names = SecretNames::default();
    let secret = "HF_TOKEN GITHUBTOKEN hf_token authToken X-Auth-Token PGPASSWORD MYSQL_PWD DB_PASS SMTP_PASSWD SSH_PASSPHRASE \
                  CLIENT_SECRET clientSecret AWS_SECRET_ACCESS_KEY AWS_ACCESS_KEY_ID WANDB_API_KEY OPENAI_APIKEY apiKey \
                  SIGNING_KEY TLS_PRIVATE_KEY_PEM GOOGLE_APPLICATION_CREDENTIALS SESSION_ID HTTP_COOKIE BASIC_AUTH KEY \
                  AZURE_STORAGE_CONNECTION_STRING NPM_CONFIG__AUTHTOKEN --token -password --api-key --hub.token JWT";
    let plain = "PATH PWD OLDPWD HOME TOKENIZERS_PARALLELISM MAX_TOKENS KEYBOARD MONKEY AUTHOR KEY_FILE --tokenizer --lr \
                 OMP_NUM_THREADS PASSES BYPASS COMPASS SESSIONLESS MASTER_ADDR";
    let wrong: Vec<&str> = secret.split_whitespace().filter(|name| !names.cover(name)).collect();
    assert_eq!(wrong, [] as [&str; 0], "these are secrets");
    let wrong: Vec<&str> = plain.split_whitespace().filter(|name| names.cover(name)).collect();
    assert_eq!(wrong, [] as [&str; 0], "these are none");
}

#[test]
fn a_job_adds_names_and_exempts_names() {
    let names = SecretNames::default().with("acme_licence").without("SORT_KEY").with("both").without("BOTH");
    assert!(names.cover("ACME_LICENCE") && names.cover("--acme-licence") && names.cover("HF_TOKEN"));
    assert!(!names.cover("sort_key") && !names.cover("--sort-key") && !names.cover("both"));
    let exempt = text::in_variable("SORT_KEY", "https://a:b@c", &names);
    assert_eq!(exempt, [], "nothing is looked for in what is exempt");
}

#[test]
fn the_user_part_of_a_url_is_found_whatever_the_variable_is_called() {
    assert_eq!(
        in_variable("INDEX", "https://me:pw@pypi.example:8080/simple"),
        "https://[me:pw]@pypi.example:8080/simple"
    );
    assert_eq!(in_variable("A", "https://k@h https://x:y@i/?a=b@c"), "https://[k]@h https://[x:y]@i/?a=b@c");
    assert_eq!(in_variable("A", "redis://:pw@h/0"), "redis://[:pw]@h/0");
    assert_eq!(in_variable("A", "postgres://u:p@ss@h"), "postgres://[u:p@ss]@h");
    for plain in ["https://pypi.example/@scope", "tcp://10.0.0.1:29500", "://", "https://", "a@b", "https://$T@h"] {
        assert_eq!(in_variable("A", plain), plain);
    }
}

#[test]
fn secrets_in_arguments_are_found_in_each_of_their_forms() {
    let none = SecretNames::default();
    assert_eq!(
        in_arguments(
            &["train", "--token=a=b c", "--password", "x y", "--auth", "--lr", "1", "+wandb.api_key=k"],
            &none
        ),
        ["train", "--token=[a=b c]", "--password", "[x y]", "--auth", "--lr", "1", "+wandb.api_key=[k]"]
    );
    assert_eq!(in_arguments(&["--password=$ecret"], &none), ["--password=[$ecret]"], "no shell reads an argument");
    assert_eq!(in_arguments(&["--token"], &none), ["--token"]);
    assert_eq!(in_arguments(&["--token", ""], &none), ["--token", ""]);
    assert_eq!(in_arguments(&["-H", "Authorization: Bearer a.b"], &none), ["-H", "Authorization: [Bearer a.b]"]);
    let script = "export A=1 HF_TOKEN=abc; curl -H 'X-Api-Key: k y' \"https://u:p@h/?token=t&x=1\" --password p|cat";
    let found =
        "export A=1 HF_TOKEN=[abc]; curl -H 'X-Api-Key: [k y]' \"https://[u:p]@h/?token=[t&x=1]\" --password [p]|cat";
    assert_eq!(in_arguments(&["sh", "-c", script], &none)[2], found);
    let looked_up =
        "run --token $HF_TOKEN --password \"$PW\" API_KEY=${K} KEY=${K:-x} TOKEN=$(cat t) [ $key == x ] TOKEN= x";
    assert_eq!(in_arguments(&[looked_up], &none), [looked_up], "names without values");
    assert_eq!(in_variable("CONFIG", r#"{"api_key": "a\"b", "lr": 1}"#), r#"{"api_key": "[a\"b]", "lr": 1}"#);
    assert_eq!(in_variable("CONFIG", "user: me\npassword: pw x\nlr: 1"), "user: me\npassword: [pw x]\nlr: 1");
    assert_eq!(in_variable("CONFIG", "token = 'ab c'\nlr = 1"), "token = '[ab c]'\nlr = 1");
}

#[test]
fn spellings_that_are_rarer_are_found_too() {
    let none = SecretNames::default();
    for (text, found) in [
        // What people have in passwords, though it should be escaped in a URL.
        ("https://u:p#w?d'x@h/a", "https://[u:p#w?d'x]@h/a"),
        ("https://$ecret:$pw@h", "$"),
        ("https://u:$ecret!@h", "https://[u:$ecret!]@h"),
        ("https://h?to=a@b", "https://h?to=a@b"),
        ("https://$USER:${PW}@h", "https://$USER:${PW}@h"),
        ("https://o'brien:pw@h", "https://[o'brien:pw]@h"),
        (r#"{"url": "https:\/\/me:pw@h"}"#, r#"{"url": "https:\/\/[me:pw]@h"}"#),
        // Of other languages.
        ("Server=a;Pwd=x;Uid=b", "Server=a;Pwd=[x];Uid=b"),
        ("Password=a&b", "Password=[a&b]"),
        ("x=1;token=f\"a b\"", "x=1;token=f\"[a b]\""),
        ("x=1;password = [\"a\"]", "x=1;password = [[\"a\"]]"),
        ("x=1\npassword = \"\"\"a\"b\"\"\"", "x=1\npassword = \"\"\"[a\"b]\"\"\""),
        ("lr: 1\npassword: a,b", "lr: 1\npassword: [a,b]"),
        ("a=1; PASSWORD+=x", "a=1; PASSWORD+=[x]"),
        ("os.environ[\"HF_TOKEN\"] = \"x\"", "os.environ[\"HF_TOKEN\"] = \"[x]\""),
        ("run --password \\\n x", "run --password \\\n [x]"),
        (r#"{"password": "$ecr3t"}"#, r#"{"password": "[$ecr3t]"}"#),
        // JSON within a string of JSON.
        (r#"{"env": "{\"api_key\": \"a b\", \"lr\": 1}"}"#, r#"{"env": "{\"api_key\": \"[a b]\", \"lr\": 1}"}"#),
        // Lists and objects.
        (r#"{"api_keys": ["a", "b"], "lr": 1}"#, r#"{"api_keys": [["a", "b"]], "lr": 1}"#),
        (
            r#"{"credentials": {"user": "u", "pin": [1]}, "lr": 1}"#,
            r#"{"credentials": [{"user": "u", "pin": [1]}], "lr": 1}"#,
        ),
        // Blocks of YAML.
        ("password: |\n  a\n\n  b\nlr: 1", "password: |\n[  a\n\n  b\n]lr: 1"),
        ("x:\n  api_keys:\n  - a\n  - b\n  lr: 1", "x:\n  api_keys:\n[  - a\n  - b\n]  lr: 1"),
        ("secrets:\n  a: b\nlr: 1", "secrets:\n[  a: b\n]lr: 1"),
        // A private key, whatever it is called.
        (
            "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\n",
            "-----BEGIN RSA PRIVATE KEY-----[\nMIIE\n]-----END RSA PRIVATE KEY-----\n",
        ),
        (
            "-----BEGIN CERTIFICATE-----\nMIIE\n-----END CERTIFICATE-----",
            "-----BEGIN CERTIFICATE-----\nMIIE\n-----END CERTIFICATE-----",
        ),
    ] {
        let found = if found == "$" { text } else { found };
        assert_eq!(in_variable("A", text), found);
    }
    assert_eq!(
        in_arguments(&["--token", "-abc", "--auth", "--lr", "1"], &none),
        ["--token", "[-abc]", "--auth", "--lr", "1"]
    );
    assert_eq!(in_arguments(&["--auth", "-password", "x"], &none), ["--auth", "-password", "[x]"]);
    for open in [
        "key: [",
        "key: {{]",
        "key:\n",
        "key: |",
        "-----BEGIN PRIVATE KEY-----",
        "key=\\\"",
        "key: \\",
        "key: ]",
        "key:\n ",
    ] {
        let _ = in_variable("A", open); // what is cut off anywhere is no defect
    }
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
        assert_eq!(*secrets.put_back(&batch).expect("all are there").orders[0].spec, *spec.worker, "{text:?}");
    }
}

fn batch_of(spec: &Arc<WorkerSpec>) -> StartBatch {
    let world = Arc::new(JobSpec::new("j", 2, WorkerSpec::new(["x"])).first_world());
    let order = |rank| StartOrder { proc: ProcId::rank(rank, 1), place: Place::anywhere(), spec: Arc::clone(spec) };
    StartBatch { world, orders: vec![order(0), order(1)] }
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
fn what_is_taken_out_is_in_no_form_of_the_job_and_is_put_back_as_it_was() {
    let spec = job();
    let (sealed, secrets) = Secrets::take(&spec);
    let forms = [format!("{sealed:?}"), sealed.to_json().expect("text"), format!("{spec:?}"), format!("{secrets:?}")];
    for value in VALUES {
        assert!(forms.iter().all(|form| !form.contains(value)), "{value} in {forms:#?}");
    }
    let store = Name::new("store");
    for (sealed, spec) in [(&sealed.worker, &spec.worker), (&sealed.services[&store], &spec.services[&store])] {
        let whole = secrets.put_back(&batch_of(sealed)).expect("all are there");
        assert_eq!(whole.orders[0].spec, *spec);
        assert!(Arc::ptr_eq(&whole.orders[0].spec, &whole.orders[1].spec), "ranks share it as before");
    }
    let again = Secrets::take(&sealed).0;
    assert_eq!(again.problems(), spec.problems());
}

#[test]
fn a_job_without_secrets_stays_the_job_that_it_was() {
    let spec = JobSpec::new("j", 1, WorkerSpec::new(["train", "--lr=1"]).with_env("A", "1"));
    let (sealed, secrets) = Secrets::take(&spec);
    assert!(Arc::ptr_eq(&sealed.worker, &spec.worker));
    assert!(Arc::ptr_eq(&secrets.put_back(&batch_of(&spec.worker)).expect("none").orders[0].spec, &spec.worker));
}

#[test]
fn orders_of_an_earlier_supervisor_get_the_values_of_this_ones_job() {
    let sealed = Secrets::take(&job()).0;
    let mut now = job();
    Arc::make_mut(&mut now.worker).env.insert("TOKEN".into(), "renewed".into());
    now.secrets = SecretNames::default().without("token"); // what was hidden is not any more
    now.worker = Arc::new(WorkerSpec { argv: job().worker.argv.clone(), ..WorkerSpec::clone(&now.worker) });
    let mut sealed = WorkerSpec::clone(&sealed.worker);
    sealed.argv.truncate(1);
    let whole = Secrets::take(&now).1.put_back(&batch_of(&Arc::new(sealed))).expect("all are there");
    assert_eq!(whole.orders[0].spec.env, now.worker.env);
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
    assert_eq!(secrets.put_back(&batch_of(&sealed.worker)).expect("all are there").orders[0].spec, spec.worker);
}

#[test]
fn secrets_that_a_program_has_printed_do_not_travel_with_its_exit() {
    let secrets = Secrets::take(&job()).1;
    let mut exit = Exit::new(Termination::Code(1));
    exit.stderr_tail = "login with worker-variable failed".into();
    let status = ProcStatus {
        proc: ProcId { role: Role::Rank(Rank(0)), incarnation: crate::job::Incarnation(1) },
        node: None,
        instance: Name::new("i"),
        pid: None,
        phase: Phase::Exited(Box::new(exit)),
    };
    let mut input = Input::Changed(Change::Proc(status));
    secrets.mask(&mut input);
    let Input::Changed(Change::Proc(status)) = input else { panic!("another input") };
    let tail = &status.phase.exit().expect("an exit").stderr_tail;
    assert_eq!(tail, "login with <redacted:TOKEN> failed");
}

#[test]
fn people_are_shown_no_secret() {
    let names = SecretNames::default().with("licence");
    let shown = shown_arguments(&["a", "--token", "x", "--key=y", "--licence=z"], &names);
    assert_eq!(shown, ["a", "--token", "<redacted>", "--key=<redacted>", "--licence=<redacted>"]);
    assert_eq!(shown_variable("DB_PASSWORD", "x", &names), "<redacted>");
    assert_eq!(shown_variable("LICENCE", "x", &names), "<redacted>");
    assert_eq!(shown_variable("A", "http://u:p@h", &names), "http://<redacted>@h");
    assert_eq!(shown_variable("A", "<redacted:X>", &names), "<redacted:X>");
    let (sealed, secrets) = Secrets::take(&JobSpec::new("j", 1, WorkerSpec::new(["a"])).with_secrets(names.clone()));
    let whole = secrets.put_back(&batch_of(&sealed.worker)).expect("none");
    assert_eq!(whole.orders[0].spec.secrets, names, "a launcher knows them from the order");
}
