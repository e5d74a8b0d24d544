//! Every metric of this shell, by name; and what `sketch stats` shows of them.

use crate::engine::Engine;
use crate::sites::Sites;
use crate::sketching_core::{Core, CoreStats};
use http::StatusCode;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

const REQUESTS: &str = "tidings_sketch_requests_total";
const SECONDS: &str = "tidings_sketch_request_seconds";
const CONNECTIONS: &str = "tidings_sketch_connections";
const HANDSHAKES_FAILED: &str = "tidings_sketch_tls_handshakes_failed_total";
const TRIED_FAST: &str = "tidings_sketch_fast_tried_total";
const FAST: &str = "tidings_sketch_fast_total";
const REPLICATED: &str = "tidings_sketch_replicated_total";
const TRANSITIONS: &str = "tidings_sketch_transitions_total";
const LISTED: &str = "tidings_sketch_listed_total";
const REFUSED: &str = "tidings_sketch_refused_total";
const REMEMBERED: &str = "tidings_sketch_remembered_pages";
const GENERATION: &str = "tidings_sketch_rules_generation";
const RULES_REFUSED: &str = "tidings_sketch_rules_refused_total";
const MISMATCHES: &str = "tidings_sketch_origin_mismatches_total";
const SILENCES: &str = "tidings_sketch_origin_silences_total";
const DIFFERED: &str = "tidings_sketch_origin_differed_total";
const EJECTED: &str = "tidings_sketch_origin_ejected";
const UP: &str = "tidings_sketch_origin_up";
const CHECKS: &str = "tidings_sketch_origin_checks_total";
const CHECKS_FAILED: &str = "tidings_sketch_origin_checks_failed_total";
const CORE_RANGES: &str = "tidings_sketch_core_ranges";
const CORE_SHARE: &str = "tidings_sketch_core_share";
const CORE_FORWARDED: &str = "tidings_sketch_core_forwarded_total";
const CORE_SERVED: &str = "tidings_sketch_core_served_total";
const CORE_ASIDE: &str = "tidings_sketch_core_aside_total";
const CORE_UNANSWERED: &str = "tidings_sketch_core_unanswered_total";
const CORE_FOREIGN: &str = "tidings_sketch_core_foreign_total";
const CORE_CARRIED: &str = "tidings_sketch_core_carried_total";

/// Bounds of the latency histogram in seconds: from a page of loopback to the longest vote.
const BUCKETS: [f64; 10] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 10.0];

/// By bucket, how many there were, and how long all took.
type Seconds = ([u64; BUCKETS.len()], u64, f64);

/// What is counted here; the machines count the rest.
#[derive(Default)]
pub(crate) struct Metrics {
    /// By site, by how it was verified and by status. Those that are for no site are counted under no name.
    requests: Mutex<BTreeMap<(String, String, u16), u64>>,
    seconds: Mutex<BTreeMap<String, Seconds>>,
    pub(crate) connections: AtomicU64,
    pub(crate) handshakes_failed: AtomicU64,
    pub(crate) rules_refused: AtomicU64,
}

impl Metrics {
    pub(crate) fn answered(&self, site: &str, verified: &str, status: StatusCode, took: Duration) {
        let of = (site.to_owned(), verified.to_owned(), status.as_u16());
        *self.requests.lock().entry(of).or_default() += 1;
        let took = took.as_secs_f64();
        let mut seconds = self.seconds.lock();
        let (buckets, count, sum) = seconds.entry(site.to_owned()).or_default();
        BUCKETS.iter().zip(buckets).filter(|(bound, _)| took <= **bound).for_each(|(_, bucket)| *bucket += 1);
        *count += 1;
        *sum += took;
    }
}

/// What is counted of one site, or of all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counted {
    /// Requests, those that were refused too.
    pub requests: u64,
    /// Pages that one origin gave, and that were the remembered ones.
    pub fast: u64,
    /// Requests that one origin was asked for.
    pub tried_fast: u64,
    /// Requests that all origins were asked for.
    pub replicated: u64,
    /// Pages that had changed.
    pub transitions: u64,
    /// Requests that were put on the list of those that are never fast, or taken off it.
    pub listed: u64,
    /// Requests that the sketcher refused.
    pub refused: u64,
    /// Pages that are remembered.
    pub remembered: u64,
    /// How often rules were replaced: of one site, their generation.
    pub rules_generation: u64,
}

impl Counted {
    fn of(engine: &Engine) -> Counted {
        let counts = engine.counts();
        Counted {
            // What moved was asked again, here or by another proxy.
            requests: counts.asked - counts.moved,
            fast: counts.fast,
            tried_fast: counts.tried_fast,
            replicated: counts.replicated,
            transitions: counts.transitions,
            listed: counts.listed,
            refused: counts.refused,
            remembered: engine.remembered(),
            rules_generation: engine.rules().generation,
        }
    }

