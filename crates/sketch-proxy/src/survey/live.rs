//! What a running proxy sees, within bounds.

use super::har::site;
use super::{Bounds, Cut, Study, Survey};
use bytes::Bytes;
use http::header::{self, HeaderMap};
use http::{HeaderName, Uri};
use parking_lot::Mutex;
use std::sync::Arc;
use tidings_sketch::sketch::BodyHash;
use tokio::sync::Semaphore;

/// URLs that are followed; to others answers are counted and nothing else.
const MOST_URLS: usize = 20_000;
/// What pages may take that are cut up to be compared with the next ones: 16 bytes for each KiB of them.
const MOST_CHUNKS: usize = 48 << 20;
/// Pages that are being cut up. More are counted without being compared.
const MOST_AT_ONCE: usize = 16;
/// How a browser says whose page wants this.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// A page as it was served.
pub(crate) struct Seen<'a> {
    pub(crate) scheme: &'a str,
    /// The host that was asked, and maybe its port.
    pub(crate) authority: &'a str,
    /// Path and query.
    pub(crate) target: &'a str,
    /// What the client sent.
    pub(crate) headers: &'a HeaderMap,
    pub(crate) hash: BodyHash,
    /// The body, if it lies in memory.
    pub(crate) body: Option<Bytes>,
}

/// The study of a running proxy.
pub(crate) struct Live {
    study: Arc<Mutex<Study>>,
    hands: Arc<Semaphore>,
}

impl Default for Live {
    fn default() -> Live {
        let study = Study::within(Bounds { urls: MOST_URLS, chunk_bytes: MOST_CHUNKS });
        Live { study: Arc::new(Mutex::new(study)), hands: Arc::new(Semaphore::new(MOST_AT_ONCE)) }
    }
}

impl Live {
    /// Takes a page in. What has changed is looked at beside the threads that serve.
    pub(crate) fn see(&self, seen: Seen<'_>) {
        let Seen { scheme, authority, target, headers, hash, body } = seen;
        let url = format!("{scheme}://{authority}{target}");
        let own = site(host(authority));
        let first_party = is_first_party(headers, &own);
        let mut study = self.study.lock();
        let hand = body.filter(|_| study.is_news(&url, &hash)).and_then(|body| {
            let hand = Arc::clone(&self.hands).try_acquire_owned().ok()?;
            Some((body, hand))
        });
        let Some((body, hand)) = hand else { return study.count(&url, (&own, first_party), hash, None) };
        drop(study);
        let study = Arc::clone(&self.study);
        tokio::task::spawn_blocking(move || {
            // Cut up before the lock is taken: those that serve take it for every page.
            let before = study.lock().last(&url);
            let cut = Cut::of(&body, before.as_ref());
            study.lock().count(&url, (&own, first_party), hash, Some(cut));
            drop(hand);
        });
    }

    /// An answer that nobody has seen all of.
    pub(crate) fn passed_by(&self) {
        self.study.lock().without_body += 1;
    }

    pub(crate) fn survey(&self, least: u64) -> Survey {
        self.study.lock().survey(least)
    }
}

fn host(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    }
}

/// Whether the page that wants this is of the same site, as the browser says.
fn is_first_party(headers: &HeaderMap, own: &str) -> bool {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    match (text(SEC_FETCH_SITE), text(header::REFERER)) {
        (Some(said), _) => said != "cross-site",
        (None, Some(referer)) => {
            let referer = referer.parse::<Uri>().ok();
            referer.as_ref().and_then(Uri::host).is_none_or(|host| site(&host.to_ascii_lowercase()) == own)
        }
        (None, None) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn headers(name: HeaderName, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(name, http::HeaderValue::from_static(value))])
    }

    #[test]
    fn browsers_say_whose_page_it_is() {
        assert!(is_first_party(&HeaderMap::new(), "shop.org"));
        assert!(is_first_party(&headers(SEC_FETCH_SITE, "same-site"), "shop.org"));
        assert!(!is_first_party(&headers(SEC_FETCH_SITE, "cross-site"), "shop.org"));
        assert!(is_first_party(&headers(header::REFERER, "https://www.shop.org/x"), "shop.org"));
        assert!(!is_first_party(&headers(header::REFERER, "https://news.net/"), "shop.org"));
        assert_eq!(["a.org:80", "a.org", "[::1]:80"].map(host), ["a.org", "a.org", "[::1]"]);
    }

    #[tokio::test]
    async fn who_serves_does_not_wait_for_a_page_that_is_cut_up() {
        let (live, headers, body) = (Live::default(), HeaderMap::new(), Bytes::from(vec![7; 32 << 20]));
        let hash = BodyHash::of(&body);
        let (begun, mut longest) = (Instant::now(), Duration::ZERO);
        let (scheme, authority, target) = ("http", "a.org", "/long");
        live.see(Seen { scheme, authority, target, headers: &headers, hash, body: Some(body) });
        loop {
            let asked = Instant::now();
            let is_counted = live.study.lock().urls.len() == 1;
            longest = longest.max(asked.elapsed());
            if is_counted {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(4 * longest < begun.elapsed(), "{longest:?} of {:?}", begun.elapsed());
    }

    #[test]
    fn what_there_is_no_room_for_is_counted() {
        let mut study = Study::within(Bounds { urls: 2, chunk_bytes: 16 * 60 });
        let page =
            |fill: u8| (0..2_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8 ^ fill).collect::<Vec<u8>>();
        for (url, body) in
            [("a", page(1)), ("a", page(2)), ("b", page(1)), ("b", page(2)), ("c", page(1)), ("b", page(3))]
        {
            let cut = Cut::of(&body, study.last(url).as_ref());
            study.count(url, ("s", true), BodyHash::of(&body), Some(cut));
        }
        assert!(study.chunk_bytes <= 16 * 60, "{}", study.chunk_bytes);
        let survey = study.survey(2);
        assert_eq!((survey.urls, survey.requests, survey.not_followed, survey.transitions), (2, 5, 1, 3));
        assert!(survey.compared >= 1 && survey.compared <= survey.transitions, "{survey:?}");
    }
}
