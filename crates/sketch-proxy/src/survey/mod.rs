//! How static is my traffic: the paper's study (§8) for the user's own.
//!
//! A *transition* is an answer that differs from the one before to the same URL. What static pages there are the proxy serves
//! at the price of one origin; each transition costs a vote.

mod chunks;
mod har;
mod live;
mod picture;

pub use har::read as read_har;
pub(crate) use live::{Live, Seen};
pub use picture::svg;

use chunks::{Chunks, Difference};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use tidings_sketch::sketch::BodyHash;

/// One answer.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// What was asked for.
    pub url: String,
    /// The site that was asked.
    pub site: String,
    /// Whether the page that it was fetched for is of the same site.
    pub first_party: bool,
    /// What came back, if it was recorded.
    pub body: Option<Vec<u8>>,
}

/// What is known of a URL.
#[derive(Debug, Default)]
struct Known {
    site: String,
    first_party: bool,
    requests: u64,
    transitions: u64,
    last: Option<Last>,
    differences: Differences,
}

/// The latest body, by its hash and, if it was seen, cut up.
#[derive(Clone, Debug)]
struct Last {
    hash: BodyHash,
    chunks: Option<Arc<Chunks>>,
}

/// A body cut up, and how it differs from that of this hash.
#[derive(Debug)]
struct Cut {
    chunks: Chunks,
    after: Option<(BodyHash, Difference)>,
}

impl Cut {
    /// Takes milliseconds for a long page: nobody's lock is held for it.
    fn of(body: &[u8], before: Option<&Last>) -> Cut {
        let after = before.and_then(|last| Some((last.hash, last.chunks.as_ref()?.difference(body))));
        Cut { chunks: Chunks::of(body), after }
    }
}

/// Transitions of which both bodies were seen.
#[derive(Clone, Copy, Debug, Default)]
struct Differences {
    compared: u64,
    third_new: u64,
    all_new: u64,
    one_edit: u64,
}

impl Differences {
    fn add(&mut self, one: Difference) {
        self.compared += 1;
        self.third_new += u64::from(one.new_chunks >= 0.3);
        self.all_new += u64::from(one.new_chunks == 1.0);
        self.one_edit += u64::from(one.one_edit);
    }
}

impl Known {
    fn ratio(&self) -> f64 {
        // The first answer has none before it.
        self.transitions as f64 / self.requests.saturating_sub(1).max(1) as f64
    }

    fn chunk_bytes(&self) -> usize {
        self.last.as_ref().and_then(|last| last.chunks.as_deref()).map_or(0, Chunks::bytes)
    }
}

/// How much a study may remember.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    urls: usize,
    chunk_bytes: usize,
}

/// The study.
#[derive(Debug)]
pub struct Study {
    urls: BTreeMap<String, Known>,
    without_body: u64,
    not_followed: u64,
    chunk_bytes: usize,
    bounds: Bounds,
}

impl Default for Study {
    /// What was recorded is bounded already.
    fn default() -> Study {
        Study::within(Bounds { urls: usize::MAX, chunk_bytes: usize::MAX })
    }
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Survey {
    /// Answers with a body.
    pub requests: u64,
    /// Answers whose bodies were not recorded: nothing can be said of them.
    pub without_body: u64,
    /// Answers to URLs that there was no room to follow.
    pub not_followed: u64,
    /// URLs.
    pub urls: u64,
    /// How many requests a URL needs to be counted.
    pub least_requests: u64,
    /// URLs with as many.
    pub counted: u64,
    /// The share of these that never changed.
    pub purely_static: f64,
    /// The share of these that changed in less than 15 % of requests.
    pub below_15_percent: f64,
    /// The share of URLs at or below each ratio of transitions.
    pub all: Vec<Point>,
    /// Of URLs of the page's own site.
    pub first_party: Vec<Point>,
    /// Of others.
    pub third_party: Vec<Point>,
    /// By site, those with the most requests first.
    pub sites: Vec<Site>,
    /// Those URLs that changed, the greatest ratios first.
    #[serde(default)]
    pub changing: Vec<Changing>,
    /// Transitions of the counted URLs.
    pub transitions: u64,
    /// Those of which both bodies were there to be compared.
    pub compared: u64,
    /// The share of these in which at least 30 % of chunks were new.
    pub third_new: f64,
    /// In which all were.
    pub all_new: f64,
    /// Which were one contiguous edit.
    pub one_edit: f64,
    /// The share of requests that a sketcher would put to all origins: transitions, and first reads.
    pub votes: f64,
    /// The throughput that is predicted, over that of executing every read everywhere: N / (1 + tN).
    pub gain: Vec<Gain>,
}

/// A point of a distribution.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Transitions by request.
    pub ratio: f64,
    /// The share of URLs that have no more.
    pub share: f64,
}

