//! The console's page: how many reads are fast, which pages change, and who was wrong; live.
//!
//! ```text
//!   /            the page; its script (/console.js) listens to /live, and puts what comes into it
//!   /live        server-sent events: the same again, every two seconds
//! ```

use crate::drawing::{self, Frame, Line};
use crate::metrics::{self, Counted, Metrics, OriginStats, SiteStats};
use crate::sites::Sites;
use crate::sketching_core::{Core, CoreStats};
use crate::survey::{Changing, Live};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use parking_lot::Mutex;
use plotters::style::RGBColor;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// How often it is looked, and told.
pub(crate) const LOOK: Duration = Duration::from_secs(2);
/// Looks that are kept: ten minutes.
const LOOKS: usize = 300;
/// Pages that are told each look, at a time.
pub(crate) const MOST_LISTENERS: usize = 8;

/// What puts news into the page.
pub(crate) const SCRIPT: &str = "\
const live = document.getElementById('live');
const news = new EventSource('/live');
news.onmessage = event => { live.innerHTML = event.data; document.body.classList.remove('stale'); };
news.onerror = () => document.body.classList.add('stale');
";

const STYLE: &str = "\
body{font:15px/1.4 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem;color:#222}\
table{border-collapse:collapse;margin:.5rem 0 1.5rem}th,td{text-align:right;padding:.2rem .8rem;border-bottom:1px solid #ddd}\
th:first-child,td:first-child{text-align:left}.figures{display:flex;flex-wrap:wrap;gap:1.5rem;margin:1rem 0}\
.figures b{display:block;font-size:1.6rem}.bad{color:#b00;font-weight:600}.stale #live{opacity:.4}\
svg{max-width:100%;height:auto}";

/// What a page is made of.
pub(crate) struct Proxy<'a> {
    pub(crate) sites: &'a Sites,
    pub(crate) core: Option<&'a Core>,
    pub(crate) metrics: &'a Metrics,
    pub(crate) survey: Option<&'a Live>,
}

/// What was seen over time.
pub(crate) struct Console {
    start: Instant,
    looks: Mutex<VecDeque<(f64, Counted)>>,
    pub(crate) listeners: Arc<Semaphore>,
}

impl Default for Console {
    fn default() -> Console {
        let (start, listeners) = (Instant::now(), Arc::new(Semaphore::new(MOST_LISTENERS)));
        Console { start, looks: Mutex::default(), listeners }
    }
}

impl Console {
    /// Looks again and again, until it is dropped.
    pub(crate) async fn look(self: Arc<Self>, sites: Arc<Sites>) {
        loop {
            let (at, counts) = (self.start.elapsed().as_secs_f64(), Counted::all(&sites));
            {
                let mut looks = self.looks.lock();
                looks.push_back((at, counts));
                if looks.len() > LOOKS {
                    looks.pop_front();
                }
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// The whole page.
    pub(crate) fn page(&self, proxy: &Proxy<'_>) -> String {
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width";
                    title { "Sketch" }
                    style { (PreEscaped(STYLE)) }
                }
                body {
                    h1 { "Sketch" }
                    p { "Verified reads at the price of one: " code { "fast" } " was asked of one, " code { "agreed" } " of all." }
                    div id="live" { (self.live(proxy)) }
                    script src="/console.js" {}
                }
            }
        };
        page.into_string()
    }

    /// What changes on it.
    pub(crate) fn live(&self, proxy: &Proxy<'_>) -> Markup {
        let stats = metrics::stats(proxy.sites, proxy.core, proxy.metrics);
        html! {
            (figures(&stats.all))
            (PreEscaped(self.chart()))
            h2 { "Replicas" }
            @for site in &stats.sites { (site_of(site)) }
            @if let Some(core) = &stats.core { (shared(core)) }
            h2 { "Pages that change" }
            @match proxy.survey {
                Some(live) => (changing(&live.survey(2).changing)),
                None => p { "Not noted: start the proxy with " code { "--survey" } "." },
            }
        }
    }

