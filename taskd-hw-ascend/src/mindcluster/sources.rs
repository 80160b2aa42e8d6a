//! Collects the settings of all sources of a job's configuration. Decisions are made after all of them were added.

use super::decision::{self, Decided};
use super::job_file::NoJob;
use super::setting::Warnings;
use super::{
    ConfigFileError, Configured, Framework, Key, Setting, Source, WarningKind, downward, environment, file, job_file,
};
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use taskd_core::job::{JobSpec, Name};
use taskd_core::recover::RecoveryStrategy;

/// Collection of the sources of a MindCluster job's configuration. Sources of different kinds may be added in any
/// order, since the kind of a [source](Source) determines its precedence. Of two files of one kind, the file that was
/// added first takes precedence.
#[derive(Clone, Debug)]
pub struct Sources {
    settings: Vec<Setting>,
    arguments: Vec<String>,
    framework: Option<Framework>,
    of_file: Option<Framework>,
    added: Vec<Name>,
    has_checkpoint_dir: bool,
    /// Variables whose values are known only inside the pod, each with its path in the job file.
    elsewhere: Vec<(Key, String)>,
    /// Settings of containers that do not train, each with the path of the training container in the job file.
    beside: Vec<(Setting, String)>,
}

impl Sources {
    /// Creates a collection whose first source is the job's specification. `strategies` are the recovery strategies
    /// that the job's runtime will have.
    #[must_use]
    pub fn of(spec: &JobSpec, strategies: &[Box<dyn RecoveryStrategy>]) -> Sources {
        let mut sources = Sources {
            settings: Vec::new(),
            arguments: Vec::new(),
            framework: None,
            of_file: None,
            added: strategies.iter().map(|strategy| strategy.name()).collect(),
            has_checkpoint_dir: spec.policy.checkpoint_dir.is_some(),
            elsewhere: Vec::new(),
            beside: Vec::new(),
        };
        for (of, at) in [(&spec.annotations, "annotations"), (&spec.worker.env, "worker.env")] {
            for (name, value) in of {
                let setting = Key::named(name).map(|key| Setting::new(key, value, &Source::JobSpec).at(at));
                sources.settings.extend(setting);
            }
        }
        sources.arguments_of(spec.worker.argv.clone(), &Source::JobSpec, "worker.argv");
        sources
    }

    /// Adds a job file to the sources, in the form in which it is submitted to the cluster.
    ///
    /// # Errors
    /// Returns [`ConfigFileError`] if the file cannot be read, is empty or larger than
    /// [`FILE_BYTES_MAX`](super::FILE_BYTES_MAX), is neither YAML nor JSON, is no job, or contains template
    /// placeholders.
    pub fn job_file(self, path: impl AsRef<Path>) -> Result<Sources, ConfigFileError> {
        let path = path.as_ref();
        let text = file::text(path)?;
        self.job_text(path, &text)
    }

    /// Adds the text of a job file to the sources; messages use `name` as the path of the file.
    ///
    /// # Errors
    /// Returns [`ConfigFileError`] if the text is empty or longer than [`FILE_BYTES_MAX`](super::FILE_BYTES_MAX), is
    /// neither YAML nor JSON, is no job, or contains template placeholders.
    pub fn job_text(mut self, name: impl AsRef<Path>, text: &str) -> Result<Sources, ConfigFileError> {
        let path = Arc::new(name.as_ref().to_owned());
        if text.len() as u64 > file::FILE_BYTES_MAX {
            return Err(ConfigFileError::TooLong { path: path.to_path_buf() });
        }
        if let Some(error) = file::not_text(&path, text.as_bytes()) {
            return Err(error);
        }
        let source = Source::JobFile(Arc::clone(&path));
        let read = job_file::read(text, &source);
        let read = read.map_err(|why| match why {
            NoJob::Wrong { line, what } => ConfigFileError::NoJob { path: path.to_path_buf(), line, what },
            NoJob::Unrendered { at, text } => ConfigFileError::Unrendered { path: path.to_path_buf(), at, text },
        })?;
        self.settings.extend(read.settings);
        self.arguments_of(read.arguments, &source, "arguments of containers");
        self.of_file = self.of_file.or(read.framework);
        self.elsewhere.extend(read.elsewhere);
        self.beside.extend(read.beside);
        Ok(self)
    }

    /// Adds a downward-API file of Kubernetes to the sources. The file contains all labels or all annotations of a pod,
    /// or the value of a single one.
    ///
    /// # Errors
    /// Returns [`ConfigFileError`] if the file cannot be read, is larger than
    /// [`FILE_BYTES_MAX`](super::FILE_BYTES_MAX), or does not have the format of a downward-API file. An empty file is
    /// no error.
    pub fn downward_file(self, path: impl AsRef<Path>) -> Result<Sources, ConfigFileError> {
        let path = path.as_ref();
        let text = file::text(path)?;
        self.downward_text(path, &text)
    }