/// What is known of a site.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Site {
    /// Its name.
    pub site: String,
    /// URLs that are counted.
    pub urls: u64,
    /// Their requests.
    pub requests: u64,
    /// The share of URLs that never changed.
    pub purely_static: f64,
    /// Transitions by request.
    pub ratio: f64,
    /// The share of its URLs at or below each ratio of transitions.
    #[serde(default)]
    pub points: Vec<Point>,
}

/// A URL whose answers changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Changing {
    /// What was asked for.
    pub url: String,
    /// How often.
    pub requests: u64,
    /// How often the answer was another one than before.
    pub transitions: u64,
    /// Transitions by request.
    pub ratio: f64,
}

/// The throughput that is predicted for a number of origins.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gain {
    /// N.
    pub origins: u32,
    /// How many times as much as when each executes every read.
    pub times: f64,
}

/// How many requests a URL needs to be counted, unless somebody says otherwise: the paper's number.
pub const LEAST_REQUESTS: u64 = 25;
/// Sites that are listed.
const MOST_SITES: usize = 50;
/// URLs that changed that are listed.
const MOST_CHANGING: usize = 20;

impl Study {
    fn within(bounds: Bounds) -> Study {
        Study { urls: BTreeMap::new(), without_body: 0, not_followed: 0, chunk_bytes: 0, bounds }
    }

    /// Takes an answer in, after those that came before it.
    pub fn add(&mut self, fetched: Fetched) {
        let Some(body) = fetched.body else {
            self.without_body += 1;
            return;
        };
        let hash = BodyHash::of(&body);
        let cut = self.is_news(&fetched.url, &hash).then(|| Cut::of(&body, self.last(&fetched.url).as_ref()));
        self.count(&fetched.url, (&fetched.site, fetched.first_party), hash, cut);
    }

    /// Whether an answer is the first to its URL, or differs from the one before: only then its body is looked at, if the URL is
    /// followed.
    fn is_news(&self, url: &str, hash: &BodyHash) -> bool {
        match self.urls.get(url) {
            Some(known) => known.last.as_ref().is_none_or(|last| last.hash != *hash),
            None => self.has_room(),
        }
    }

    fn has_room(&self) -> bool {
        self.urls.len() < self.bounds.urls
    }

    /// What the next answer to a URL is compared with.
    fn last(&self, url: &str) -> Option<Last> {
        self.urls.get(url)?.last.clone()
    }

    /// Counts an answer. What it was compared with counts if that is still the one before it.
    fn count(&mut self, url: &str, (site, first_party): (&str, bool), hash: BodyHash, cut: Option<Cut>) {
        if !self.urls.contains_key(url) {
            if !self.has_room() {
                self.not_followed += 1;
                return;
            }
            let known = Known { site: site.to_owned(), first_party, ..Known::default() };
            self.urls.insert(url.to_owned(), known);
        }
        let Some(known) = self.urls.get_mut(url) else { return };
        known.requests += 1;
        if known.last.as_ref().is_some_and(|last| last.hash == hash) {
            return;
        }
        let (chunks, after) = cut.map_or((None, None), |cut| (Some(cut.chunks), cut.after));
        if let Some(last) = &known.last {
            known.transitions += 1;
            if let Some((_, difference)) = after.filter(|(with, _)| *with == last.hash) {
                known.differences.add(difference);
            }
        }
        self.chunk_bytes -= known.chunk_bytes();
        let chunks = chunks.filter(|new| self.chunk_bytes + new.bytes() <= self.bounds.chunk_bytes).map(Arc::new);
        known.last = Some(Last { hash, chunks });
        self.chunk_bytes += known.chunk_bytes();
    }

