//! Reader of job files: labels, annotations, and the environment and arguments of containers.
//!
//! The reader searches for the parts that all kinds of jobs have, at any depth: `metadata.labels`,
//! `metadata.annotations`, `containers[].env`, `.command` and `.args`. Outer ones take precedence. Values are not
//! interpreted.

use super::setting::is_unrendered;
use super::yaml::{self, NoYaml, Yaml};
use super::{Framework, Key, Setting, Source};

/// Names of the training container: the only one that MindCluster's operator accepts, and those of other operators.
const TRAINERS: [&str; 4] = ["ascend", "pytorch", "mindspore", "tensorflow"];
/// Prefix of the resource names of NPUs that a container requests.
const DEVICES: &str = "huawei.com/";

/// Content of a job file.
#[derive(Clone, Debug, Default)]
pub(super) struct JobFile {
    /// Settings, the one with the highest precedence first.
    pub(super) settings: Vec<Setting>,
    pub(super) arguments: Vec<String>,
    pub(super) framework: Option<Framework>,
    /// Variables whose values are known only inside the pod (`valueFrom`), with their paths.
    pub(super) elsewhere: Vec<(Key, String)>,
    /// Settings of the other containers, with the path of the training container.
    pub(super) beside: Vec<(Setting, String)>,
}

/// Reason why a text is no usable job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoJob {
    /// The text is no valid job: `what` is the problem in the line with the number `line`, from 1.
    Wrong { line: usize, what: String },
    /// The text contains a template placeholder that was not rendered: `text`, at the place `at`.
    Unrendered { at: String, text: String },
}

impl From<NoYaml> for NoJob {
    fn from(NoYaml { line, what, is_template }: NoYaml) -> NoJob {
        match is_template {
            true => NoJob::Unrendered { at: format!("line {line}"), text: what },
            false => NoJob::Wrong { line, what },
        }
    }
}

/// Parses a job in YAML or JSON.
pub(super) fn read(text: &str, source: &Source) -> Result<JobFile, NoJob> {
    let documents = yaml::read(text)?;
    let mut walk = Walk { source, found: Vec::new(), file: JobFile::default(), is_job: false, unrendered: None };
    for (index, document) in documents.iter().enumerate() {
        let root = if documents.len() == 1 { "$".to_owned() } else { format!("${}", index + 1) };
        walk.value(document, &root, 0);
    }
    let Walk { mut found, mut file, is_job, unrendered, .. } = walk;
    if let Some((at, text)) = unrendered {
        return Err(NoJob::Unrendered { at, text });
    }
    if !is_job {
        return Err(NoJob::Wrong { line: 1, what: "it has neither metadata nor containers".into() });
    }
    found.sort_by_key(|(depth, _)| *depth); // stable: the first one in the file takes precedence
    file.settings = found.into_iter().map(|(_, setting)| setting).collect();
    Ok(file)
}

struct Walk<'a> {
    source: &'a Source,
    found: Vec<(usize, Setting)>,
    file: JobFile,
    /// True if the file has a part that jobs have: metadata or containers.
    is_job: bool,
    /// Place and text of the first template placeholder in the file.
    unrendered: Option<(String, String)>,
}

