//! Strict reading of JSON objects.
//!
//! serde decodes an array like the struct of the same order and keeps the last of two equal map keys. Neither may happen
//! with what a peer sent, so every struct inside a message is read through [`object`] and every map through [`unique_map`].

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::wire::text::escaped;

/// Characters of serde's sentence that are told.
const COMPLAINT_MAX_CHARS: usize = 300;

/// A value that was written as a JSON object, not as an array of its fields.
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Only<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Only<T> {
            type Value = Object<T>;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }
        from.deserialize_map(Only(PhantomData))
    }
}

/// For `#[serde(deserialize_with = "object")]`: an object, never an array.
pub fn object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Object::<T>::deserialize(from).map(|object| object.0)
}

/// The same where the key may be absent (with `#[serde(default)]`); `null` is refused.
pub fn some_object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<T>, D::Error> {
    object(from).map(Some)
}

/// A list whose every item is an object.
pub fn objects<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    Vec::<Object<T>>::deserialize(from).map(|list| list.into_iter().map(|object| object.0).collect())
}

/// The same where the key may be absent; `null` is refused.
pub fn some_objects<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<Vec<T>>, D::Error> {
    objects(from).map(Some)
}

/// A value where the key may be absent; `null` is refused.
pub fn some<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

/// A map in which no key stands twice.
pub fn unique_map<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, String>, D::Error> {
    struct Unique;
    impl<'de> Visitor<'de> for Unique {
        type Value = BTreeMap<String, String>;

        fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
            out.write_str("an object of strings")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
            let mut map = BTreeMap::new();
            while let Some((key, value)) = entries.next_entry::<String, String>()? {
                if map.insert(key, value).is_some() {
                    return Err(A::Error::custom("a key stands twice"));
                }
            }
            Ok(map)
        }
    }
    from.deserialize_map(Unique)
}

/// The same where the key may be absent; `null` is refused.
pub fn some_unique_map<'de, D: Deserializer<'de>>(from: D) -> Result<Option<BTreeMap<String, String>>, D::Error> {
    unique_map(from).map(Some)
}

/// An object from text: exactly one, nothing before `{`, nothing behind `}`.
pub fn read<T: DeserializeOwned>(text: &[u8]) -> Result<T, String> {
    if text.first() != Some(&b'{') || text.last() != Some(&b'}') {
        return Err("expected one JSON object and nothing else".to_owned());
    }
    serde_json::from_slice(text).map_err(|error| complaint(&error))
}

/// What is wrong with JSON, in one bounded line: serde repeats the peer's own words, so they are escaped.
pub fn complaint(error: &serde_json::Error) -> String {
    escaped(&error.to_string(), COMPLAINT_MAX_CHARS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        a: u8,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Outer {
        #[serde(deserialize_with = "object")]
        inner: Inner,
        #[serde(default, deserialize_with = "some_unique_map")]
        map: Option<BTreeMap<String, String>>,
    }

    #[test]
    fn an_array_in_place_of_an_object_is_refused() {
        assert_eq!(read::<Outer>(br#"{"inner":{"a":1}}"#), Ok(Outer { inner: Inner { a: 1 }, map: None }));
        assert!(read::<Outer>(br#"{"inner":[1]}"#).is_err());
        assert!(read::<Outer>(br#"[{"a":1}]"#).is_err());
    }

    #[test]
    fn a_key_that_stands_twice_is_refused() {
        assert!(read::<Outer>(br#"{"inner":{"a":1,"a":1}}"#).is_err());
        assert!(read::<Outer>(br#"{"inner":{"a":1},"inner":{"a":1}}"#).is_err());
        assert!(read::<Outer>(br#"{"inner":{"a":1},"map":{"k":"1","k":"1"}}"#).is_err());
        assert!(read::<Outer>(br#"{"inner":{"a":1},"map":null}"#).is_err());
    }

    #[test]
    fn an_error_is_one_bounded_line_whatever_was_sent() {
        let hostile = format!("{{\"inner\":{{\"a\":1}},\"\\u001b[31m{}\":1}}", "x".repeat(5_000));
        let error = read::<Outer>(hostile.as_bytes()).unwrap_err();
        assert!(error.chars().count() < 2 * COMPLAINT_MAX_CHARS && !error.contains('\u{1b}'), "{error}");
        let error = read::<Outer>(b"{}").unwrap_err();
        assert!(error.contains("inner"), "{error}");
    }
}