    /// What it comes to, of URLs with at least so many requests.
    pub fn survey(&self, least_requests: u64) -> Survey {
        let counted: Vec<&Known> = self.urls.values().filter(|known| known.requests >= least_requests).collect();
        let ratios = |of: &dyn Fn(&Known) -> bool| {
            let mut ratios: Vec<f64> = counted.iter().filter(|known| of(known)).map(|known| known.ratio()).collect();
            ratios.sort_by(f64::total_cmp);
            ratios
        };
        let all = ratios(&|_| true);
        let sum = |of: fn(&Known) -> u64| counted.iter().map(|known| of(known)).sum::<u64>();
        let compared = sum(|known| known.differences.compared);
        let of_compared = |part: u64| if compared == 0 { 0.0 } else { part as f64 / compared as f64 };
        let (requests, votes) = (sum(|known| known.requests), sum(|known| known.transitions + 1));
        let votes = if requests == 0 { 0.0 } else { votes as f64 / requests as f64 };
        Survey {
            requests: self.urls.values().map(|known| known.requests).sum(),
            without_body: self.without_body,
            not_followed: self.not_followed,
            urls: self.urls.len() as u64,
            least_requests,
            counted: counted.len() as u64,
            purely_static: share(all.iter().filter(|ratio| **ratio == 0.0).count(), all.len()),
            below_15_percent: share(all.iter().filter(|ratio| **ratio < 0.15).count(), all.len()),
            first_party: distribution(&ratios(&|known| known.first_party)),
            third_party: distribution(&ratios(&|known| !known.first_party)),
            all: distribution(&all),
            sites: sites(&counted),
            changing: self.changing(least_requests),
            transitions: sum(|known| known.transitions),
            compared,
            third_new: of_compared(sum(|known| known.differences.third_new)),
            all_new: of_compared(sum(|known| known.differences.all_new)),
            one_edit: of_compared(sum(|known| known.differences.one_edit)),
            votes,
            gain: [4, 7, 10, 13]
                .map(|origins| Gain { origins, times: f64::from(origins) / (1.0 + votes * f64::from(origins)) })
                .to_vec(),
        }
    }
}

impl Study {
    fn changing(&self, least_requests: u64) -> Vec<Changing> {
        let counted = |known: &Known| known.requests >= least_requests && known.transitions > 0;
        let mut found: Vec<(&String, &Known)> = self.urls.iter().filter(|(_, known)| counted(known)).collect();
        found.sort_by(|(_, left), (_, right)| {
            right.ratio().total_cmp(&left.ratio()).then(right.requests.cmp(&left.requests))
        });
        let told = |(url, known): (&String, &Known)| {
            let Known { requests, transitions, .. } = *known;
            Changing { url: url.clone(), requests, transitions, ratio: known.ratio() }
        };
        found.into_iter().take(MOST_CHANGING).map(told).collect()
    }
}

fn share(part: usize, of: usize) -> f64 {
    if of == 0 { 0.0 } else { part as f64 / of as f64 }
}

/// The share of sorted ratios at or below each of them.
fn distribution(ratios: &[f64]) -> Vec<Point> {
    let mut points: Vec<Point> = Vec::new();
    for (below, ratio) in (1..).zip(ratios) {
        let point = Point { ratio: *ratio, share: share(below, ratios.len()) };
        match points.last_mut() {
            Some(last) if last.ratio == *ratio => *last = point,
            _ => points.push(point),
        }
    }
    points
}

/// The share of URLs at or below a ratio.
pub fn share_at(points: &[Point], ratio: f64) -> f64 {
    points.iter().take_while(|point| point.ratio <= ratio).last().map_or(0.0, |point| point.share)
}

