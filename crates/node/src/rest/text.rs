//! Bytes in JSON: a string where they are UTF-8, `{"base64": "…"}` where not.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;
use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

/// A name or a value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text(pub Bytes);

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => {
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry("base64", &STANDARD.encode(&self.0))?;
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Text, D::Error> {
        struct TextVisitor;
        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or {\"base64\": \"…\"}")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Text, E> {
                Ok(Text(Bytes::copy_from_slice(text.as_bytes())))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Text, A::Error> {
                let Some((key, value)) = map.next_entry::<Cow<'_, str>, Cow<'_, str>>()? else {
                    return Err(de::Error::missing_field("base64"));
                };
                if key != "base64" || map.next_key::<de::IgnoredAny>()?.is_some() {
                    return Err(de::Error::custom("expected one field `base64`"));
                }
                let bytes = STANDARD.decode(value.as_bytes()).map_err(de::Error::custom)?;
                Ok(Text(Bytes::from(bytes)))
            }
        }
        deserializer.deserialize_any(TextVisitor)
    }
}

impl PartialSchema for Text {
    fn schema() -> RefOr<Schema> {
        let plain = ObjectBuilder::new().schema_type(Type::String);
        let encoded =
            ObjectBuilder::new().property("base64", ObjectBuilder::new().schema_type(Type::String)).required("base64");
        OneOfBuilder::new()
            .item(plain)
            .item(encoded)
            .description(Some("Bytes: a string if they are UTF-8, else base64."))
            .into()
    }
}

impl ToSchema for Text {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("Text")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_json_whether_they_are_text_or_not() {
        for bytes in [&b"hello"[..], b"", "gr\u{fc}n".as_bytes(), b"\xff\x00", &[0x80; 40]] {
            let text = Text(Bytes::copy_from_slice(bytes));
            let json = serde_json::to_string(&text).unwrap();
            assert_eq!(serde_json::from_str::<Text>(&json).unwrap(), text, "{json}");
        }
        assert_eq!(serde_json::to_string(&Text(Bytes::from_static(b"\xff"))).unwrap(), r#"{"base64":"/w=="}"#);
    }

    #[test]
    fn what_is_neither_is_refused() {
        for bad in ["7", "{}", "[]", r#"{"base64":"?"}"#, r#"{"hex":"00"}"#, r#"{"base64":"","x":1}"#, "null"] {
            assert!(serde_json::from_str::<Text>(bad).is_err(), "{bad}");
        }
    }
}
