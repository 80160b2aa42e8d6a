//! Every call, its answer, and what comes of it.

use crate::support::*;
use serde_json::json;
use std::time::Duration;
use taskd_core::detect::{Damage, FaultClass, Health};
use taskd_core::job::{Incarnation, ProcId, Rank};
use taskd_core::kernel::{Event, Outcome};
use taskd_core::runtime::control::{ControlSocket, SocketLimits};
use taskd_core::schema;
use taskd_core::trace::Origin;
use taskd_core::trace::recorder::{Kind, Recorder, RecorderConfig};
use taskd_core::trace::switches::{KINDS, Mode, Requested, Switch, SwitchHandle, TraceControl};
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

#[tokio::test]
async fn null_is_as_good_as_left_out() {
    let served = Served::new().await;
    let mut client = served.client().await;
    client.send(r#"{"v":2,"id":null,"by":null,"do":"status"}"#).await;
    let answer = client.line().await.expect("an answer");
    assert!(answer["ok"]["job"].is_object(), "{answer}");
}

#[tokio::test]
async fn a_reported_fault_is_judged_recovered_from_and_explained() {
    let served = Served::new().await;
    let mut client = served.client().await;
    assert_eq!(client.ask(json!({"id": 7, "do": "report_fault", "fault": fault()["fault"]})).await["id"], 7);
    served.all_run(2).await;
    let explained = client.ok(json!({"do": "explain", "incident": 1})).await;
    assert_eq!(explained["faults"][0]["by"], "dcgm");
    assert_eq!(explained["faults"][0]["suspects"][0]["domain"], json!({"device": ["n0", 3]}));
    assert_eq!(explained["report"]["evidence"], json!(["Xid 79: GPU has fallen off the bus"]));
    let status = client.ok(json!({"do": "status"})).await;
    assert_eq!((&status["job"]["restarts"], &status["socket"]["faults"]), (&json!(1), &json!(1)), "{status}");
    let out = &status["job"]["nodes"][0]["taken_out"];
    assert!(out.as_str().is_some_and(|why| why.contains("dcgm")), "its host is left: {status}");
}

#[tokio::test]
async fn faults_that_cannot_be_are_refused_with_what_is_wrong() {
    let served = Served::new().await;
    let mut client = served.client().await;
    let refusals = [
        (json!({"node": "n7"}), "refused", "node n7 is not a host of this job; its hosts are n0, n1"),
        (json!({"rank": 4}), "refused", "rank 4 is not a rank of this job; it has 4"),
        (json!({"device": 1}), "bad_request", "a \"device\" needs the \"node\" that it is in"),
        (json!({"node": "n0", "rank": 1}), "bad_request", "a fault is in one place"),
        (json!({"confidence": 90}), "bad_request", "\"confidence\" must be 0 to 1"),
        (json!({"class": ""}), "bad_request", "\"class\" must not be empty"),
        (json!({"by": ""}), "bad_request", "\"by\" of a fault must name its reporter"),
        (json!({"text": "x".repeat(2049)}), "bad_request", "at most 64 bytes, its \"text\" 2048"),
        (json!({"class": "x".repeat(65)}), "bad_request", "at most 64 bytes, its \"text\" 2048"),
        (json!({"age": "soon"}), "bad_request", "expected a duration such as \"90s\""),
        (json!({"group": "tp"}), "bad_request", "\"tp\" is not a group"),
        (json!({"gpu": 1}), "bad_request", "unknown field `gpu`, expected one of `by`, `class`, `text`, `node`"),
    ];
    for (wrong, kind, sentence) in refusals {
        let mut fault = json!({"by": "me", "class": "odd"});
        fault.as_object_mut().unwrap().extend(wrong.as_object().unwrap().clone());
        let (of, text) = client.error(json!({"do": "report_fault", "fault": fault})).await;
        assert_eq!(of, kind, "{text}");
        assert!(text.contains(sentence), "{wrong}: {text}");
    }
    assert!(served.handle.status().await.unwrap().incidents.is_empty());
}

#[tokio::test]
async fn a_fault_may_be_about_a_rank_a_host_a_group_or_the_job_and_may_be_old() {
    for (place, domain) in [
        (json!({"rank": 2}), json!({"process": {"rank": 2}})),
        (json!({"node": "n0"}), json!({"node": "n0"})),
        (json!({"group": "tp:0"}), json!({"group": "tp:0"})),
        (json!({}), json!("job")),
    ] {
        let served = Served::new().await;
        let mut client = served.client().await;
        client.ok(json!({"do": "pause", "reason": "look only", "by": "alice"})).await;
        let mut fault = json!({"by": "me", "class": "odd", "confidence": 0.7, "age": "1h"});
        fault.as_object_mut().unwrap().extend(place.as_object().unwrap().clone());
        client.ok(json!({"do": "report_fault", "fault": fault})).await;
        let incident = timeout(PATIENCE, async {
            loop {
                let status = client.ok(json!({"do": "status"})).await;
                assert_eq!(status["job"]["paused"]["by"], "alice");
                if let Some(incident) = status["job"]["incidents"].get(0) {
                    return incident.clone();
                }
            }
        });
        let incident = incident.await.unwrap();
        assert_eq!((&incident["class"], &incident["domain"]), (&json!({"other": "odd"}), &domain));
        assert_eq!(incident["onset"], 0, "an hour ago is before the job began");
    }
}

#[tokio::test]
async fn every_order_is_answered_as_the_handle_answers() {
    let served = Served::new().await;
    let mut client = served.client().await;
    let (kind, text) = client.error(json!({"do": "dump_now"})).await;
    assert_eq!(kind, "unsupported", "{text}");
    let (kind, text) = client.error(json!({"do": "drain", "node": "n9"})).await;
    assert_eq!(kind, "refused", "{text}");
    for refused in ["approve", "decline", "explain"] {
        assert_eq!(client.error(json!({"do": refused, "incident": 9})).await.0, "refused");
    }
    assert_eq!(client.error(json!({"do": "resume"})).await.0, "refused");
    for call in [json!({"do": "trace_status"}), json!({"do": "switch_trace", "kinds": Requested::ALL})] {
        assert_eq!(client.error(call).await.0, "unsupported");
    }
    assert_eq!(client.error(json!({"do": "allow", "strategies": {"acme": "auto"}})).await.0, "refused");

    client.ok(json!({"do": "allow", "strategies": {"restart": "ask"}, "reason": "careful"})).await;
    assert!(served.launcher.kill(&ProcId::rank(1, 1)));
    let held = timeout(PATIENCE, async {
        loop {
            let incidents = served.handle.status().await.unwrap().incidents;
            if let Some(incident) = incidents.iter().find(|incident| incident.held.is_some()) {
                return incident.id;
            }
            tokio::task::yield_now().await;
        }
    });
    let held = held.await.unwrap();
    let taken = client.ok(json!({"do": "approve", "incident": held, "reason": "go"})).await;
    assert!(taken["text"].is_string(), "{taken}");
    served.all_run(2).await;

    client.ok(json!({"do": "allow", "strategies": {"restart": "auto"}})).await;
    let taken = client.ok(json!({"do": "restart", "ranks": [0], "reason": "again", "by": "bob"})).await;
    assert!(taken["incident"].is_u64(), "{taken}");
    served.all_run(3).await;
    client.ok(json!({"do": "drain", "node": "n0"})).await;
    served.all_run(4).await;
    client.ok(json!({"do": "readmit", "node": "n0"})).await;
    client.ok(json!({"do": "pause"})).await;
    client.ok(json!({"do": "resume"})).await;
}

#[tokio::test]
async fn a_switch_trace_request_is_applied_and_shown_in_trace_status() {
    let control = TraceControl::new(Mode::Compatible);
    let served = Served::with(SocketLimits::default(), |builder| builder.trace(control.clone())).await;
    let mut client = served.client().await;
    let kinds = json!({"CommunicationOperator": "off", "Step": "on", "SaveCheckpoint": "off", "FP": "off",
        "DataLoader": "off"});
    let taken = client.ok(json!({"do": "switch_trace", "kinds": kinds, "by": "alice", "reason": "to see"})).await;
    assert_eq!(taken["text"], "recorded from now on: Step, SaveCheckpoint, FP, DataLoader (asked for: Step)");
    let status = client.ok(json!({"do": "trace_status"})).await;
    assert_eq!((&status["by"], &status["mode"]), (&json!("alice"), &json!("compatible")));
    let loader = &status["kinds"]["DataLoader"];
    let switches = (&loader["requested"], &loader["effective"], &loader["overall"]);
    assert_eq!(switches, (&json!("off"), &json!("on"), &json!("no-rank")), "{status}");
    for wrong in [json!({}), json!("on"), json!({"Steps": "on"}), json!({"Step": true})] {
        let (kind, text) = client.error(json!({"do": "switch_trace", "kinds": wrong})).await;
        assert_eq!(kind, "bad_request", "{text}");
    }
}

/// Kinds as the guide's table has them.
fn kinds_of_the_guide() -> Vec<String> {
    let guide = include_str!("../../src/guide/tracing.md");
    let table = guide.lines().skip_while(|line| !line.starts_with("| kind |")).skip(2);
    let rows = table.take_while(|line| line.starts_with('|')).map(|line| line.split('|').nth(1).unwrap().trim());
    rows.flat_map(|kinds| kinds.split(", ").map(str::to_owned)).collect()
}

#[tokio::test]
async fn a_kind_named_as_in_the_guide_is_switched_and_others_are_not() {
    let control = TraceControl::new(Mode::Native);
    let served = Served::with(SocketLimits::default(), |builder| builder.trace(control.clone())).await;
    let mut client = served.client().await;
    let kinds = kinds_of_the_guide();
    assert_eq!(kinds.len(), 9, "{kinds:?}");
    client.ok(json!({"do": "switch_trace", "kinds": {"Step": "off"}})).await;
    let all_but_steps = Requested { step: Switch::Off, ..Requested::USUAL };
    assert_eq!(control.requested(), Some(all_but_steps), "nothing was asked for yet: the others are as ranks start");
    control.switch(Requested::NONE, "test");
    for kind in &kinds {
        client.ok(json!({"do": "switch_trace", "kinds": {kind.as_str(): "on"}})).await;
    }
    assert_eq!(control.requested(), Some(Requested::ALL), "each has stayed on");
    let both = json!({"Communication": "off", "CommunicationOperator": "off"});
    assert_eq!(client.error(json!({"do": "switch_trace", "kinds": both})).await.0, "bad_request");
    // The same words in the environment of a worker.
    for kind in &kinds {
        let config = RecorderConfig::from_env(|name| (name == "TASKD_TRACE").then(|| kind.clone()));
        let on: Vec<Kind> = KINDS.into_array().into_iter().filter(|kind| config.kinds.has(*kind)).collect();
        assert_eq!(on.len(), 1, "{kind}: {on:?}");
    }
}

#[tokio::test]
async fn optional_fields_of_a_request_default_when_omitted() {
    let served = Served::new().await;
    let mut client = served.client().await;
    let taken = client.ok(json!({"do": "restart"})).await;
    assert_eq!(taken["text"], "all ranks are to be started anew");
    served.all_run(2).await;
    let mut events = served.handle.events();
    client.ok(json!({"do": "report_fault", "fault": {"by": "acme", "rank": 1, "class": "exit", "damage": {"device": "no"}}})).await;
    let damage = timeout(PATIENCE, async {
        loop {
            if let Event::Found { fault, .. } = &events.recv().await.unwrap().event {
                return fault.primary_suspect().damage;
            }
        }
    });
    let expected = Damage { device: Health::Faulty, ..Damage::PROCESS_GONE };
    assert_eq!(damage.await.unwrap(), expected, "what is left out is as the class means it");
}

#[tokio::test]
async fn every_class_of_fault_is_known_by_its_name() {
    let served = Served::new().await;
    let mut client = served.client().await;
    let mut events = served.handle.events();
    client.ok(json!({"do": "pause"})).await;
    for class in FaultClass::BUILT_IN {
        let fault = json!({"by": "acme", "rank": 1, "class": class.to_string(), "confidence": 0.2});
        client.ok(json!({"do": "report_fault", "fault": fault})).await;
        let found = timeout(PATIENCE, async {
            loop {
                if let Event::Found { fault, .. } = &events.recv().await.unwrap().event {
                    return fault.primary_suspect().class.clone();
                }
            }
        });
        assert_eq!(found.await.unwrap(), class);
    }
}

#[tokio::test]
async fn a_stop_ends_the_job_and_then_everything_is_over() {
    let served = Served::new().await;
    let mut client = served.client().await;
    let accepted = client.ok(json!({"do": "stop", "reason": "maintenance", "by": "ann"})).await;
    let text = accepted["text"].as_str().unwrap();
    assert!(text.starts_with("the job stops; processes that run after "), "{text}");
    let report = timeout(PATIENCE, served.job).await.unwrap().unwrap();
    assert_eq!((report.outcome, report.reason.as_str()), (Outcome::Stopped, "stopped: maintenance"));
    for call in ["status", "stop", "pause"] {
        let (kind, text) = client.error(json!({"do": call})).await;
        assert_eq!(kind, "over", "{text}");
    }
    assert_eq!(client.error(fault()).await.0, "over");
}

#[tokio::test]
async fn a_job_can_be_handed_over() {
    let served = Served::new().await;
    let mut client = served.client().await;
    assert_eq!(client.ok(json!({"do": "detach", "keep": "90s"})).await, json!({}));
    let report = timeout(PATIENCE, served.job).await.unwrap().unwrap();
    assert_eq!(report.outcome, Outcome::Detached);
    assert!(report.reason.contains("90s"), "{}", report.reason);
}

#[tokio::test]
async fn events_are_sent_also_to_a_client_that_closed_its_write_side() {
    let served = Served::new().await;
    let (mut both, mut half) = (served.client().await, served.client().await);
    for client in [&mut both, &mut half] {
        assert_eq!(client.ask(json!({"id": 3, "do": "events"})).await, json!({"v": 2, "id": 3, "ok": {}}));
    }
    half.to.shutdown().await.unwrap();
    assert!(served.launcher.kill(&ProcId::rank(2, 1)));
    for client in [&mut both, &mut half] {
        let first = client.line().await.unwrap();
        assert_eq!(first["id"], 3);
        assert_eq!(first["event"]["event"]["found"]["incident"], 1, "{first}");
        while client.line().await.unwrap()["event"]["event"]["closed"].is_null() {}
    }
    both.send(r#"{"v":2,"id":4,"do":"status"}"#).await;
    while both.line().await.unwrap()["id"] != 4 {} // a listener may ask on
}

#[tokio::test]
async fn answers_are_of_their_schema() {
    let schemas = schema::all();
    let (_, schema) = schemas.iter().find(|(name, _)| *name == "control-response").unwrap();
    let control = TraceControl::new(Mode::Native);
    let config = RecorderConfig::default();
    let memory = config.memory().unwrap();
    let recorder = Recorder::create(memory.try_clone().unwrap(), config).unwrap();
    recorder.except(Kind::Step, Some("another profiler is active"));
    let origin = Origin { rank: Rank(0), incarnation: Incarnation(1), pid: 7 };
    control.attach(origin, SwitchHandle::open(&memory).unwrap());
    let served = Served::with(SocketLimits::default(), |builder| builder.trace(control)).await;
    let mut client = served.client().await;
    let mut answers = vec![client.ask(json!({"id": 1, "do": "status"})).await];
    let trace = client.ask(json!({"do": "trace_status"})).await;
    assert_eq!(trace["ok"]["ranks"][0]["kinds"]["Step"], json!({"exception": "another profiler is active"}));
    answers.push(trace);
    answers.push(client.ask(json!({"do": "pause"})).await);
    answers.push(client.ask(json!({"do": "nothing"})).await);
    answers.push(client.ask(json!({"do": "events"})).await);
    answers.push(client.ask(fault()).await);
    for answer in &answers {
        crate::validator::check(&schema.clone().to_value(), answer).unwrap_or_else(|e| panic!("{e}: {answer}"));
    }
}

#[tokio::test]
async fn closing_lets_the_answer_out_and_leaves_nothing() {
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let served = Served::new().await;
    let before = open();
    for _ in 0..20 {
        let path = served.path().with_file_name("second.sock");
        let socket = ControlSocket::bind(&path, served.handle.clone(), Default::default()).unwrap();
        let mut client = Client::of(&path).await;
        client.send(r#"{"v":2,"do":"status"}"#).await;
        let status = client.line().await.unwrap();
        assert!(status["ok"]["job"].is_object());
        if status["ok"]["socket"]["requests"] == 1 {
            socket.close().await;
        }
        assert!(!path.exists());
        assert_eq!(client.line().await, None);
    }
    let closed = async {
        while open() > before {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    // Other tests of this program open files meanwhile, but they end.
    timeout(PATIENCE, closed).await.expect("all files are closed");
}
