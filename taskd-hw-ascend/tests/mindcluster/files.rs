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
        [
            "fault-scheduling is \"grace\" in the job file job.yaml ($2.metadata.labels), which counts; the job file job.yaml \
          ($2.spec.replicaSpecs.Worker.template.metadata.labels) says \"force\""
        ]
    );
    let flags = warned(&configured, WarningKind::MissingFlag);
    assert!(flags.len() == 1 && flags[0].contains("--enable-worker-reboot"), "{flags:?}");
    let elsewhere = warned(&configured, WarningKind::NoEffect);
    assert_eq!(
        elsewhere,
        [
            "PROCESS_RECOVER has no value in the job file ($2.spec.replicaSpecs.Master.template.spec.containers[0].env): it is \
          known only where the job runs"
        ]
    );
}

#[test]
fn what_stands_further_out_counts_first_wherever_it_is_written() {
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
        ("", "cannot be read: it is no file"),
        ("long", "has more than 1048576 bytes: name the job's own file"),
        ("binary", "is no text in UTF-8 (byte 5)"),
    ] {
        let of_job = sources(&spec()).job_file(path(name)).unwrap_err().to_string();
        let of_downward = sources(&spec()).downward_file(path(name)).unwrap_err().to_string();
        for error in [of_job, of_downward] {
            assert!(error.starts_with(&path(name).display().to_string()) && error.contains(expected), "{error}");
        }
    }
    let error = sources(&spec()).job_file(path("half")).unwrap_err().to_string();
    assert!(error.contains("half cannot be used, line ") && error.contains("no YAML: "), "{error}");
    assert!(error.ends_with("name the file that the cluster is given"), "{error}");
    for (name, line, text) in [("prose", 2, "this is no label"), ("bare-value", 1, "zone=1")] {
        let error = sources(&spec()).downward_file(path(name)).unwrap_err().to_string();
        let expected =
            format!("{name} cannot be used, line {line}: {text:?} is not of the form key=\"value\": name a file");
        assert!(error.contains(&expected), "{error}");
    }
}

#[test]
fn a_pipe_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    assert!(sources(&spec()).job_file(&path).unwrap_err().to_string().contains("it is no file"));
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