    fn and(self, other: Counted) -> Counted {
        Counted {
            requests: self.requests + other.requests,
            fast: self.fast + other.fast,
            tried_fast: self.tried_fast + other.tried_fast,
            replicated: self.replicated + other.replicated,
            transitions: self.transitions + other.transitions,
            listed: self.listed + other.listed,
            refused: self.refused + other.refused,
            remembered: self.remembered + other.remembered,
            rules_generation: self.rules_generation + other.rules_generation,
        }
    }

    /// Of all sites together.
    pub(crate) fn all(sites: &Sites) -> Counted {
        sites.all().iter().map(|site| Counted::of(site)).fold(Counted::default(), Counted::and)
    }
}

/// What a proxy says of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// Of all sites together.
    #[serde(flatten)]
    pub all: Counted,
    /// Files of rules that were refused.
    pub rules_refused: u64,
    /// Its part in a sketching core, if it is in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core: Option<CoreStats>,
    /// Each site.
    pub sites: Vec<SiteStats>,
}

/// What is counted of one site.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SiteStats {
    /// What it is called; nothing if it is the only one.
    pub name: String,
    /// How often what happened.
    #[serde(flatten)]
    pub counted: Counted,
    /// Each origin.
    pub origins: Vec<OriginStats>,
}

/// What is known of an origin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OriginStats {
    /// Its name.
    pub origin: String,
    /// Fast answers that differed though nothing had changed: it was wrong, or out of date.
    pub mismatches: u64,
    /// Fast reads that it did not answer in time.
    pub silences: u64,
    /// Votes in which it said something else than the quorum.
    pub differed: u64,
    /// Whether it is not asked alone at present.
    pub ejected: bool,
    /// Whether health checks find it up; nothing if there are none, or none has ended.
    pub up: Option<bool>,
    /// Health checks that have ended.
    pub checks: u64,
    /// Those that it failed.
    pub checks_failed: u64,
}

pub(crate) fn stats(sites: &Sites, core: Option<&Core>, metrics: &Metrics) -> Stats {
    Stats {
        all: Counted::all(sites),
        rules_refused: metrics.rules_refused.load(Relaxed),
        core: core.map(Core::stats),
        sites: sites.all().iter().map(|site| site_stats(site)).collect(),
    }
}

fn site_stats(engine: &Engine) -> SiteStats {
    let known = engine.names().into_iter().zip(engine.standing());
    let health = engine.health();
    SiteStats {
        name: engine.site.name.clone(),
        counted: Counted::of(engine),
        origins: known
            .enumerate()
            .map(|(at, (origin, (standing, differed)))| OriginStats {
                origin,
                mismatches: standing.mismatches,
                silences: standing.silences,
                differed,
                ejected: standing.ejected,
                up: health.get(at).and_then(|found| found.up),
                checks: health.get(at).map_or(0, |found| found.checks),
                checks_failed: health.get(at).map_or(0, |found| found.failed),
            })
            .collect(),
    }
}