fn sites(counted: &[&Known]) -> Vec<Site> {
    let mut by_site: BTreeMap<&str, Vec<&Known>> = BTreeMap::new();
    counted.iter().for_each(|known| by_site.entry(&known.site).or_default().push(known));
    let mut sites: Vec<Site> = by_site
        .into_iter()
        .map(|(site, urls)| {
            let requests: u64 = urls.iter().map(|known| known.requests).sum();
            let transitions: u64 = urls.iter().map(|known| known.transitions).sum();
            let mut ratios: Vec<f64> = urls.iter().map(|known| known.ratio()).collect();
            ratios.sort_by(f64::total_cmp);
            Site {
                site: site.to_owned(),
                urls: urls.len() as u64,
                requests,
                purely_static: share(urls.iter().filter(|known| known.transitions == 0).count(), urls.len()),
                ratio: transitions as f64 / requests.saturating_sub(urls.len() as u64).max(1) as f64,
                points: distribution(&ratios),
            }
        })
        .collect();
    sites.sort_by_key(|site| std::cmp::Reverse(site.requests));
    sites.truncate(MOST_SITES);
    sites
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fetched(url: &str, site: &str, first_party: bool, body: String) -> Fetched {
        Fetched { url: url.to_owned(), site: site.to_owned(), first_party, body: Some(body.into_bytes()) }
    }

    #[test]
    fn static_and_changing_pages_are_told_apart() {
        let mut study = Study::default();
        for time in 0..41u64 {
            study.add(fetched("http://a/still", "a", true, "the same".repeat(100)));
            study.add(fetched("http://a/clock", "a", true, format!("{time}")));
            study.add(fetched("http://b/slow", "b", false, format!("{}{}", "x".repeat(5_000), time / 10)));
            study.add(Fetched { body: None, ..fetched("http://c/lost", "c", false, String::new()) });
            if time < 10 {
                study.add(fetched("http://a/rare", "a", true, format!("{time}")));
            }
        }
        let survey = study.survey(25);
        assert_eq!((survey.urls, survey.counted, survey.requests, survey.without_body), (4, 3, 133, 41));
        assert!((survey.purely_static - 1.0 / 3.0).abs() < 1e-9, "{survey:?}");
        assert!((survey.below_15_percent - 2.0 / 3.0).abs() < 1e-9, "{survey:?}");
        assert_eq!((survey.transitions, survey.compared), (44, 44));
        assert_eq!(share_at(&survey.third_party, 0.1), 1.0);
        assert_eq!(share_at(&survey.first_party, 0.5), 0.5);
        assert_eq!(survey.all.last().map(|point| (point.ratio, point.share)), Some((1.0, 1.0)));
        let votes = 47.0 / 123.0;
        assert!((survey.votes - votes).abs() < 1e-9 && (survey.gain[0].times - 4.0 / (1.0 + 4.0 * votes)).abs() < 1e-9);
        assert_eq!((survey.sites[0].site.as_str(), survey.sites[0].urls), ("a", 2));
        let points = |ratio, share| Point { ratio, share };
        assert_eq!(survey.sites[0].points, [points(0.0, 0.5), points(1.0, 1.0)]);
        assert_eq!(survey.sites[1].points, [points(0.1, 1.0)]);
        let drawn = svg(&survey);
        assert!(["all", "first party", ">\na\n<", ">\nb\n<"].iter().all(|line| drawn.contains(line)), "{drawn}");
        let changing: Vec<(&str, u64)> =
            survey.changing.iter().map(|page| (page.url.as_str(), page.transitions)).collect();
        assert_eq!(changing, [("http://a/clock", 40), ("http://b/slow", 4)]);
    }

    /// Bodies are cut up beside one another: what comes in between is the one before.
    #[test]
    fn a_page_is_compared_with_the_one_before_it_alone() {
        let mut study = Study::default();
        let body = |number: u8| vec![number; 1_000];
        let cut = |study: &Study, number| Cut::of(&body(number), study.last("a").as_ref());
        let count =
            |study: &mut Study, number, cut| study.count("a", ("s", true), BodyHash::of(&body(number)), Some(cut));
        let first = cut(&study, 1);
        count(&mut study, 1, first);
        let (second, third) = (cut(&study, 2), cut(&study, 3));
        count(&mut study, 2, second);
        count(&mut study, 3, third);
        let survey = study.survey(1);
        assert_eq!((survey.transitions, survey.compared), (2, 1), "the third was compared with the first");
    }

    #[test]
    fn nothing_gives_nothing() {
        let survey = Study::default().survey(25);
        assert_eq!((survey.counted, survey.purely_static, survey.all.len()), (0, 0.0, 0));
    }
}
