//! As much of JSON Schema (2020-12) as our schemas use. A keyword that it does not know is an error, not a pass.

use serde_json::{Map, Value};

/// Checks a document; an error states where and why.
pub(crate) fn check(schema: &Value, document: &Value) -> Result<(), String> {
    Validator { root: schema }.check(schema, document, "")
}

struct Validator<'a> {
    root: &'a Value,
}

impl Validator<'_> {
    fn check(&self, schema: &Value, it: &Value, place: &str) -> Result<(), String> {
        let schema = match schema {
            Value::Bool(true) => return Ok(()),
            Value::Object(schema) => schema,
            other => return Err(format!("{place}: no schema: {other}")),
        };
        schema.iter().try_for_each(|(keyword, rule)| self.rule(keyword, rule, schema, it, place))
    }

    fn rule(
        &self,
        keyword: &str,
        rule: &Value,
        schema: &Map<String, Value>,
        it: &Value,
        at: &str,
    ) -> Result<(), String> {
        let holds = match keyword {
            "$schema" | "$defs" | "title" | "description" | "default" | "format" => true,
            "$ref" => {
                let pointer = rule.as_str().and_then(|r| r.strip_prefix('#')).ok_or("a local reference")?;
                return self.check(self.root.pointer(pointer).ok_or_else(|| format!("no {pointer}"))?, it, at);
            }
            "type" => match rule {
                Value::Array(types) => types.iter().any(|one| is_a(it, one)),
                one => is_a(it, one),
            },
            "const" => it == rule,
            "enum" => rule.as_array().is_some_and(|values| values.contains(it)),
            "minimum" => it.as_f64().is_none_or(|n| Some(n) >= rule.as_f64()),
            "maximum" => it.as_f64().is_none_or(|n| Some(n) <= rule.as_f64()),
            "pattern" => it.as_str().is_none_or(|text| matches(rule, text)),
            "uniqueItems" => it.as_array().is_none_or(|all| all.iter().enumerate().all(|(n, a)| !all[..n].contains(a))),
            "minItems" => it.as_array().is_none_or(|all| Some(all.len() as u64) >= rule.as_u64()),
            "maxItems" => it.as_array().is_none_or(|all| Some(all.len() as u64) <= rule.as_u64()),
            "required" => it.as_object().is_none_or(|it| {
                rule.as_array().is_some_and(|all| all.iter().all(|key| it.contains_key(key.as_str().unwrap_or(""))))
            }),
            "oneOf" => self.fitting(rule, it) == 1,
            "anyOf" => self.fitting(rule, it) > 0,
            "allOf" => Some(self.fitting(rule, it)) == rule.as_array().map(Vec::len),
            "items" => return each(it.as_array(), |n, one| self.check(rule, one, &format!("{at}/{n}"))),
            "prefixItems" => {
                return each(it.as_array(), |n, one| self.check(&rule[n], one, &format!("{at}/{n}")));
            }
            "properties" => {
                let Some(it) = it.as_object() else { return Ok(()) };
                return it.iter().try_for_each(|(key, value)| match rule.get(key) {
                    Some(rule) => self.check(rule, value, &format!("{at}/{key}")),
                    None => Ok(()),
                });
            }
            "additionalProperties" | "patternProperties" => return self.others(keyword, rule, schema, it, at),
            other => return Err(format!("{at}: the validator does not know {other}")),
        };
        if holds { Ok(()) } else { Err(format!("{at}: {it} is not of {keyword} {rule}")) }
    }

    fn fitting(&self, rule: &Value, it: &Value) -> usize {
        rule.as_array().map_or(0, |all| all.iter().filter(|one| self.check(one, it, "").is_ok()).count())
    }

    /// Properties that are not named.
    fn others(
        &self,
        keyword: &str,
        rule: &Value,
        schema: &Map<String, Value>,
        it: &Value,
        at: &str,
    ) -> Result<(), String> {
        let Some(it) = it.as_object() else { return Ok(()) };
        let named = |key: &str| schema.get("properties").is_some_and(|p| p.get(key).is_some());
        let patterns = schema.get("patternProperties").and_then(Value::as_object);
        let pattern =
            |key: &str| patterns.and_then(|all| all.iter().find(|(p, _)| matches(&Value::from(p.as_str()), key)));
        it.iter().filter(|(key, _)| !named(key)).try_for_each(|(key, value)| {
            let place = format!("{at}/{key}");
            match (keyword, pattern(key)) {
                ("patternProperties", Some((_, rule))) => self.check(rule, value, &place),
                ("additionalProperties", None) if *rule == Value::Bool(false) => Err(format!("{place}: not known")),
                ("additionalProperties", None) => self.check(rule, value, &place),
                _ => Ok(()),
            }
        })
    }
}

fn each(all: Option<&Vec<Value>>, check: impl Fn(usize, &Value) -> Result<(), String>) -> Result<(), String> {
    all.map_or(Ok(()), |all| all.iter().enumerate().try_for_each(|(n, one)| check(n, one)))
}

fn is_a(it: &Value, kind: &Value) -> bool {
    match kind.as_str() {
        Some("null") => it.is_null(),
        Some("boolean") => it.is_boolean(),
        Some("integer") => it.is_i64() || it.is_u64(),
        Some("number") => it.is_number(),
        Some("string") => it.is_string(),
        Some("array") => it.is_array(),
        Some("object") => it.is_object(),
        _ => false,
    }
}

/// The patterns that our schemas have.
fn matches(pattern: &Value, text: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    match pattern.as_str() {
        Some("^.+:[0-9]+$") => text.rsplit_once(':').is_some_and(|(kind, index)| !kind.is_empty() && digits(index)),
        Some("^\\d+$") => digits(text),
        other => panic!("the validator does not know the pattern {other:?}"),
    }
}
