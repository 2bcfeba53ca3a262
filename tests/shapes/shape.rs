//! The shape of a message: which members it has, of which kind, and which of them may be absent.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// In place of what nobody looks into.
pub const UNKNOWN: &str = "\0";

/// What a value is. The names of an object whose members may be absent end in `?`.
pub fn shape_of(value: &Value) -> Value {
    match value {
        Value::Null => json!("null"),
        Value::Bool(_) => json!("boolean"),
        Value::Number(number) if number.is_f64() => json!("number"),
        Value::Number(_) => json!("integer"),
        Value::String(text) => json!(if text == UNKNOWN { "any JSON" } else { "string" }),
        Value::Array(elements) => {
            Value::Array(elements.iter().map(shape_of).reduce(|a, b| merged(&a, &b)).into_iter().collect())
        }
        Value::Object(members) => members.iter().map(|(name, value)| (name.clone(), shape_of(value))).collect(),
    }
}

/// What both are.
pub fn merged(a: &Value, b: &Value) -> Value {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) if !a.contains_key("either") && !b.contains_key("either") => {
            Value::Object(merged_members(a, b))
        }
        (Value::Array(a), Value::Array(b)) => {
            Value::Array(a.iter().chain(b).cloned().reduce(|a, b| merged(&a, &b)).into_iter().collect())
        }
        (a, b) if a == b => a.clone(),
        (a, b) => {
            let kinds =
                |one: &Value| one.get("either").and_then(Value::as_array).cloned().unwrap_or_else(|| vec![one.clone()]);
            let mut all = [kinds(a), kinds(b)].concat();
            all.sort_by_key(Value::to_string);
            all.dedup();
            json!({ "either": all })
        }
    }
}

fn merged_members(a: &Map<String, Value>, b: &Map<String, Value>) -> Map<String, Value> {
    let names = |members: &Map<String, Value>| -> BTreeMap<String, (bool, Value)> {
        let plain =
            |name: &str| name.strip_suffix('?').map_or((name.to_owned(), false), |name| (name.to_owned(), true));
        members.iter().map(|(name, value)| (plain(name).0, (plain(name).1, value.clone()))).collect()
    };
    let (a, b) = (names(a), names(b));
    let all: BTreeMap<_, _> = a.iter().chain(&b).map(|(name, _)| (name, ())).collect();
    let one = |name: &String| -> (String, Value) {
        let (is_optional, value) = match (a.get(name), b.get(name)) {
            (Some((first, a)), Some((second, b))) => (*first || *second, merged(a, b)),
            (Some((_, only)), None) | (None, Some((_, only))) => (true, only.clone()),
            (None, None) => unreachable!("it is one of theirs"),
        };
        (if is_optional { format!("{name}?") } else { name.clone() }, value)
    };
    all.into_keys().map(one).collect()
}

/// Everything that was seen, by what it is.
#[derive(Default)]
pub struct Book(BTreeMap<String, Value>);

impl Book {
    pub fn note(&mut self, what: &str, value: &Value) {
        let shape = shape_of(value);
        let all = self.0.get(what).map_or_else(|| shape.clone(), |before| merged(before, &shape));
        self.0.insert(what.to_owned(), all);
    }

    pub fn whats(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    pub fn document(&self, protocol: u16) -> Value {
        json!({"protocol": protocol, "shapes": self.0})
    }
}
