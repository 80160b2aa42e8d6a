//! Files: jobs as they are given to the cluster, downward-API files, and what is none of these.

use super::{sources, spec, warned};
use std::io::Write as _;
use std::path::Path;
use taskd_hw_ascend::mindcluster::{FILE_BYTES_MAX, Framework, Key, WarningKind};

/// An AscendJob as the documents have it, after the ConfigMap that such files begin with.
const ASCEND_JOB: &str = r#"apiVersion: v1
kind: ConfigMap
metadata:
  name: reset-config-default-test-pytorch
  labels:
    reset: "true"
data:
  reset.json: |
    {"status": "initializing"}
---
apiVersion: mindxdl.gitee.com/v1
kind: AscendJob
metadata:
  name: default-test-pytorch
  labels:
    framework: pytorch
    ring-controller.atlas: ascend-910b
    fault-scheduling: "grace"
    fault-retry-times: "10"
    process-recover-enable: "on"
  annotations:
    recover-strategy: "retry,recover,dump"
spec:
  schedulerName: volcano
  replicaSpecs:
    Master:
      replicas: 1
      template:
        metadata:
          labels:
            fault-scheduling: "grace"
        spec:
          containers:
          - name: ascend
            image: pytorch-test:latest
            env:
            - name: XDL_IP
              valueFrom: {fieldRef: {fieldPath: status.hostIP}}
            - name: TASKD_PROCESS_ENABLE
              value: "on"
            - name: PROCESS_RECOVER
              valueFrom: {fieldRef: {fieldPath: "metadata.labels['process-recover-enable']"}}
            command: ["/bin/bash", "-c"]
            args: ["bash train_start.sh /job/code --max_restarts=5 --enable-high-availability --enable-hbmfault-repair"]
    Worker:
      replicas: 3
      template:
        metadata:
          labels:
            fault-scheduling: "force"
"#;

#[test]
fn an_ascend_job_is_understood() {
    let configured = sources(&spec()).job_text("job.yaml", ASCEND_JOB).unwrap().configured();
    let value = |key| configured.setting(key).map(|setting| setting.value.as_str());
    assert_eq!(value(Key::RecoverStrategy), Some("retry,recover,dump"));
    assert_eq!((value(Key::FaultRetryTimes), value(Key::MaxRestarts)), (Some("10"), Some("5")));
    assert_eq!((value(Key::FaultScheduling), value(Key::ProcessEnable)), (Some("grace"), Some("on")));
    assert_eq!(super::allowed(&configured), ["retry", "recover", "dump", "restart", "dump-exit", "exit"]);
    assert_eq!(configured.environment()["HIGH_AVAILABILITY"], "dump,recover,retry");
    let overruled = warned(&configured, WarningKind::Overruled);
    assert_eq!(
        overruled,
        ["fault-scheduling is \"grace\" in the job file job.yaml ($2.metadata.labels), which takes precedence; \
          the job file job.yaml ($2.spec.replicaSpecs.Worker.template.metadata.labels) has \"force\""]
    );
    let flags = warned(&configured, WarningKind::MissingFlag);
    assert!(flags.len() == 1 && flags[0].contains("--enable-worker-reboot"), "{flags:?}");
    let elsewhere = warned(&configured, WarningKind::NoEffect);
    assert_eq!(
        elsewhere,
        [
            "PROCESS_RECOVER has no value in the job file ($2.spec.replicaSpecs.Master.template.spec.containers[0].env): the \
          value is known only where the job runs"
        ]
    );
}

#[test]
fn outer_yaml_setting_wins_in_any_order() {
    let yaml = "spec: {template: {metadata: {labels: {fault-scheduling: force}}}}\nmetadata: {labels: {fault-scheduling: grace}}";
    let configured = sources(&spec()).job_text("job.yaml", yaml).unwrap().configured();
    assert_eq!(configured.setting(Key::FaultScheduling).unwrap().value, "grace");
}

#[test]
fn on_and_off_are_texts_with_and_without_quotes() {
    for value in ["off", "\"off\"", "'off'"] {
        let yaml = format!("metadata: {{labels: {{process-recover-enable: {value}}}}}");
        let configured = sources(&spec()).job_text("job.yaml", &yaml).unwrap().configured();
        assert_eq!(configured.setting(Key::ProcessRecoverEnable).unwrap().value, "off");
    }
}

