//! HAR files, as browsers and proxies write them: who was asked for what, and the bodies that came back.

use super::Fetched;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::uri::Authority;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::Read;
use tidings_base::{Class, Error};

#[derive(Deserialize)]
struct File {
    log: Log,
}

#[derive(Deserialize)]
struct Log {
    entries: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    pageref: Option<String>,
    #[serde(rename = "startedDateTime", default)]
    started: String,
    request: Request,
    response: Response,
    /// Chromium: it came from its own cache, and nobody was asked.
    #[serde(rename = "_fromCache", default)]
    from_cache: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct Request {
    method: String,
    url: String,
}

#[derive(Deserialize)]
struct Response {
    status: i64,
    #[serde(default)]
    content: Content,
}

#[derive(Default, Deserialize)]
struct Content {
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    encoding: Option<String>,
}

/// The GET requests of a file that were answered with a page, or that it is unchanged, in the order in which they began.
pub fn read(name: &str, from: impl Read) -> Result<Vec<Fetched>, Error> {
    let file: File = serde_json::from_reader(from).map_err(|error| {
        Error::new("sketch.bad_har", Class::Invalid, format!("{name}: not a HAR file: {error}"))
            .hint("Browsers write one from the network panel: \"Save all as HAR with content\".")
    })?;
    let mut entries = file.log.entries;
    // Times are written alike within a file, so their texts sort as they do; a stable sort keeps what is equal.
    entries.sort_by(|left, right| left.started.cmp(&right.started));
    let mut parties: BTreeMap<String, String> = BTreeMap::new();
    let (mut fetched, mut last) = (Vec::new(), BTreeMap::<String, Vec<u8>>::new());
    for entry in entries {
        let Some(host) = host(&entry.request.url) else { continue };
        // A page belongs to the site that it was first asked of.
        let page = entry.pageref.unwrap_or_default();
        let first = parties.entry(page).or_insert_with(|| site(&host)).clone();
        if entry.request.method != "GET" || ![200, 304].contains(&entry.response.status) || entry.from_cache.is_some() {
            continue;
        }
        let body = match entry.response.status {
            // It is what it was. What a page was that had been fetched before the record began is not known.
            304 => last.get(&entry.request.url).cloned(),
            _ => body(entry.response.content),
        };
        if let Some(body) = body.as_ref().filter(|_| entry.response.status == 200) {
            last.insert(entry.request.url.clone(), body.clone());
        }
        let site = site(&host);
        fetched.push(Fetched { url: entry.request.url, first_party: site == first, site, body });
    }
    Ok(fetched)
}

/// The host that was asked; nobody was for `data:` and the like. The rest of a URL may be anything: browsers write down what a page
/// said, with brackets and bars in it.
fn host(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    if !["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known)) {
        return None;
    }
    let authority: Authority = rest.split(['/', '?', '#']).next()?.parse().ok()?;
    Some(authority.host().to_ascii_lowercase())
}

/// What came back, if it was recorded.
fn body(content: Content) -> Option<Vec<u8>> {
    let text = content.text?;
    match content.encoding.as_deref() {
        Some("base64") => STANDARD.decode(text.as_bytes()).ok(),
        _ => Some(text.into_bytes()),
    }
}

/// The site of a host: its last two labels, three where the second is as short as in `co.uk`. No list of public suffixes is
/// consulted.
pub(super) fn site(host: &str) -> String {
    if host.parse::<std::net::IpAddr>().is_ok() || host.starts_with('[') {
        return host.to_owned();
    }
    let labels: Vec<&str> = host.split('.').collect();
    let short = |label: &&str| label.len() <= 3;
    let kept = match labels.as_slice() {
        [.., second, last] if labels.len() > 2 && short(second) && last.len() == 2 => 3,
        _ => 2,
    };
    labels[labels.len().saturating_sub(kept)..].join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_a_file_are_read_in_order_with_their_parties() {
        let text = r#"{"log":{"version":"1.2","entries":[
          {"pageref":"p","startedDateTime":"2026-01-01T00:00:02.000Z","request":{"method":"GET","url":"https://cdn.net/a.js"},
           "response":{"status":200,"content":{"size":2,"text":"aGk=","encoding":"base64"}}},
          {"pageref":"p","startedDateTime":"2026-01-01T00:00:01.000Z","request":{"method":"GET","url":"https://www.shop.co.uk/"},
           "response":{"status":200,"content":{"text":"page"}}},
          {"pageref":"p","startedDateTime":"2026-01-01T00:00:03.000Z","request":{"method":"POST","url":"https://shop.co.uk/"},
           "response":{"status":200,"content":{}}},
          {"pageref":"p","startedDateTime":"2026-01-01T00:00:04.000Z","request":{"method":"GET","url":"https://img.shop.co.uk/x"},
           "response":{"status":200,"content":{"size":9}}}]}}"#;
        let fetched = read("x.har", text.as_bytes()).unwrap();
        let seen: Vec<_> =
            fetched.iter().map(|one| (one.site.as_str(), one.first_party, one.body.as_deref())).collect();
        assert_eq!(
            seen,
            [
                ("shop.co.uk", true, Some(&b"page"[..])),
                ("cdn.net", false, Some(&b"hi"[..])),
                ("shop.co.uk", true, None)
            ]
        );
    }

    #[test]
    fn what_is_unchanged_is_what_it_was() {
        let entry = |second: u8, path: &str, status: u16, text: &str| {
            let started = format!("2026-01-01T00:00:0{second}.000Z");
            serde_json::json!({ "startedDateTime": started, "request": { "method": "GET", "url": format!("http://a{path}") },
                "response": { "status": status, "content": { "text": text } } })
        };
        let entries = [
            entry(1, "/", 200, "red"),
            entry(2, "/", 304, ""),
            entry(3, "/", 200, "blue"),
            entry(4, "/", 304, ""),
            entry(5, "/before", 304, ""),
            entry(6, "/", 404, "gone"),
        ];
        let file = serde_json::json!({ "log": { "entries": entries } }).to_string();
        let fetched = read("x.har", file.as_bytes()).unwrap();
        let bodies: Vec<_> = fetched.iter().map(|one| one.body.as_deref()).collect();
        let (red, blue) = (Some(&b"red"[..]), Some(&b"blue"[..]));
        assert_eq!(bodies, [red, red, blue, blue, None]);
    }

    /// As Chromium 156 saw a page of four parts, loaded four times (recorded by Playwright, with content).
    #[test]
    fn a_file_of_a_browser_is_read_whole() {
        let file = include_bytes!("../../tests/har/chromium.har");
        let fetched = read("chromium.har", &file[..]).unwrap();
        let of = |path: &str| -> Vec<Option<String>> {
            let parts = fetched.iter().filter(|one| one.url == format!("http://127.0.0.1:8123{path}"));
            parts.map(|one| one.body.as_ref().map(|body| String::from_utf8_lossy(body).into_owned())).collect()
        };
        assert!(fetched.len() == 16 && fetched.iter().all(|one| one.first_party && one.site == "127.0.0.1"));
        let ticks = ["tick 0", "tick 0", "tick 1", "tick 1"].map(|tick| Some(tick.to_owned()));
        assert_eq!(of("/clock"), ticks);
        let dots = of("/dot.png?ids[]=1|2");
        assert!(
            dots.len() == 4 && dots.iter().all(|dot| dot.is_some() && *dot == dots[0]),
            "three were unchanged (304)"
        );
        assert_eq!((of("/").len(), of("/style.css").len()), (4, 4));
    }

    #[test]
    fn nobody_was_asked_for_what_a_browser_had() {
        let entry = |url: &str, cache: Option<&str>| {
            let mut entry = serde_json::json!({ "request": { "method": "GET", "url": url },
                "response": { "status": 200, "content": { "text": "x" } } });
            if let Some(cache) = cache {
                entry["_fromCache"] = cache.into();
            }
            entry
        };
        let entries = [
            entry("https://A.org/x?ids[]=1|2#top", None),
            entry("https://a.org/x", Some("disk")),
            entry("https://a.org/x", Some("memory")),
            entry("data:text/plain,x", None),
            entry("blob:https://a.org/1", None),
            entry("http://[::1]:80?x", None),
        ];
        let file = serde_json::json!({ "log": { "entries": entries } }).to_string();
        let sites: Vec<String> = read("x.har", file.as_bytes()).unwrap().into_iter().map(|one| one.site).collect();
        assert_eq!(sites, ["a.org", "[::1]"]);
    }

    #[test]
    fn what_is_no_har_is_refused_by_name() {
        for wrong in ["", "{}", "[1]", "{\"log\":{\"entries\":[{}]}}"] {
            let error = read("x.har", wrong.as_bytes()).unwrap_err();
            assert!(error.message.starts_with("x.har: not a HAR file"), "{error}");
        }
    }
}
