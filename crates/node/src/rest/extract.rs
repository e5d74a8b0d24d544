//! From HTTP requests to what handlers need, with our own errors for what does not fit.

use super::App;
use super::answer::Refusal;
use crate::auth::no_credential;
use crate::principal::{Identity, clip};
use crate::routes::Nobody;
use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Request};
use bytes::Bytes;
use http::header;
use http::request::Parts;
use serde::de::DeserializeOwned;
use tidings_base::{Class, Error};

/// Who sent the request: whoever has none gets no further.
#[derive(Clone, Debug)]
pub struct Caller(pub Identity);

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = axum::response::Response;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Caller, Self::Rejection> {
        // Put there by the one layer that authenticates; absent means that nobody was recognised.
        let identity = parts.extensions.get::<Identity>().cloned();
        identity.map(Caller).ok_or_else(|| super::error_response(&parts.headers, no_credential()))
    }
}

/// The same, or somebody who shows nothing: of routes to what may be open to everybody.
pub struct Anyone(pub Caller);

impl<S: Send + Sync> FromRequestParts<S> for Anyone {
    type Rejection = axum::response::Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Anyone, Self::Rejection> {
        match parts.extensions.get::<Nobody>().cloned() {
            Some(Nobody(identity)) => Ok(Anyone(Caller(identity))),
            None => Caller::from_request_parts(parts, state).await.map(Anyone),
        }
    }
}

/// A body as it is.
pub(crate) struct RawBody(pub Bytes);

impl FromRequest<App> for RawBody {
    type Rejection = Refusal;

    async fn from_request(request: Request<Body>, app: &App) -> Result<RawBody, Refusal> {
        let limit = app.config.limits.body_bytes;
        // A length that is too large is refused before anything is read for it.
        let length = request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
        if length.and_then(|length| length.parse::<u64>().ok()).is_some_and(|length| length > limit as u64) {
            return Err(Refusal(too_large(limit)));
        }
        let within = app.config.timings.body.into();
        let Ok(read) = tokio::time::timeout(within, Bytes::from_request(request, app)).await else {
            return Err(Refusal(bad_body("the body did not arrive in time")));
        };
        read.map(RawBody).map_err(|rejection| {
            Refusal(match rejection.status().as_u16() {
                413 => too_large(limit),
                _ => bad_body(format!("the body could not be read: {rejection}")),
            })
        })
    }
}

/// No body: what is said there would not be heard.
pub(crate) struct NoBody;

impl FromRequest<App> for NoBody {
    type Rejection = Refusal;

    async fn from_request(request: Request<Body>, app: &App) -> Result<NoBody, Refusal> {
        match RawBody::from_request(request, app).await?.0.is_empty() {
            true => Ok(NoBody),
            false => Err(Refusal(bad_body("a body is not expected here: everything is said by the address"))),
        }
    }
}

/// A JSON body, whatever it is.
pub(crate) struct AnyJson(pub serde_json::Value);

impl FromRequest<App> for AnyJson {
    type Rejection = Refusal;

    async fn from_request(request: Request<Body>, app: &App) -> Result<AnyJson, Refusal> {
        let RawBody(bytes) = RawBody::from_request(request, app).await?;
        read_json(&bytes).map(AnyJson).map_err(Refusal)
    }
}

/// A JSON body that is an object.
pub(crate) struct JsonBody<T>(pub T);

impl<T: DeserializeOwned> FromRequest<App> for JsonBody<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request<Body>, app: &App) -> Result<JsonBody<T>, Refusal> {
        let RawBody(bytes) = RawBody::from_request(request, app).await?;
        json(&bytes).map(JsonBody).map_err(Refusal)
    }
}

/// Reads a JSON object. An array is refused: serde would take it for the object's fields in their order, which nobody has
/// promised.
pub(crate) fn json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    match bytes.trim_ascii_start().starts_with(b"[") {
        true => Err(bad_body("the body is a JSON array, and an object is expected")),
        false => read_json(bytes),
    }
}

/// Reads JSON, whatever the content type says: `curl -d` says something else. What no foreign page may send was refused
/// before this.
fn read_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(bytes).map_err(|e| bad_body(format!("the body is not the expected JSON: {e}")))
}

fn too_large(limit: usize) -> Error {
    Error::new("control.too_large", Class::Invalid, format!("the body has more than {limit} bytes"))
        .hint("Send less at a time.")
}

pub(crate) fn bad_body(what: impl Into<String>) -> Error {
    Error::new("control.bad_body", Class::Invalid, what).hint("/openapi.json describes it.")
}

/// The path's segments, percent-decoded into bytes.
pub(crate) struct Segments(Vec<Bytes>);

impl Segments {
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The segment at a position that the route guarantees.
    pub(crate) fn bytes(&self, at: usize) -> Bytes {
        self.0.get(at).cloned().unwrap_or_default()
    }