#[test]
fn a_value_in_mindspore_s_form_survives_a_yaml_file_and_a_downward_file() {
    let yaml = "containers:\n- env:\n  - name: MS_ENABLE_TFT\n    value: '{TTP:1, HCCE:1}'\n";
    let of_yaml = sources(&spec()).job_text("job.yaml", yaml).unwrap();
    let of_downward = sources(&spec()).downward_text("annotations", "MS_ENABLE_TFT=\"{TTP:1, HCCE:1}\"").unwrap();
    for sources in [of_yaml, of_downward] {
        let configured = sources.framework(Framework::MindSpore).configured();
        assert_eq!(configured.environment()["MS_ENABLE_TFT"], "{TTP:1, HCCE:1}");
        assert_eq!(warned(&configured, WarningKind::UnknownValue).len(), 0);
    }
}

fn file(dir: &Path, name: &str, bytes: &[u8]) -> std::path::PathBuf {
    let path = dir.join(name);
    std::fs::File::create(&path).unwrap().write_all(bytes).unwrap();
    path
}

#[test]
fn files_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let job = file(dir.path(), "job.yaml", ASCEND_JOB.as_bytes());
    let labels = file(dir.path(), "labels", b"pod-rescheduling=\"on\"\n");
    let bare = file(dir.path(), "subHealthyStrategy", b"ignore\n");
    let sources = sources(&spec()).job_file(job).unwrap().downward_file(labels).unwrap().downward_file(bare).unwrap();
    let configured = sources.configured();
    for key in [Key::RecoverStrategy, Key::PodRescheduling, Key::SubHealthyStrategy] {
        assert!(configured.setting(key).is_some(), "{key}");
    }
}

#[test]
fn a_bad_file_is_refused_with_its_path_the_line_and_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let too_long = vec![b' '; usize::try_from(FILE_BYTES_MAX).unwrap() + 1];
    file(dir.path(), "long", &too_long);
    file(dir.path(), "binary", b"a: 1\n\xff\xfe");
    file(dir.path(), "half", b"metadata:\n  labels: {a: [1, 2\nspec: 3\n");
    file(dir.path(), "prose", b"zone=\"1\"\nthis is no label\n");
    file(dir.path(), "bare-value", b"zone=1\n");
    for (name, expected) in [
        ("missing", "cannot be read: No such file or directory"),
        ("", "cannot be read: it is not a regular file"),
        ("long", "has more than 1048576 bytes: name the job's own file"),
        ("binary", "is not UTF-8 text (byte 5)"),
    ] {
        let of_job = sources(&spec()).job_file(path(name)).unwrap_err().to_string();
        let of_downward = sources(&spec()).downward_file(path(name)).unwrap_err().to_string();
        for error in [of_job, of_downward] {
            assert!(error.starts_with(&path(name).display().to_string()) && error.contains(expected), "{error}");
        }
    }
    let error = sources(&spec()).job_file(path("half")).unwrap_err().to_string();
    assert!(error.contains("half cannot be used, line ") && error.contains("no YAML: "), "{error}");
    assert!(error.ends_with("name the file submitted to the cluster"), "{error}");
    for (name, line, text) in [("prose", 2, "this is no label"), ("bare-value", 1, "zone=1")] {
        let error = sources(&spec()).downward_file(path(name)).unwrap_err().to_string();
        let expected =
            format!("{name} cannot be used, line {line}: {text:?} is not of the form key=\"value\": name a file");
        assert!(error.contains(&expected), "{error}");
    }
}

/// A pod with these containers, each of a name and with these lines.
fn pod(containers: &[(&str, &str)]) -> String {
    let of = |(name, lines): &(&str, &str)| format!("  - name: {name}\n{}\n", lines.replace('|', "\n"));
    format!("kind: Pod\nmetadata: {{name: x}}\nspec:\n  containers:\n{}", containers.iter().map(of).collect::<String>())
}

