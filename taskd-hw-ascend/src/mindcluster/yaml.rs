//! YAML reader with limits, which returns a tree of strings. JSON is valid YAML, too.
//!
//! Scalars are returned as written and without type resolution: Kubernetes labels are strings, so `on` stays `on`,
//! whatever a version of YAML resolves it to.

use saphyr_parser::{Event, Parser, ScanError};
use std::collections::BTreeMap;

/// Maximum number of values per file, including those that aliases repeat.
const VALUES_MAX: usize = 100_000;
/// Maximum nesting depth of lists and maps.
const DEPTH_MAX: usize = 64;
/// The merge key, whose maps are included into the map that contains it.
const MERGE: &str = "<<";

/// One value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Yaml {
    Text(String),
    List(Vec<Yaml>),
    /// A map of keys to values. If a key occurs twice, the last value is kept.
    Map(BTreeMap<String, Yaml>),
}

impl Yaml {
    /// Returns the value of a key if this is a map that contains it.
    pub(super) fn get(&self, key: &str) -> Option<&Yaml> {
        if let Yaml::Map(entries) = self { entries.get(key) } else { None }
    }

    /// Returns the value of a key if it is a string.
    pub(super) fn text(&self, key: &str) -> Option<&str> {
        match self.get(key) {
            Some(Yaml::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// Returns the entries of a map, sorted by key; empty for other values.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&str, &Yaml)> {
        let entries = if let Yaml::Map(entries) = self { Some(entries) } else { None };
        entries.into_iter().flatten().map(|(key, value)| (key.as_str(), value))
    }

    /// Returns the items of a list; empty for other values.
    pub(super) fn items(&self) -> &[Yaml] {
        if let Yaml::List(items) = self { items } else { &[] }
    }

    fn values(&self) -> usize {
        1 + match self {
            Yaml::Text(_) => 0,
            Yaml::List(items) => items.iter().map(Yaml::values).sum(),
            Yaml::Map(entries) => entries.values().map(Yaml::values).sum(),
        }
    }

    fn depth(&self) -> usize {
        1 + match self {
            Yaml::Text(_) => 0,
            Yaml::List(items) => items.iter().map(Yaml::depth).max().unwrap_or(0),
            Yaml::Map(entries) => entries.values().map(Yaml::depth).max().unwrap_or(0),
        }
    }
}

/// Reason why a text could not be parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NoYaml {
    /// Line number, from 1.
    pub(super) line: usize,
    pub(super) what: String,
    /// True if the problem is a template placeholder; `what` is then the line that contains it.
    pub(super) is_template: bool,
}

/// Markers of template placeholders of Helm and Jinja, as they occur outside of values.
const PLACES: [&str; 2] = ["{{", "{%"];

/// Parses all documents of a text.
pub(super) fn read(text: &str) -> Result<Vec<Yaml>, NoYaml> {
    let mut tree = Tree::default();
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error: ScanError| not_read(text, &error))?;
        let line = span.start.line();
        tree.take(event).map_err(|what| NoYaml { line, what, is_template: false })?;
        if tree.has_map_as_key {
            // An unquoted `{{` parses as a map whose only key is a map.
            return Err(NoYaml { line, what: at_line(text, line), is_template: true });
        }
    }
    Ok(tree.documents)
}

/// Converts an error of the YAML parser. If the text contains template placeholders, they are reported as the cause.
fn not_read(text: &str, error: &ScanError) -> NoYaml {
    let place = text.lines().position(|line| PLACES.iter().any(|mark| line.contains(mark)));
    match place {
        Some(index) => NoYaml { line: index + 1, what: at_line(text, index + 1), is_template: true },
        None => NoYaml { line: error.marker().line(), what: format!("no YAML: {}", error.info()), is_template: false },
    }
}

fn at_line(text: &str, line: usize) -> String {
    text.lines().nth(line.saturating_sub(1)).unwrap_or_default().trim().to_owned()
}

/// A list or map that is being read.
struct Open {
    anchor: usize,
    value: Yaml,
    /// Key of the map whose value comes next; `None` if no value is awaited.
    key: Option<String>,
}

#[derive(Default)]
struct Tree {
    documents: Vec<Yaml>,
    open: Vec<Open>,
    anchors: BTreeMap<usize, Yaml>,
    values: usize,
    has_map_as_key: bool,
}

