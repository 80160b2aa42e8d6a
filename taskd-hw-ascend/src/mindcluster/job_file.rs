//! A job as it is given to the cluster: labels, annotations, and what its containers are started with.
//!
//! It looks for the parts that all kinds of jobs have in common, wherever they stand: `metadata.labels`, `metadata.annotations`,
//! `containers[].env`, `.command` and `.args`. What stands further out counts first. It judges no value.

pub(super) use super::yaml::NoYaml;
use super::yaml::{self, Yaml};
use super::{Framework, Key, Setting, Source};

/// What a job's file says.
#[derive(Clone, Debug, Default)]
pub(super) struct JobFile {
    /// What counts first stands first.
    pub(super) settings: Vec<Setting>,
    pub(super) arguments: Vec<String>,
    pub(super) framework: Option<Framework>,
    /// Variables that are set only where the job runs.
    pub(super) elsewhere: Vec<(Key, String)>,
}

/// Reads a text in YAML or JSON.
pub(super) fn read(text: &str, source: &Source) -> Result<JobFile, NoYaml> {
    let documents = yaml::read(text)?;
    let mut walk = Walk { source, found: Vec::new(), file: JobFile::default() };
    for (index, document) in documents.iter().enumerate() {
        let root = if documents.len() == 1 { "$".to_owned() } else { format!("${}", index + 1) };
        walk.value(document, &root, 0);
    }
    let Walk { mut found, mut file, .. } = walk;
    found.sort_by_key(|(depth, _)| *depth); // stable: what stands first counts first
    file.settings = found.into_iter().map(|(_, setting)| setting).collect();
    Ok(file)
}

struct Walk<'a> {
    source: &'a Source,
    found: Vec<(usize, Setting)>,
    file: JobFile,
}

impl Walk<'_> {
    /// Trees are bounded in depth by their reader.
    fn value(&mut self, value: &Yaml, at: &str, depth: usize) {
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

    fn metadata(&mut self, metadata: &Yaml, at: &str, depth: usize) {
        for kind in ["labels", "annotations"] {
            for (name, value) in metadata.get(kind).into_iter().flat_map(Yaml::entries) {
                let Yaml::Text(value) = value else { continue };
                self.setting(name, value, format!("{at}.{kind}"), depth);
                if name == "framework" && self.file.framework.is_none() {
                    self.file.framework = Framework::named(value);
                }
            }
        }
    }

    fn containers(&mut self, containers: &Yaml, at: &str, depth: usize) {
        for (index, container) in containers.items().iter().enumerate() {
            let at = format!("{at}[{index}]");
            for variable in container.get("env").map_or(&[][..], Yaml::items) {
                let Some(name) = variable.text("name") else { continue };
                match (variable.text("value"), Key::named(name)) {
                    (Some(value), _) => self.setting(name, value, format!("{at}.env"), depth),
                    (None, Some(key)) if variable.get("valueFrom").is_some() => {
                        self.file.elsewhere.push((key, format!("{at}.env")));
                    }
                    (None, _) => {}
                }
            }
            for part in ["command", "args"] {
                let texts = container.get(part).map_or(&[][..], Yaml::items);
                let texts = texts.iter().filter_map(|text| if let Yaml::Text(text) = text { Some(text) } else { None });
                self.file.arguments.extend(texts.cloned());
            }
        }
    }

    fn setting(&mut self, name: &str, value: &str, at: String, depth: usize) {
        if let Some(key) = Key::named(name) {
            self.found.push((depth, Setting::new(key, value, self.source).at(at)));
        }
    }
}
