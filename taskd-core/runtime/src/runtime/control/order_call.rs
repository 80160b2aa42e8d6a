//! Orders on the control socket: the words and arguments of [`Order`], in the flat form of the other calls.
//!
//! Nothing here names an order, so a new one needs no change here, except for words of earlier versions.

use crate::kernel::Order;
use serde::ser::{Error, SerializeMap};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

/// The calls that give no order.
pub(super) const OTHER_CALLS: [&str; 7] =
    ["status", "explain", "events", "report_fault", "switch_trace", "trace_status", "detach"];

/// An operator's order and its reason, in JSON: `{"do":"drain","node":"n1","reason":"a fan is broken"}`. The value
/// of `do` is the order's name, with `_` for `-`; the other members are the order's arguments.
#[derive(Clone, Debug, PartialEq)]
pub struct OrderCall {
    /// The operator's order, with its arguments.
    pub order: Order,
    /// Reason for the order, which the log records. Empty by default.
    pub reason: String,
}

impl OrderCall {
    /// Reads the arguments of the order that `word` names. Arguments include the reason.
    ///
    /// # Errors
    /// The problem, for the client.
    pub(super) fn read(word: &str, mut arguments: Map<String, Value>) -> Result<OrderCall, String> {
        let reason = match arguments.remove("reason") {
            None => String::new(),
            Some(Value::String(reason)) => reason,
            Some(wrong) => return Err(format!("the reason {wrong} is not a text")),
        };
        if word == "stop" {
            read_now(&mut arguments)?;
        }
        // Serde's form of an order without arguments is its name, of any other one an object with one member.
        if word.contains('-') {
            return Err(unknown(word));
        }
        let name = word.replace('_', "-");
        let order = match serde_json::from_value(json!(name)) {
            Ok(order) => order,
            Err(error) if error.to_string().starts_with("unknown variant") => return Err(unknown(word)),
            Err(_) => serde_json::from_value(json!({ name: arguments.clone() })).map_err(|e| e.to_string())?,
        };
        let (_, known) = words_of(&order).map_err(|e| e.to_string())?;
        match arguments.keys().find(|given| !known.contains_key(*given)) {
            Some(unknown) => Err(format!("unknown field `{unknown}` of `{word}`")),
            None => Ok(OrderCall { order, reason }),
        }
    }
}

/// Reads `now`, with which an operator, and version 1 of the protocol, stops the job without a grace period.
fn read_now(arguments: &mut Map<String, Value>) -> Result<(), String> {
    match arguments.remove("now") {
        Some(Value::Bool(true)) => drop(arguments.insert("grace".to_owned(), json!(0))),
        Some(Value::Bool(false)) | None => {}
        Some(wrong) => return Err(format!("`now` is {wrong}, and must be true or false")),
    }
    Ok(())
}

/// Returns the error of an unknown word, with the words of all calls. Serde's error about no name at all lists the orders.
fn unknown(word: &str) -> String {
    let text = serde_json::from_value::<Order>(json!("")).map_or_else(|e| e.to_string(), |order| order.to_string());
    let orders = text.split_once("expected one of ").map_or("", |(_, orders)| orders).replace('-', "_");
    let others: Vec<String> = OTHER_CALLS.iter().map(|call| format!("`{call}`")).collect();
    format!("unknown variant `{word}`, expected one of {}, {orders}", others.join(", "))
}

/// Returns the socket's word of an order, and its arguments.
fn words_of(order: &Order) -> Result<(String, Map<String, Value>), serde_json::Error> {
    let (name, arguments) = match serde_json::to_value(order)? {
        Value::Object(object) => match object.into_iter().next() {
            Some((name, Value::Object(arguments))) => (name, arguments),
            _ => return Err(Error::custom("an order has named arguments")),
        },
        Value::String(name) => (name, Map::new()),
        _ => return Err(Error::custom("an order has a name")),
    };
    Ok((name.replace('-', "_"), arguments))
}

impl Serialize for OrderCall {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (word, arguments) = words_of(&self.order).map_err(S::Error::custom)?;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("do", &word)?;
        for (name, value) in &arguments {
            map.serialize_entry(name, value)?;
        }
        map.serialize_entry("reason", &self.reason)?;
        map.end()
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for OrderCall {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "OrderCall".into()
    }

    /// Derived from the schema of [`Order`]: each order becomes an object with `do` and `reason` beside its arguments.
    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let orders = Order::json_schema(generator);
        let each = orders.get("oneOf").and_then(Value::as_array).into_iter().flatten();
        let calls: Vec<Value> = each.flat_map(call_schemas).collect();
        schemars::json_schema!({ "oneOf": calls })
    }
}