    /// Reads a second over the last ten minutes.
    fn chart(&self) -> String {
        let looks = self.looks.lock();
        let rates = |count: fn(&Counted) -> u64| -> Vec<(f64, f64)> {
            let pairs = looks.iter().zip(looks.iter().skip(1));
            pairs.map(|((from, before), (to, after))| (*to, rate(count(before), count(after), to - from))).collect()
        };
        let (fast, agreed) = (rates(|counts| counts.fast), rates(|counts| counts.replicated));
        let most = fast.iter().chain(&agreed).map(|(_, rate)| *rate).fold(1.0, f64::max);
        let (from, to) = (looks.front().map_or(0.0, |look| look.0), looks.back().map_or(1.0, |look| look.0));
        let lines = [
            Line { name: "fast", colour: RGBColor(0, 150, 90), points: fast },
            Line { name: "agreed", colour: RGBColor(200, 90, 0), points: agreed },
        ];
        let below = "seconds since it was started; requests a second";
        let frame = Frame { width: 800, height: 260, x: from..to.max(from + 1.0), y: 0.0..most * 1.1, below };
        drawing::chart(frame, &lines)
    }
}

fn rate(before: u64, after: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { after.saturating_sub(before) as f64 / seconds } else { 0.0 }
}

fn percent(part: u64, of: u64) -> String {
    match of {
        0 => "none yet".to_owned(),
        _ => format!("{:.1} %", 100.0 * part as f64 / of as f64),
    }
}

fn figures(stats: &Counted) -> Markup {
    let figures = [
        (stats.requests.to_string(), "requests"),
        (percent(stats.fast, stats.fast + stats.replicated), "fast"),
        (percent(stats.transitions, stats.fast + stats.replicated), "changed"),
        (stats.remembered.to_string(), "pages remembered"),
        (stats.refused.to_string(), "refused"),
    ];
    html! { div class="figures" { @for (value, name) in figures { span { b { (value) } (name) } } } }
}

/// What is wrong with a replica now, if anything is.
fn trouble(of: &OriginStats) -> Option<&'static str> {
    match of {
        OriginStats { up: Some(false), .. } => Some("down"),
        OriginStats { ejected: true, .. } => Some("left out"),
        _ => None,
    }
}

/// A site's name, if it has one, with its figures; and what is behind it.
fn site_of(site: &SiteStats) -> Markup {
    html! {
        @if !site.name.is_empty() {
            h3 { (site.name) }
            (figures(&site.counted))
        }
        (replicas(&site.origins))
    }
}

fn replicas(all: &[OriginStats]) -> Markup {
    html! {
        table {
            tr { th { "" } th { "now" } th { "wrong alone" } th { "outvoted" } th { "silent" } }
            @for of in all {
                tr {
                    td { (of.origin) }
                    @match trouble(of) { Some(why) => td class="bad" { (why) }, None => td { "asked" } }
                    @for count in [of.mismatches, of.differed, of.silences] {
                        td class=[(count > 0).then_some("bad")] { (count) }
                    }
                }
            }
        }
    }
}

fn shared(core: &CoreStats) -> Markup {
    html! {
        h2 { "Its part of the core" }
        @if let Some(refusal) = &core.refusal { p class="bad" { (refusal) } }
        table {
            tr { th { "name" } th { "share" } th { "forwarded" } th { "served" } th { "aside" } th { "unanswered" } }
            tr {
                td { (core.name) }
                td { (format!("{:.1} %", 100.0 * core.share)) }
                @for count in [core.forwarded, core.served, core.aside, core.unanswered] { td { (count) } }
            }
        }
    }
}

fn changing(pages: &[Changing]) -> Markup {
    html! {
        @if pages.is_empty() { p { "None has changed." } } @else {
            table {
                tr { th { "URL" } th { "requests" } th { "changes" } th { "ratio" } }
                @for page in pages {
                    tr {
                        td { (page.url) }
                        td { (page.requests) }
                        td { (page.transitions) }
                        td { (format!("{:.1} %", 100.0 * page.ratio)) }
                    }
                }
            }
        }
    }
}
