//! The values of a dump, in one flat list. Containers refer to their elements by number.
//!
//! A value that the file refers to several times is stored once, so a small file cannot become a large tree, and no
//! function needs recursion.

use super::{DumpError, VALUES_MAX};
use std::sync::Arc;

/// Maximum number of fields of a dictionary among which a field is searched. An entry has about twenty.
const FIELDS_MAX: usize = 64;
/// Maximum length of a text in bytes. A longer one is cut.
const TEXT_BYTES_MAX: usize = 1_024;

/// Number of a value in [`Values`].
pub(super) type Id = u32;

/// A plain value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Arc<str>),
    /// A list or a tuple.
    List(Vec<Id>),
    Dict(Vec<(Id, Id)>),
}

/// All values of one dump.
#[derive(Debug, Default)]
pub(super) struct Values {
    values: Vec<Value>,
}

impl Values {
    /// Adds a value, and returns its number.
    pub(super) fn add(&mut self, value: Value) -> Result<Id, DumpError> {
        let too_many = || DumpError::TooLarge { what: "values", limit: VALUES_MAX as u64 };
        if self.values.len() >= VALUES_MAX {
            return Err(too_many());
        }
        let id = Id::try_from(self.values.len()).map_err(|_| too_many())?;
        self.values.push(value);
        Ok(id)
    }

    /// Returns a value; `None` for a number that was never given.
    pub(super) fn get(&self, id: Id) -> &Value {
        self.values.get(id as usize).unwrap_or(&Value::None)
    }

    pub(super) fn get_mut(&mut self, id: Id) -> Option<&mut Value> {
        self.values.get_mut(id as usize)
    }

    /// Returns the value under a name in a dictionary; `None` if it is absent, or if `id` is no dictionary.
    pub(super) fn field(&self, id: Id, name: &str) -> Option<Id> {
        let Value::Dict(pairs) = self.get(id) else { return None };
        let pairs = pairs.get(..pairs.len().min(FIELDS_MAX))?;
        let is_it = |(key, _): &&(Id, Id)| matches!(self.get(*key), Value::Text(text) if **text == *name);
        pairs.iter().rfind(is_it).map(|(_, value)| *value)
    }

    /// Returns the pairs of a dictionary with texts or whole numbers as keys, with the key as text.
    pub(super) fn pairs(&self, id: Option<Id>) -> impl Iterator<Item = (Arc<str>, Id)> + '_ {
        let pairs = match id.map(|id| self.get(id)) {
            Some(Value::Dict(pairs)) => &pairs[..],
            _ => &[],
        };
        pairs.iter().filter_map(|(key, value)| match self.get(*key) {
            Value::Text(text) => Some((Arc::clone(text), *value)),
            Value::Int(number) => Some((number.to_string().into(), *value)),
            _ => None,
        })
    }

    /// Returns the elements of a list; none if `id` is no list.
    pub(super) fn list(&self, id: Option<Id>) -> &[Id] {
        match id.map(|id| self.get(id)) {
            Some(Value::List(elements)) => elements,
            _ => &[],
        }
    }

    /// Returns a text, cut to [`TEXT_BYTES_MAX`]; a number is converted.
    pub(super) fn text(&self, id: Option<Id>) -> Option<Arc<str>> {
        match self.get(id?) {
            Value::Text(text) if text.len() > TEXT_BYTES_MAX => {
                let end = (0..=TEXT_BYTES_MAX).rfind(|at| text.is_char_boundary(*at))?;
                Some(text[..end].into())
            }
            Value::Text(text) => Some(Arc::clone(text)),
            Value::Int(number) => Some(number.to_string().into()),
            _ => None,
        }
    }

    /// Returns a whole number. JSON dumps contain some of them as texts.
    pub(super) fn int(&self, id: Option<Id>) -> Option<i64> {
        match self.get(id?) {
            Value::Int(number) => Some(*number),
            Value::Text(text) => text.trim().parse().ok(),
            _ => None,
        }
    }

    pub(super) fn float(&self, id: Option<Id>) -> Option<f64> {
        match self.get(id?) {
            Value::Float(number) => Some(*number).filter(|number| number.is_finite()),
            #[allow(clippy::cast_precision_loss, reason = "a duration in milliseconds is far below 2^53")]
            Value::Int(number) => Some(*number as f64),
            _ => None,
        }
    }

    pub(super) fn bool(&self, id: Option<Id>) -> Option<bool> {
        match self.get(id?) {
            Value::Bool(value) => Some(*value),
            _ => None,
        }
    }
}