    /// The segment as text.
    pub(crate) fn text(&self, at: usize) -> Result<String, Error> {
        String::from_utf8(self.bytes(at).to_vec()).map_err(|_| bad_path("a segment is not UTF-8"))
    }

    /// The segment as a number.
    pub(crate) fn number<N: std::str::FromStr>(&self, at: usize) -> Result<N, Error> {
        let text = self.text(at)?;
        text.parse().map_err(|_| bad_path(format!("`{}` is not a number that fits", clip(&text))))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Segments {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Segments, Refusal> {
        let path = parts.uri.path().trim_start_matches('/');
        let decoded = path.split('/').map(|segment| percent_decoded(segment, false)).collect::<Option<Vec<_>>>();
        decoded.map(Segments).ok_or_else(|| Refusal(bad_path("a percent sign is not followed by two digits")))
    }
}

/// The query's parameters, percent-decoded into bytes; those nobody asked for are refused.
pub(crate) struct Query(Vec<(String, Bytes)>);

impl Query {
    /// Takes out one parameter.
    pub(crate) fn take(&mut self, name: &str) -> Option<Bytes> {
        let at = self.0.iter().position(|(key, _)| key == name)?;
        Some(self.0.remove(at).1)
    }

    /// Takes out a parameter that is a number.
    pub(crate) fn take_number<N: std::str::FromStr>(&mut self, name: &str) -> Result<Option<N>, Error> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let number = std::str::from_utf8(&value).ok().and_then(|text| text.parse().ok());
        number.map(Some).ok_or_else(|| bad_path(format!("`{name}` is not a number that fits")))
    }

    /// Takes out how many are wanted at most; 0 = the caller does not say.
    pub(crate) fn take_limit(&mut self, most: u32) -> Result<u32, Error> {
        match self.take_number("limit")? {
            None => Ok(0),
            Some(limit) if (1..=most).contains(&limit) => Ok(limit),
            Some(_) => Err(bad_path(format!("`limit` is a number from 1 to {most}"))),
        }
    }

    /// Takes out a parameter that may be given several times.
    pub(crate) fn take_all(&mut self, name: &str) -> Vec<Bytes> {
        std::iter::from_fn(|| self.take(name)).collect()
    }

    /// Refuses what was not taken: a misspelt parameter must not silently be none.
    pub(crate) fn finish(self) -> Result<(), Error> {
        match self.0.first() {
            None => Ok(()),
            Some((name, _)) => Err(bad_path(format!("there is no parameter `{}`", clip(name)))),
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Query {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Query, Refusal> {
        let pairs = parts.uri.query().unwrap_or("").split('&').filter(|pair| !pair.is_empty());
        let decoded = pairs.map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let key = String::from_utf8(percent_decoded(key, true)?.to_vec()).ok()?;
            Some((key, percent_decoded(value, true)?))
        });
        let decoded = decoded.collect::<Option<Vec<_>>>();
        decoded.map(Query).ok_or_else(|| Refusal(bad_path("a percent sign is not followed by two digits")))
    }
}

pub(crate) fn bad_path(what: impl Into<String>) -> Error {
    Error::new("control.bad_path", Class::Invalid, what).hint("/openapi.json describes every path.")
}

/// Undoes percent-encoding; in a query, `+` is a space.
fn percent_decoded(text: &str, plus_is_space: bool) -> Option<Bytes> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        rest = tail;
        match first {
            b'%' => {
                let (digits, tail) = rest.split_at_checked(2)?;
                let digit = |b: u8| char::from(b).to_digit(16);
                bytes.push(u8::try_from(digit(digits[0])? * 16 + digit(digits[1])?).ok()?);
                rest = tail;
            }
            b'+' if plus_is_space => bytes.push(b' '),
            other => bytes.push(*other),
        }
    }
    Some(Bytes::from(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_is_no_object() {
        #[derive(Debug, PartialEq, serde::Deserialize)]
        struct Named {
            name: String,
        }
        assert_eq!(json::<Named>(br#" {"name": "a"}"#), Ok(Named { name: "a".to_owned() }));
        for wrong in [r#"["a"]"#, " \n\t[\"a\"]", "[]", "[["] {
            let refused = json::<Named>(wrong.as_bytes()).unwrap_err();
            assert!(refused.code == "control.bad_body" && refused.message.contains("an object is expected"), "{wrong}");
        }
    }

    #[test]
    fn any_bytes_can_stand_in_a_path() {
        let decoded = |text| percent_decoded(text, false).map(|b| b.to_vec());
        assert_eq!(decoded("a%2Fb%ff+"), Some(b"a/b\xff+".to_vec()));
        assert_eq!(percent_decoded("a+b", true).unwrap(), "a b");
        for bad in ["%", "%2", "%zz", "a%"] {
            assert_eq!(decoded(bad), None, "{bad}");
        }
    }
}