/// Returns the schemas of the calls for one part of the schema of [`Order`]: one order with arguments, or several
/// without.
#[cfg(feature = "schema")]
fn call_schemas(order: &Value) -> Vec<Value> {
    let description = &order["description"];
    let call = |name: &str, arguments: Option<&Value>| {
        let mut properties = arguments.and_then(|a| a["properties"].as_object()).cloned().unwrap_or_default();
        properties.insert("do".to_owned(), json!({ "type": "string", "const": name.replace('-', "_") }));
        let reason = "Reason that the operator gives for the order, for the log.";
        properties.insert("reason".to_owned(), json!({ "type": "string", "default": "", "description": reason }));
        let mut required = vec![json!("do")];
        required.extend(arguments.and_then(|a| a["required"].as_array()).into_iter().flatten().cloned());
        json!({ "description": description, "type": "object", "properties": properties, "required": required })
    };
    if let Some(arguments) = order["properties"].as_object() {
        let orders = arguments.iter().filter(|(name, _)| !OTHER_CALLS.contains(&name.replace('-', "_").as_str()));
        return orders.map(|(name, arguments)| call(name, Some(arguments))).collect();
    }
    let names = order["enum"].as_array().into_iter().flatten().chain(order.get("const"));
    names.filter_map(|name| Some(call(name.as_str()?, None))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::protocol::RuntimeCall;
    use super::*;

    fn parsed(text: &str) -> Result<OrderCall, String> {
        let mut members: Map<String, Value> = serde_json::from_str(text).expect("an object");
        let Some(Value::String(word)) = members.remove("do") else { panic!("it names an order") };
        OrderCall::read(&word, members)
    }

    #[test]
    fn words_of_other_calls_are_those_of_the_protocol() {
        let error = serde_json::from_value::<RuntimeCall>(json!({ "do": "?" })).unwrap_err().to_string();
        let words: Vec<String> = OTHER_CALLS.iter().map(|word| format!("`{word}`")).collect();
        assert!(error.ends_with(&format!("expected one of {}", words.join(", "))), "{error}");
    }

    #[test]
    fn an_order_is_read_back_as_it_was_written() {
        for text in [
            r#"{"do":"drain","node":"n1","reason":"fan"}"#,
            r#"{"do":"pause","reason":""}"#,
            r#"{"do":"restart","ranks":[1,2],"reason":""}"#,
            r#"{"do":"stop","grace":"2s","reason":"maintenance"}"#,
        ] {
            let call = parsed(text).expect(text);
            assert_eq!(serde_json::to_string(&call).expect(text), text);
        }
    }

    #[test]
    fn words_of_earlier_versions_are_read() {
        for (earlier, now) in [
            (r#"{"do":"readmit","node":"n1"}"#, r#"{"do":"uncordon","node":"n1"}"#),
            (r#"{"do":"dump_now"}"#, r#"{"do":"checkpoint"}"#),
            (r#"{"do":"checkpoint_now"}"#, r#"{"do":"checkpoint"}"#),
            (r#"{"do":"stop","now":true}"#, r#"{"do":"stop","grace":0}"#),
            (r#"{"do":"stop","now":false}"#, r#"{"do":"stop"}"#),
        ] {
            assert_eq!(parsed(earlier), parsed(now));
            assert!(parsed(now).is_ok());
        }
    }

    #[test]
    fn a_wrong_order_is_refused_with_the_reason() {
        for (text, sentence) in [
            (r#"{"do":"drain"}"#, "missing field `node`"),
            (r#"{"do":"pause","node":"n1"}"#, "unknown field `node` of `pause`"),
            (r#"{"do":"drain","node":"n1","x":1}"#, "unknown field `x` of `drain`"),
            (r#"{"do":"pause","reason":7}"#, "the reason 7 is not a text"),
            (r#"{"do":"stop","now":7}"#, "`now` is 7"),
            (r#"{"do":"fly"}"#, "unknown variant `fly`, expected one of `status`"),
            (r#"{"do":"fly"}"#, "`drain`"),
            (r#"{"do":"allow","strategies":{"exit":"fly"}}"#, "unknown variant `fly`, expected one of `auto`"),
            (r#"{"do":"checkpoint-now"}"#, "unknown variant `checkpoint-now`, expected one of `status`"),
        ] {
            let error = parsed(text).expect_err(text);
            assert!(error.contains(sentence), "{text}: {error}");
        }
    }
}
