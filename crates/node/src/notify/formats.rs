//! An application's own events, read as publications.
//!
//! ```toml
//! [notify.formats.shop]
//! object = "product/{/item/sku}"     # text, with places in the event in braces
//! version = "/revision"              # a place: a number, or a text of digits
//! ```
//! Places are JSON pointers. An event that lacks something is refused with its place; nothing is guessed.

use crate::config::bad;
use crate::principal::clip;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tidings_base::{Class, Error};
use tidings_wire::v1;

/// How an application's events are read as publications.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Format {
    /// The object's name: text, with places in the event in braces, such as `product/{/item/sku}`.
    pub object: String,
    /// Where the version is: a whole number, or a text of digits.
    pub version: String,
    /// Where the installation is named that made it. Nowhere by default.
    pub source: Option<String>,
    /// What of the event rides along, such as `""` for all of it. Nothing by default.
    pub payload: Option<String>,
}

/// A piece of an object's name.
#[derive(Debug, PartialEq, Eq)]
enum Piece<'a> {
    Text(&'a str),
    Place(&'a str),
}

impl Format {
    pub(crate) fn check(&self, app: &str) -> Result<(), Error> {
        let wrong = |key: &str, text: &str| {
            bad(format!("`notify.formats.{app}.{key}` is `{}`", clip(text)))
                .hint("A place is a JSON pointer such as `/item/sku`; in `object`, it stands in braces.")
        };
        let pieces = pieces(&self.object).filter(|pieces| !pieces.is_empty());
        pieces.ok_or_else(|| wrong("object", &self.object))?;
        let places =
            [("version", Some(&self.version)), ("source", self.source.as_ref()), ("payload", self.payload.as_ref())];
        for (key, place) in places {
            if let Some(place) = place.filter(|place| !is_place(place)) {
                return Err(wrong(key, place));
            }
        }
        Ok(())
    }

    /// The publication that an event stands for.
    pub(crate) fn read(&self, event: &Value) -> Result<v1::Publication, Error> {
        let mut object = String::new();
        for piece in pieces(&self.object).unwrap_or_default() {
            match piece {
                Piece::Text(text) => object.push_str(text),
                Piece::Place(place) => object.push_str(&word(event, place)?),
            }
        }
        let version = match event.pointer(&self.version) {
            Some(Value::Number(number)) => number.as_u64(),
            Some(Value::String(digits)) => digits.parse().ok(),
            _ => None,
        };
        let version = version.ok_or_else(|| lacks(&self.version, "a version"))?;
        let source = self.source.as_deref().map(|place| word(event, place)).transpose()?;
        let payload = self.payload.as_deref().map(|place| match event.pointer(place) {
            Some(Value::String(text)) => Ok(text.clone()),
            Some(value) => Ok(value.to_string()),
            None => Err(lacks(place, "anything")),
        });
        Ok(v1::Publication {
            object: object.into(),
            version,
            source: source.map(Bytes::from).unwrap_or_default(),
            payload: payload.transpose()?.map(Bytes::from).unwrap_or_default(),
            ..Default::default()
        })
    }
}

fn is_place(text: &str) -> bool {
    text.is_empty() || text.starts_with('/')
}

/// The pieces of an object's name; `None` if a brace has no partner, or no place in it.
fn pieces(text: &str) -> Option<Vec<Piece<'_>>> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (before, after) = rest.split_once('{').unwrap_or((rest, ""));
        if before.contains('}') {
            return None;
        }
        if !before.is_empty() {
            pieces.push(Piece::Text(before));
        }
        if before.len() == rest.len() {
            break;
        }
        let (place, after) = after.split_once('}').filter(|(place, _)| is_place(place))?;
        pieces.push(Piece::Place(place));
        rest = after;
    }
    Some(pieces)
}

/// A text or a number at a place.
fn word(event: &Value, place: &str) -> Result<String, Error> {
    match event.pointer(place) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Number(number)) => Ok(number.to_string()),
        _ => Err(lacks(place, "a text or a number")),
    }
}

fn lacks(place: &str, what: &str) -> Error {
    Error::new("notify.bad_event", Class::Invalid, format!("an event does not have {what} at `{place}`"))
        .hint("Compare the event with the application's `notify.formats` in the node's configuration.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn format(object: &str, version: &str) -> Format {
        Format { object: object.into(), version: version.into(), source: None, payload: None }
    }

    #[test]
    fn events_are_read_by_their_places() {
        let format = Format {
            source: Some("/by".into()),
            payload: Some("".into()),
            ..format("product/{/item/sku}-{/n}", "/item/revision")
        };
        format.check("shop").unwrap();
        let event = json!({ "item": { "sku": "a/7", "revision": "42" }, "n": 3, "by": "till" });
        let publication = format.read(&event).unwrap();
        assert_eq!((publication.object.as_ref(), publication.version), (&b"product/a/7-3"[..], 42));
        assert_eq!((publication.source, publication.payload), ("till".into(), event.to_string().into()));
        for event in [json!({}), json!([1]), json!({ "item": { "sku": "a", "revision": -1 }, "n": 3, "by": "till" })] {
            assert_eq!(format.read(&event).unwrap_err().code, "notify.bad_event");
        }
    }

    #[test]
    fn places_that_are_none_are_refused() {
        for (object, version) in [("", "/v"), ("a{", "/v"), ("a}b", "/v"), ("{sku}", "/v"), ("a", "v")] {
            assert!(format(object, version).check("shop").is_err(), "{object} {version}");
        }
        assert!(format("whole", "").check("shop").is_ok());
    }
}