#[test]
fn settings_of_a_sidecar_container_have_no_effect() {
    let sets = |value: &str| {
        format!("    env:|    - {{name: PROCESS_RECOVER, value: \"{value}\"}}|    args: [\"--max_restarts=1\"]")
    };
    let (on, off) = (sets("on"), sets("off"));
    let device = format!("{on}|    resources: {{limits: {{huawei.com/Ascend910: 8}}}}");
    let cases: [(&str, Vec<(&str, &str)>); 5] = [
        ("by its name", vec![("log-agent", &off), ("ascend", &on)]),
        ("by its name, as it is of torch's operator", vec![("proxy", &off), ("pytorch", &on)]),
        ("by the devices that it asks for", vec![("proxy", &off), ("main", &device), ("other", &off)]),
        ("it stands first", vec![("main", &on), ("proxy", &off)]),
        ("it is alone", vec![("whatever", &on)]),
    ];
    for (how, containers) in &cases {
        let configured = sources(&spec()).job_text("job.yaml", &pod(containers)).unwrap().configured();
        let trains = containers.iter().position(|(_, lines)| lines.contains("\"on\"")).unwrap();
        let setting = configured.setting(Key::ProcessRecover).unwrap_or_else(|| panic!("{how}"));
        assert_eq!(
            (setting.value.as_str(), setting.at.clone()),
            ("on", Some(format!("$.spec.containers[{trains}].env"))),
            "{how}"
        );
        assert!(!configured.restarts_only(), "{how}");
        let told = warned(&configured, WarningKind::NoEffect);
        let expected = containers.iter().enumerate().filter(|(at, _)| *at != trains).map(|(at, _)| {
            format!("PROCESS_RECOVER is \"off\" in the job file job.yaml ($.spec.containers[{at}].env), which has no effect: the \
                     container that trains is $.spec.containers[{trains}]")
        });
        assert_eq!(told, expected.collect::<Vec<_>>(), "{how}");
        assert_eq!(warned(&configured, WarningKind::Overruled), Vec::<String>::new(), "{how}");
    }
    // Nor does it turn anything on.
    let configured = sources(&spec())
        .job_text("job.yaml", &pod(&[("ascend", "    image: x"), ("proxy", &on)]))
        .unwrap()
        .configured();
    assert_eq!((configured.setting(Key::ProcessRecover), configured.setting(Key::MaxRestarts)), (None, None));
}

#[test]
fn of_a_variable_that_is_set_twice_the_last_one_counts_as_in_kubernetes() {
    let env = "    env:|    - {name: PROCESS_RECOVER, value: \"off\"}|    - {name: PROCESS_RECOVER, value: \"on\"}";
    let configured = sources(&spec()).job_text("job.yaml", &pod(&[("ascend", env)])).unwrap().configured();
    assert_eq!(configured.setting(Key::ProcessRecover).unwrap().value, "on");
    assert_eq!(warned(&configured, WarningKind::Overruled).len(), 1);
}

#[test]
fn a_template_that_was_not_rendered_is_refused_in_one_sentence() {
    let env = |value: &str| pod(&[("ascend", &format!("    env:|    - {{name: PROCESS_RECOVER, value: {value}}}"))]);
    let labels = |value: &str| format!("metadata:\n  labels:\n    process-recover-enable: {value}\n");
    let recover = "$.metadata.labels, process-recover-enable,";
    let cases = [
        (labels("{{ .Values.recover }}"), "line 3", "process-recover-enable: {{ .Values.recover }}"),
        (labels("\"{{ .Values.recover }}\""), recover, "{{ .Values.recover }}"),
        (labels("'{% if recover %}on{% endif %}'"), recover, "{% if recover %}on{% endif %}"),
        (labels("${RECOVER}"), recover, "${RECOVER}"),
        (labels("$RECOVER"), recover, "$RECOVER"),
        (env("$(RECOVER)"), "$.spec.containers[0].env, PROCESS_RECOVER,", "$(RECOVER)"),
        (
            "metadata: {labels: \"{{ toYaml .Values.labels }}\"}\n".into(),
            "$.metadata.labels",
            "{{ toYaml .Values.labels }}",
        ),
        ("metadata:\n  labels: {{ toYaml .Values.labels }}\n".into(), "line 2", "labels: {{ toYaml .Values.labels }}"),
        (
            "metadata:\n  labels:\n    {{- include \"x.labels\" . | nindent 4 }}\n".into(),
            "line 3",
            "{{- include \"x.labels\" . | nindent 4 }}",
        ),
        ("{{- if .Values.on }}\nmetadata: {labels: {a: b}}\n{{- end }}\n".into(), "line 1", "{{- if .Values.on }}"),
        ("{% for n in names %}\nmetadata: {name: x}\n{% endfor %}\n".into(), "line 1", "{% for n in names %}"),
        ("metadata: {name: x}\nspec: ${SPEC}\n".into(), "$.spec", "${SPEC}"),
        (
            "metadata: {name: x}\nspec: {containers: \"{{ containers }}\"}\n".into(),
            "$.spec.containers",
            "{{ containers }}",
        ),
        ("metadata: {labels: {\"${KEY}\": \"on\"}}\n".into(), "$.metadata.labels", "${KEY}"),
        ("\"${JOB}\"\n".into(), "$", "${JOB}"),
    ];
    for (text, at, said) in cases {
        let told = sources(&spec()).job_text("job.yaml", &text).map(|_| ()).expect_err(&text).to_string();
        let expected = format!(
            "job.yaml is a template that was not rendered: {at} is {said:?}: name the file submitted to the cluster"
        );
        assert_eq!(told, expected, "{text}");
    }
}