impl Tree {
    fn take(&mut self, event: Event<'_>) -> Result<(), String> {
        match event {
            Event::Scalar(text, _, anchor, _) => self.add(anchor, Yaml::Text(text.into_owned())),
            Event::SequenceStart(anchor, _) => self.begin(anchor, Yaml::List(Vec::new())),
            Event::MappingStart(anchor, _) => self.begin(anchor, Yaml::Map(BTreeMap::new())),
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(Open { anchor, value, .. }) => self.add(anchor, value),
                None => Err("an end without a start".into()),
            },
            Event::Alias(anchor) => {
                let value = self.anchors.get(&anchor).cloned().ok_or("an alias of a value that contains it")?;
                self.count(value.values())?;
                self.is_not_too_deep(value.depth())?;
                self.put(value);
                Ok(())
            }
            Event::DocumentStart(_) => {
                self.anchors.clear();
                Ok(())
            }
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => Ok(()),
        }
    }

    fn begin(&mut self, anchor: usize, value: Yaml) -> Result<(), String> {
        self.is_not_too_deep(1)?;
        self.open.push(Open { anchor, value, key: None });
        Ok(())
    }

    fn is_not_too_deep(&self, further: usize) -> Result<(), String> {
        let is_within = self.open.len() + further <= DEPTH_MAX;
        if is_within { Ok(()) } else { Err(format!("lists and maps are nested deeper than {DEPTH_MAX}")) }
    }

    fn count(&mut self, values: usize) -> Result<(), String> {
        self.values += values;
        if self.values <= VALUES_MAX { Ok(()) } else { Err(format!("there are more than {VALUES_MAX} values")) }
    }

    /// Adds a completed value to the list, map or document that is being read.
    fn add(&mut self, anchor: usize, value: Yaml) -> Result<(), String> {
        self.count(1)?;
        if anchor > 0 {
            self.count(value.values())?; // the anchor keeps another copy
            self.anchors.insert(anchor, value.clone());
        }
        self.put(value);
        Ok(())
    }

    fn put(&mut self, value: Yaml) {
        let Some(open) = self.open.last_mut() else { return self.documents.push(value) };
        match (&mut open.value, open.key.take()) {
            (Yaml::Text(_), _) => {} // never opened
            (Yaml::List(items), _) => items.push(value),
            (Yaml::Map(_), None) => {
                self.has_map_as_key |= matches!(value, Yaml::Map(_));
                // A key that is not a string is never looked up.
                open.key = Some(if let Yaml::Text(key) = value { key } else { String::new() });
            }
            (Yaml::Map(entries), Some(key)) if key == MERGE => merge(entries, value),
            (Yaml::Map(entries), Some(key)) => drop(entries.insert(key, value)),
        }
    }
}

/// Adds the entries that a merge key (`<<`) has as its value, a map or a list of maps, without replacing present
/// entries.
fn merge(entries: &mut BTreeMap<String, Yaml>, value: Yaml) {
    let maps = if let Yaml::List(items) = value { items } else { vec![value] };
    for map in maps {
        let Yaml::Map(new) = map else { continue };
        for (key, value) in new {
            entries.entry(key).or_insert(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_are_what_is_written() {
        let text = "a: on\nb: \"off\"\nc: 3\nd: ~\ne: |\n  x\n  y\nf: {g: [1, two]}\n---\nlast: 'it''s'\n";
        let documents = read(text).expect("it is YAML");
        let first = &documents[0];
        let texts: Vec<_> = ["a", "b", "c", "d", "e"].iter().map(|key| first.text(key).unwrap_or("?")).collect();
        assert_eq!(texts, ["on", "off", "3", "~", "x\ny\n"]);
        let list = first.get("f").and_then(|f| f.get("g")).map(Yaml::items);
        assert_eq!(list, Some([Yaml::Text("1".into()), Yaml::Text("two".into())].as_slice()));
        assert_eq!(documents[1].text("last"), Some("it's"));
    }

    #[test]
    fn aliases_and_merged_maps_are_what_they_stand_for() {
        let text = "base: &base {a: 1, b: 2}\nof:\n  <<: *base\n  b: 3\nlist:\n- *base\n";
        let documents = read(text).expect("it is YAML");
        let of = documents[0].get("of").expect("it is there");
        assert_eq!((of.text("a"), of.text("b")), (Some("1"), Some("3")));
        assert_eq!(documents[0].get("list").and_then(|list| list.items()[0].text("b")), Some("2"));
    }

    #[test]
    fn yaml_beyond_size_or_depth_bounds_is_refused() {
        let mut laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for n in 1..9 {
            let many = vec![format!("*a{}", n - 1); 10].join(", ");
            laughs.push_str(&format!("a{n}: &a{n} [{many}]\n"));
        }
        let error = read(&laughs).expect_err("a billion");
        assert_eq!(error.what, "there are more than 100000 values");
        let deep = format!("{}{}", "- ".repeat(70), "x");
        assert_eq!(read(&deep).expect_err("too deep").what, "lists and maps are nested deeper than 64");
        assert!(read("a: &a [*a]").is_err(), "an alias of itself");
        let error = read("a: 1\nb: [1, 2\nc: 3\n").expect_err("no YAML");
        assert!(error.what.starts_with("no YAML: ") && error.line >= 2, "{error:?}");
    }
}