impl Walk<'_> {
    /// Searches a part of the job file recursively for settings. The YAML reader bounds the depth of the tree.
    fn value(&mut self, value: &Yaml, at: &str, depth: usize) {
        // Checked in the place of a whole part of the job only; elsewhere `{{` may belong to the program's own text.
        self.is_rendered_part(value, at);
        for (name, inner) in value.entries() {
            let inner_at = format!("{at}.{name}");
            match name {
                "metadata" => self.metadata(inner, &inner_at, depth),
                "containers" => self.containers(inner, &inner_at, depth),
                _ => self.value(inner, &inner_at, depth + 1),
            }
        }
        for (index, item) in value.items().iter().enumerate() {
            self.value(item, &format!("{at}[{index}]"), depth + 1);
        }
    }

    /// Records a template placeholder that stands in the place of a list or map.
    fn is_rendered_part(&mut self, part: &Yaml, at: &str) {
        if let Yaml::Text(text) = part
            && is_whole_place(text)
        {
            self.unrendered(at.to_owned(), text);
        }
    }

    fn unrendered(&mut self, at: String, text: &str) {
        self.unrendered.get_or_insert_with(|| (at, text.to_owned()));
    }

    fn metadata(&mut self, metadata: &Yaml, at: &str, depth: usize) {
        self.is_job = true;
        self.is_rendered_part(metadata, at);
        for kind in ["labels", "annotations"] {
            metadata.get(kind).into_iter().for_each(|part| self.is_rendered_part(part, &format!("{at}.{kind}")));
            for (name, value) in metadata.get(kind).into_iter().flat_map(Yaml::entries) {
                if is_unrendered(name) {
                    self.unrendered(format!("{at}.{kind}"), name);
                }
                let Yaml::Text(value) = value else { continue };
                self.setting(name, value, format!("{at}.{kind}"), depth);
                if name == "framework" && self.file.framework.is_none() {
                    self.file.framework = Framework::named(value);
                }
            }
        }
    }

    fn containers(&mut self, containers: &Yaml, at: &str, depth: usize) {
        self.is_job = true;
        self.is_rendered_part(containers, at);
        let trainer = trainer(containers.items());
        let trains = format!("{at}[{trainer}]");
        for (index, container) in containers.items().iter().enumerate() {
            let at = format!("{at}[{index}]");
            self.is_rendered_part(container, &at);
            container.get("env").into_iter().for_each(|env| self.is_rendered_part(env, &format!("{at}.env")));
            // If a variable is set twice, the last one applies.
            for variable in container.get("env").map_or(&[][..], Yaml::items).iter().rev() {
                self.is_rendered_part(variable, &format!("{at}.env"));
                let Some(name) = variable.text("name") else { continue };
                if is_unrendered(name) {
                    self.unrendered(format!("{at}.env"), name);
                }
                match (variable.text("value"), Key::named(name)) {
                    (Some(value), Some(key)) if index != trainer => {
                        let setting = Setting::new(key, value, self.source).at(format!("{at}.env"));
                        self.file.beside.push((setting, trains.clone()));
                    }
                    (Some(value), _) => self.setting(name, value, format!("{at}.env"), depth),
                    (None, Some(key)) if variable.get("valueFrom").is_some() && index == trainer => {
                        self.file.elsewhere.push((key, format!("{at}.env")));
                    }
                    (None, _) => {}
                }
            }
            for part in ["command", "args"].into_iter().filter(|_| index == trainer) {
                let texts = container.get(part).map_or(&[][..], Yaml::items);
                let texts = texts.iter().filter_map(|text| if let Yaml::Text(text) = text { Some(text) } else { None });
                self.file.arguments.extend(texts.cloned());
            }
        }
    }

    fn setting(&mut self, name: &str, value: &str, at: String, depth: usize) {
        let Some(key) = Key::named(name) else { return };
        if is_unrendered(value) {
            self.unrendered(format!("{at}, {key},"), value);
        }
        self.found.push((depth, Setting::new(key, value, self.source).at(at)));
    }
}

/// Returns the index of the training container: by name, otherwise by the devices that it requests, otherwise the first
/// one, which is also kubectl's default.
fn trainer(containers: &[Yaml]) -> usize {
    let named = |name: &&str| containers.iter().position(|one| one.text("name") == Some(name));
    let asks = |one: &Yaml| {
        let of = |kind: &&str| one.get("resources").and_then(|resources| resources.get(kind));
        ["limits", "requests"].iter().filter_map(of).any(|of| of.entries().any(|(name, _)| name.starts_with(DEVICES)))
    };
    TRAINERS.iter().find_map(named).or_else(|| containers.iter().position(asks)).unwrap_or(0)
}

/// Returns true if the whole text is one template placeholder, such as `{{ .Values.labels }}`.
fn is_whole_place(text: &str) -> bool {
    let text = text.trim();
    let ends = [("{{", "}}"), ("{%", "%}"), ("${", "}"), ("$(", ")")];
    ends.iter().any(|(start, end)| text.starts_with(start) && text.ends_with(end))
}