    /// Adds the text of a downward-API file to the sources. Messages use `name` as the path of the file; if the text is
    /// only a value, the file name in `name` is its key.
    ///
    /// # Errors
    /// Returns [`ConfigFileError`] if the text does not have the format of a downward-API file. An empty text is no
    /// error.
    pub fn downward_text(mut self, name: impl AsRef<Path>, text: &str) -> Result<Sources, ConfigFileError> {
        let path = Arc::new(name.as_ref().to_owned());
        let mark = file::not_text(&path, text.as_bytes());
        if let Some(error) = mark.filter(|error| !file::is_empty(error)) {
            return Err(error);
        }
        let source = Source::Downward(Arc::clone(&path));
        let read = downward::read(text, path.file_name().and_then(|name| name.to_str()), &source);
        let read = read.map_err(|(line, what)| ConfigFileError::NoDownward { path: path.to_path_buf(), line, what })?;
        self.settings.extend(read);
        Ok(self)
    }

    /// Adds environment variables to the sources, usually those of this process: `std::env::vars_os()`. Bytes of a
    /// value that are not UTF-8 are replaced by U+FFFD.
    #[must_use]
    pub fn environment<K: Into<OsString>, V: Into<OsString>>(
        mut self,
        variables: impl IntoIterator<Item = (K, V)>,
    ) -> Sources {
        for (name, value) in variables {
            if let Some(key) = name.into().to_str().and_then(Key::named) {
                let value = value.into();
                self.settings.push(Setting::new(key, &value.to_string_lossy(), &Source::Environment));
            }
        }
        self
    }

    /// Sets the framework of the ranks' programs. Default: the label `framework` of a job file.
    #[must_use]
    pub const fn framework(mut self, framework: Framework) -> Sources {
        self.framework = Some(framework);
        self
    }

    /// Evaluates all sources and returns the resulting configuration.
    #[must_use]
    pub fn configured(self) -> Configured {
        let Sources { mut settings, arguments, framework, of_file, added, has_checkpoint_dir, elsewhere, beside } =
            self;
        let (framework, mut warnings) = (framework.or(of_file), Warnings::default());
        settings.sort_by_key(rank); // stable: the order of reading inside of a source
        let decided = Decided::of(settings, &mut warnings);
        decision::check_values(&decided, &mut warnings);
        let wanted = decision::wanted(&decided, &added, &mut warnings);
        let off = decision::switched_off(&decided, wanted.is_some());
        let forbidden = decision::forbidden(&decided, wanted.as_ref(), &off, &added);
        let operator_retry = decision::operator_retry(&decided, &mut warnings);
        let taken = wanted.as_ref().filter(|_| off.is_empty());
        let environment = environment::of_ranks(&decided, taken, framework, &mut warnings);
        if let Some(wanted) = taken {
            environment::check_needs(&decided, wanted, framework, &arguments, &mut warnings);
            let missing =
                wanted.named.asked.iter().flat_map(|asked| asked.strategies().iter().map(move |name| (asked, name)));
            for (asked, name) in missing.filter(|(_, name)| !added.contains(name)) {
                let text = format!("{} is allowed, but the runtime has no strategy {name}", asked.name());
                warnings.add(WarningKind::NotAdded, text);
            }
            if wanted.named.asked.contains(&super::Asked::Dump) && !has_checkpoint_dir {
                let text =
                    "dump is allowed, but policy.checkpoint_dir names no directory for its checkpoints: dump refuses";
                warnings.add(WarningKind::Hinders, text);
            }
        }
        no_effect(&decided, &mut warnings);
        for (key, at) in elsewhere.into_iter().filter(|(key, _)| decided.get(*key).is_none()) {
            let text = format!("{key} has no value in the job file ({at}): the value is known only where the job runs");
            warnings.add(WarningKind::NoEffect, text);
        }
        for (setting, trains) in beside {
            let text = format!("{setting}, which has no effect: the container that trains is {trains}");
            warnings.add(WarningKind::NoEffect, text);
        }
        let recoveries = decision::recoveries(&decided);
        Configured { decided, wanted, off, forbidden, recoveries, operator_retry, environment, warnings }
    }

    /// Adds the settings of torchrun's two keys, and the script's flags, from command-line arguments.
    fn arguments_of(&mut self, arguments: Vec<String>, source: &Source, at: &str) {
        let words: Vec<&str> = arguments.iter().flat_map(|argument| environment::words(argument)).collect();
        for (index, word) in words.iter().enumerate() {
            let Some(option) = word.strip_prefix("--") else { continue };
            let (name, value) = option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
            let Some(key @ (Key::MaxRestarts | Key::MonitorInterval)) = Key::named(name) else { continue };
            let value = value.or_else(|| words.get(index + 1).copied()).unwrap_or("");
            self.settings.push(Setting::new(key, value, source).at(at));
        }
        self.arguments.extend(arguments);
    }
}

/// Returns the precedence of a setting's source, 0 for the highest; files of one kind apply in the order in which they
/// were added.
fn rank(setting: &Setting) -> u8 {
    match setting.source {
        Source::JobSpec => 0,
        Source::JobFile(_) => 1,
        Source::Downward(_) => 2,
        Source::Environment => 3,
    }
}

/// Adds warnings for settings that never have an effect in taskd.
fn no_effect(decided: &Decided, warnings: &mut Warnings) {
    if let Some(setting) = decided.get(Key::MonitorInterval) {
        let text = format!("{setting}, which has no effect here: an exit is reported at once");
        warnings.add(WarningKind::NoEffect, text);
    }
    if let Some(setting) = decided.get(Key::SubHealthyStrategy).filter(|setting| setting.value != "ignore") {
        let text = format!("{setting}, which has no effect here: taskd does not act on sub-healthy devices");
        warnings.add(WarningKind::NoEffect, text);
    }
}
