//! Reader of JSON objects, field by field: records every problem with its path, and keeps fields that were not
//! requested.
//!
//! The module contains no rules of rank tables.

use super::Other;
use serde::Serializer;
use serde_json::Value;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::{self, Display};

/// Maximum number of problems that are reported per table; further ones are counted.
const PROBLEMS_MAX: usize = 100;

/// A value of a rank table that breaks a rule of the table's format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// JSON path of the wrong value in the rank table, for example `$.server_list[3].device[0].rank_id`.
    pub path: String,
    /// What is wrong with the value and, if there is one, the expected value. The text continues the sentence that
    /// starts with `path`.
    pub what: String,
}

impl Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.path, self.what)
    }
}

/// Error with all problems that a check found in a rank table, at least one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", told(.all, *.more))]
pub struct Problems {
    /// The first 100 problems of the rank table, in the order in which the check found them.
    pub all: Vec<Problem>,
    /// Number of problems of the rank table beyond those in `all`.
    pub more: usize,
}

fn told(all: &[Problem], more: usize) -> String {
    let mut parts: Vec<String> = all.iter().map(Problem::to_string).collect();
    if more > 0 {
        parts.push(format!("and {more} more problems"));
    }
    parts.join("; ")
}

impl Problems {
    pub(super) fn one(path: &str, what: String) -> Problems {
        Problems { all: vec![Problem { path: path.to_owned(), what }], more: 0 }
    }
}

/// Collector of problems.
#[derive(Debug, Default)]
pub(super) struct Found(RefCell<(Vec<Problem>, usize)>);

impl Found {
    pub(super) fn note(&self, at: Path<'_>, what: impl Into<String>) {
        let (all, more) = &mut *self.0.borrow_mut();
        if all.len() < PROBLEMS_MAX {
            all.push(Problem { path: at.to_string(), what: what.into() });
        } else {
            *more += 1;
        }
    }

    /// Returns the result if no problem was recorded.
    pub(super) fn unless_any<T>(self, made: Option<T>) -> Result<T, Problems> {
        let (all, more) = self.0.into_inner();
        made.filter(|_| all.is_empty()).ok_or(Problems { all, more })
    }
}

/// JSON path of a value: a linked list on the stack, which is formatted only for a message.
#[derive(Clone, Copy, Debug)]
pub(super) enum Path<'a> {
    Root,
    Field(&'a Path<'a>, &'a str),
    Item(&'a Path<'a>, usize),
}

impl Path<'_> {
    pub(super) const ROOT: &'static Path<'static> = &Path::Root;
}

impl Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Path::Root => f.write_str("$"),
            Path::Field(of, name) => write!(f, "{of}.{name}"),
            Path::Item(of, index) => write!(f, "{of}[{index}]"),
        }
    }
}

/// A JSON object that is being read. Reading a field removes it; the remaining fields have no rule.
#[derive(Debug)]
pub(super) struct Fields<'a> {
    map: Other,
    at: &'a Path<'a>,
    found: &'a Found,
}

impl<'a> Fields<'a> {
    pub(super) fn of(value: Value, at: &'a Path<'a>, found: &'a Found) -> Option<Fields<'a>> {
        match value {
            Value::Object(map) => Some(Fields { map, at, found }),
            other => {
                found.note(*at, format!("is {}, but must be an object", kind(&other)));
                None
            }
        }
    }

    pub(super) fn found(&self) -> &'a Found {
        self.found
    }

    /// Records a problem of a field.
    pub(super) fn wrong<T>(&self, name: &str, what: impl Into<String>) -> Option<T> {
        self.found.note(Path::Field(self.at, name), what);
        None
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.map.contains_key(name)
    }

    pub(super) fn is_text(&self, name: &str, text: &str) -> bool {
        self.map.get(name).and_then(Value::as_str) == Some(text)
    }

    /// Removes a required field from the JSON object and returns its value. Records a problem if the field is missing.
    fn take(&mut self, name: &str) -> Option<Value> {
        let value = self.map.remove(name);
        value.or_else(|| self.wrong(name, "is missing"))
    }

    pub(super) fn text(&mut self, name: &str) -> Option<String> {
        match self.take(name)? {
            Value::String(text) => Some(text),
            other => self.wrong(name, format!("is {}, but must be a string", kind(&other))),
        }
    }