#[test]
fn template_like_text_in_commands_and_values_is_accepted() {
    let text = pod(&[(
        "ascend",
        "    command: [bash, -c, \"cd ${HOME} && docker ps --format '{{.ID}}' && python train.py $(hostname)\"]|    \
                      env:|    - {name: POD_URL, value: \"http://$(POD_IP):80\"}|    - {name: FORMAT, value: \"{{.ID}}\"}",
    )]);
    let text = text.replace("{name: x}", "{name: x, annotations: {summary: \"{{ $labels.pod }} is down\"}}");
    assert!(sources(&spec()).job_text("job.yaml", &text).is_ok());
}

#[test]
fn an_empty_file_a_byte_order_mark_and_what_is_no_job_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let utf16: Vec<u8> = "\u{feff}metadata: {}".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let marked = "\u{feff}metadata: {labels: {process-recover-enable: off}}\n".as_bytes();
    let mark = |of: &str| format!("begins with a byte-order mark of {of}: save it as UTF-8 without one");
    let none = "cannot be used, line 1: it has neither metadata nor containers: name the file submitted to the cluster"
        .to_owned();
    let empty = || "is empty".to_owned();
    for (name, bytes, expected) in [
        ("empty", &b""[..], empty()),
        ("blank", b" \n\n", empty()),
        ("marked", marked, mark("UTF-8")),
        ("utf16", &utf16, mark("UTF-16")),
        ("comment", b"# nothing is left of it\n", none.clone()),
        ("prose", b"this is no job\n", none.clone()),
        ("other", b"{\"a\": [1]}\n", none),
    ] {
        let path = file(dir.path(), name, bytes);
        let told = sources(&spec()).job_file(&path).map(|_| ()).expect_err(name).to_string();
        assert_eq!(told, format!("{} {expected}", path.display()));
        if let Ok(text) = str::from_utf8(bytes) {
            assert!(sources(&spec()).job_text(name, text).is_err(), "{name}");
        }
    }
    let marked = file(dir.path(), "labels", b"\xef\xbb\xbffault-scheduling=\"off\"\n");
    let told = sources(&spec()).downward_file(&marked).map(|_| ()).expect_err("a mark").to_string();
    assert_eq!(told, format!("{} {}", marked.display(), mark("UTF-8")));
    let empty = file(dir.path(), "annotations", b"");
    assert!(sources(&spec()).downward_file(empty).is_ok(), "of a pod without annotations");
}

#[test]
fn a_pipe_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    assert!(sources(&spec()).job_file(&path).unwrap_err().to_string().contains("it is not a regular file"));
}

#[test]
fn variables_that_are_not_text_are_read_as_far_as_they_are() {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt as _;
    let raw = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
    let variables = [(raw(b"\xff"), raw(b"1")), (raw(b"PROCESS_RECOVER"), raw(b"o\xff"))];
    let configured = sources(&spec()).environment(variables).configured();
    assert_eq!(configured.summary(), "whole restarts only: PROCESS_RECOVER is \"o\u{fffd}\" in the environment");
}