/// In Prometheus' form.
pub(crate) fn text(sites: &Sites, core: Option<&Core>, metrics: &Metrics) -> String {
    let stats = stats(sites, core, metrics);
    let mut page = Text(String::new());
    page.head(REQUESTS, "counter", "HTTP requests by how their answers were verified, and by status.");
    for ((site, verified, status), count) in metrics.requests.lock().iter() {
        let labels = labelled([("site", site), ("verified", verified), ("status", &status.to_string())]);
        page.line(REQUESTS, &labels, *count as f64);
    }
    let mut seconds = metrics.seconds.lock().clone();
    for site in &stats.sites {
        seconds.entry(site.name.clone()).or_default();
    }
    page.histogram(&seconds);
    let (connections, failed) = (metrics.connections.load(Relaxed), metrics.handshakes_failed.load(Relaxed));
    page.one(CONNECTIONS, "gauge", "Open connections of clients.", connections);
    page.one(HANDSHAKES_FAILED, "counter", "TLS handshakes that failed or took too long.", failed);
    page.one(RULES_REFUSED, "counter", "Files of rules that were refused.", stats.rules_refused);
    type OfSite = (&'static str, &'static str, &'static str, fn(&Counted) -> u64);
    let by_site: [OfSite; 8] = [
        (TRIED_FAST, "counter", "Reads that one origin was asked for.", |of| of.tried_fast),
        (FAST, "counter", "Reads that one origin's page answered: it was the remembered one.", |of| of.fast),
        (REPLICATED, "counter", "Requests that all origins were asked for.", |of| of.replicated),
        (TRANSITIONS, "counter", "Votes whose page was not the remembered one.", |of| of.transitions),
        (LISTED, "counter", "Pages put on the list of those that are never fast, or taken off.", |of| of.listed),
        (REFUSED, "counter", "Requests that the sketcher refused.", |of| of.refused),
        (REMEMBERED, "gauge", "Pages that are remembered.", |of| of.remembered),
        (GENERATION, "gauge", "How often the rules were replaced.", |of| of.rules_generation),
    ];
    for (name, kind, help, value) in by_site {
        page.head(name, kind, help);
        for site in &stats.sites {
            page.line(name, &labels(site, None), value(&site.counted) as f64);
        }
    }
    if let Some(core) = &stats.core {
        page.core(core);
    }
    type OfOrigin = (&'static str, &'static str, &'static str, fn(&OriginStats) -> u64);
    let by_origin: [OfOrigin; 7] = [
        (MISMATCHES, "counter", "Pages of an origin alone that differed though nothing had changed.", |of| {
            of.mismatches
        }),
        (SILENCES, "counter", "Reads that an origin alone did not answer in time.", |of| of.silences),
        (DIFFERED, "counter", "Votes in which an origin said something else than the quorum.", |of| of.differed),
        (EJECTED, "gauge", "Whether an origin is not asked alone.", |of| u64::from(of.ejected)),
        (UP, "gauge", "Whether health checks find an origin up, or have not found otherwise.", |of| {
            u64::from(of.up.unwrap_or(true))
        }),
        (CHECKS, "counter", "Health checks of an origin that have ended.", |of| of.checks),
        (CHECKS_FAILED, "counter", "Health checks that an origin failed.", |of| of.checks_failed),
    ];
    for (name, kind, help, value) in by_origin {
        page.head(name, kind, help);
        for site in &stats.sites {
            for of in &site.origins {
                page.line(name, &labels(site, Some(of)), value(of) as f64);
            }
        }
    }
    page.0
}

/// A site that needs no name has none here, either.
fn labels(site: &SiteStats, origin: Option<&OriginStats>) -> String {
    labelled([("site", &site.name), ("origin", origin.map_or("", |of| &of.origin))])
}

/// Those that say something.
fn labelled<const N: usize>(labels: [(&str, &str); N]) -> String {
    let said = labels.into_iter().filter(|(_, value)| !value.is_empty());
    let said: Vec<String> = said.map(|(name, value)| format!("{name}=\"{value}\"")).collect();
    said.join(",")
}

/// Writing to a text does not fail.
struct Text(String);

impl Text {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn line(&mut self, name: &str, labels: &str, value: f64) {
        let _ = match labels {
            "" => writeln!(self.0, "{name} {value}"),
            _ => writeln!(self.0, "{name}{{{labels}}} {value}"),
        };
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: u64) {
        self.head(name, kind, help);
        self.line(name, "", value as f64);
    }

    fn core(&mut self, core: &CoreStats) {
        self.one(CORE_RANGES, "gauge", "Ranges of the core that this proxy holds.", core.ranges);
        self.head(CORE_SHARE, "gauge", "The share of all sketches that this proxy remembers, from 0 to 1.");
        self.line(CORE_SHARE, "", core.share);
        self.one(CORE_FORWARDED, "counter", "Requests that another proxy answered for this one.", core.forwarded);
        self.one(CORE_SERVED, "counter", "Requests that this proxy was asked for by others.", core.served);
        self.one(CORE_ASIDE, "counter", "Reads put to all origins for want of the owner of their range.", core.aside);
        self.one(CORE_UNANSWERED, "counter", "Times that another proxy gave no proper answer.", core.unanswered);
        self.one(CORE_FOREIGN, "counter", "Messages that were not of this core, its rules and origins.", core.foreign);
        self.one(CORE_CARRIED, "counter", "Remembered pages that came along with ranges.", core.carried);
    }

    fn histogram(&mut self, of: &BTreeMap<String, Seconds>) {
        self.head(SECONDS, "histogram", "How long requests took, until their answers began to leave.");
        let bucket = format!("{SECONDS}_bucket");
        for (site, (buckets, count, sum)) in of {
            for (bound, within) in BUCKETS.iter().zip(buckets) {
                self.line(&bucket, &labelled([("site", site), ("le", &bound.to_string())]), *within as f64);
            }
            self.line(&bucket, &labelled([("site", site), ("le", "+Inf")]), *count as f64);
            self.line(&format!("{SECONDS}_sum"), &labelled([("site", site)]), *sum);
            self.line(&format!("{SECONDS}_count"), &labelled([("site", site)]), *count as f64);
        }
    }
}