    /// Reads an optional string. The outer `None` means that the field has another type.
    #[expect(clippy::option_option, reason = "an invalid field is a problem, a missing one is not")]
    pub(super) fn text_if_any(&mut self, name: &str) -> Option<Option<String>> {
        if self.has(name) { self.text(name).map(Some) } else { Some(None) }
    }

    /// Reads a number in quotes, the form of all numbers in rank tables before 2.0.
    pub(super) fn quoted(&mut self, name: &str) -> Option<u32> {
        let text = match self.take(name)? {
            Value::String(text) => text,
            other => return self.wrong(name, format!("is {}, but must be a number in quotes", kind(&other))),
        };
        let number = text.parse().ok().filter(|number: &u32| number.to_string() == text);
        number.or_else(|| self.wrong(name, format!("is {text:?}, but must be a number such as \"3\"")))
    }

    /// Reads an optional number in quotes. The outer `None` means that the field is invalid.
    #[expect(clippy::option_option, reason = "an invalid field is a problem, a missing one is not")]
    pub(super) fn quoted_if_any(&mut self, name: &str) -> Option<Option<u32>> {
        if self.has(name) { self.quoted(name).map(Some) } else { Some(None) }
    }

    /// Reads a number without quotes.
    pub(super) fn number(&mut self, name: &str) -> Option<u32> {
        let value = self.take(name)?;
        let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
        number.or_else(|| self.wrong(name, format!("is {}, but must be a number without quotes", shown(&value))))
    }

    /// Reads all items of a list. Returns `None` if one of them is invalid.
    pub(super) fn list<T>(&mut self, name: &str, read: impl Fn(Value, &Path<'_>) -> Option<T>) -> Option<Vec<T>> {
        let items = match self.take(name)? {
            Value::Array(items) => items,
            other => return self.wrong(name, format!("is {}, but must be a list", kind(&other))),
        };
        let at = Path::Field(self.at, name);
        let count = items.len();
        let read: Vec<T> =
            items.into_iter().enumerate().filter_map(|(index, item)| read(item, &Path::Item(&at, index))).collect();
        (read.len() == count).then_some(read)
    }

    /// Reads a list of objects.
    pub(super) fn objects<T>(&mut self, name: &str, read: impl Fn(Fields<'_>) -> Option<T>) -> Option<Vec<T>> {
        let found = self.found;
        self.list(name, |item, at| read(Fields::of(item, at, found)?))
    }

    pub(super) fn rest(self) -> Other {
        self.map
    }
}

/// Returns the name of a value's JSON type, for messages.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn shown(value: &Value) -> String {
    if value.is_number() { value.to_string() } else { kind(value).to_owned() }
}

/// Serializes a number in quotes.
pub(super) fn in_quotes<S: Serializer>(number: &u32, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(number)
}

/// Serializes an optional number in quotes.
pub(super) fn in_quotes_if_any<S: Serializer>(number: &Option<u32>, to: S) -> Result<S::Ok, S::Error> {
    match number {
        Some(number) => to.collect_str(number),
        None => to.serialize_none(),
    }
}

/// Records values that occur more than once, at the second place.
#[derive(Debug)]
pub(super) struct Unique<K>(BTreeMap<K, String>);

impl<K: Ord + Display> Unique<K> {
    pub(super) fn new() -> Unique<K> {
        Unique(BTreeMap::new())
    }

    pub(super) fn add(&mut self, key: K, at: Path<'_>, found: &Found) {
        if let Some(first) = self.0.get(&key) {
            found.note(at, format!("is {key}, the same as {first}"));
        } else {
            self.0.insert(key, at.to_string());
        }
    }
}

/// Records ranks that are not exactly 0 to N - 1, each once.
#[derive(Debug)]
pub(super) struct RanksOnce(Vec<bool>);

impl RanksOnce {
    pub(super) fn of(ranks: usize) -> RanksOnce {
        RanksOnce(vec![false; ranks])
    }

    pub(super) fn add(&mut self, rank: u32, at: Path<'_>, found: &Found) {
        let ranks = self.0.len();
        match self.0.get_mut(rank as usize) {
            None => found.note(at, format!("is {rank}, but the ranks of {ranks} devices are 0 to {}", ranks - 1)),
            Some(true) => found.note(at, format!("is {rank}, which occurs twice")),
            Some(seen) => *seen = true,
        }
    }
}
