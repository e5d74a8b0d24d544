//! Versions of a file as HTTP knows them: `ETag`, `If-Match`, `If-None-Match`.

use http::{HeaderMap, HeaderValue, header};
use tidings_base::{Class, Error};
use tidings_client::cell::Stat;

/// A version of a node's contents: `"instance-generation"`, or the generation alone where people type it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag {
    /// Which of the nodes that had this path; absent = whichever is there.
    pub instance: Option<u64>,
    /// Of its contents.
    pub generation: u64,
}

impl Tag {
    /// The version that a stat shows.
    pub(super) fn of(stat: &Stat) -> Tag {
        Tag { instance: Some(stat.instance), generation: stat.content_generation }
    }

    /// The tag as a header.
    pub(super) fn header(self) -> HeaderValue {
        let text = match self.instance {
            Some(instance) => format!("\"{instance}-{}\"", self.generation),
            None => format!("\"{}\"", self.generation),
        };
        // Digits, a dash and quotes.
        HeaderValue::from_str(&text).unwrap_or_else(|_| HeaderValue::from_static("\"\""))
    }

    fn parse(text: &str) -> Option<Tag> {
        let text = text.trim().trim_matches('"');
        match text.split_once('-') {
            Some((instance, generation)) => {
                Some(Tag { instance: Some(instance.parse().ok()?), generation: generation.parse().ok()? })
            }
            None => Some(Tag { instance: None, generation: text.parse().ok()? }),
        }
    }

    /// Whether a stat is of this version.
    pub(super) fn is(self, stat: &Stat) -> bool {
        self.instance.is_none_or(|instance| instance == stat.instance) && self.generation == stat.content_generation
    }
}

/// What a request says about the version it expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    /// Nothing.
    Anything,
    /// `If-Match`: this version, no other.
    This(Tag),
    /// `If-None-Match: *`: that there is no node.
    Nothing,
}

/// What a writing request expects.
pub(super) fn expected(headers: &HeaderMap) -> Result<Expected, Error> {
    match (text(headers, header::IF_MATCH)?, text(headers, header::IF_NONE_MATCH)?) {
        (None, None) => Ok(Expected::Anything),
        (Some(tag), None) => Tag::parse(tag).map(Expected::This).ok_or_else(|| {
            bad("`If-Match` is no version of a file")
                .hint("Use the `ETag` of an answer, or the contents' generation as a number.")
        }),
        (None, Some("*")) => Ok(Expected::Nothing),
        _ => Err(bad("`If-None-Match` can only be `*` here, and not beside `If-Match`")
            .hint("`If-None-Match: *` writes what is not there yet, `If-Match` what is still of that version.")),
    }
}

/// Whether a reader has this version already (`If-None-Match`).
pub(super) fn is_known(headers: &HeaderMap, stat: &Stat) -> bool {
    let known = text(headers, header::IF_NONE_MATCH).ok().flatten();
    known.is_some_and(|tags| tags.split(',').filter_map(Tag::parse).any(|tag| tag.is(stat)))
}

fn text(headers: &HeaderMap, name: header::HeaderName) -> Result<Option<&str>, Error> {
    let value = headers.get(&name).map(|value| value.to_str());
    value.transpose().map(|text| text.map(str::trim)).map_err(|_| bad(format!("`{name}` is not plain text")))
}

fn bad(what: impl Into<String>) -> Error {
    Error::new("control.bad_header", Class::Invalid, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(all: &[(header::HeaderName, &'static str)]) -> HeaderMap {
        all.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn a_version_names_instance_and_generation() {
        let stat = Stat { instance: 7, content_generation: 3, ..Default::default() };
        assert_eq!(Tag::of(&stat).header(), "\"7-3\"");
        let this = |value| expected(&headers(&[(header::IF_MATCH, value)])).unwrap();
        assert_eq!(this("\"7-3\""), Expected::This(Tag::of(&stat)));
        assert_eq!(this("3"), Expected::This(Tag { instance: None, generation: 3 }));
        assert!(is_known(&headers(&[(header::IF_NONE_MATCH, "\"6-3\", \"7-3\"")]), &stat));
        assert!(!is_known(&headers(&[(header::IF_NONE_MATCH, "\"6-3\"")]), &stat));
    }

    #[test]
    fn conditions_that_make_no_sense_are_named() {
        let none = expected(&headers(&[(header::IF_NONE_MATCH, "*")])).unwrap();
        assert_eq!(none, Expected::Nothing);
        for wrong in [
            headers(&[(header::IF_MATCH, "*")]),
            headers(&[(header::IF_MATCH, "abc")]),
            headers(&[(header::IF_NONE_MATCH, "\"1-1\"")]),
            headers(&[(header::IF_MATCH, "1"), (header::IF_NONE_MATCH, "*")]),
        ] {
            assert_eq!(expected(&wrong).unwrap_err().code, "control.bad_header");
        }
    }
}
