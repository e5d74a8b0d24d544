//! `tidings sketch stats`: what a running proxy has counted.

use super::asking;
use crate::cli::sketch::Stats as Args;
use crate::output;
use tidings_base::Error;
use tidings_sketch_proxy::{Counted, OriginStats, Stats};

/// Asks, and prints.
pub fn run(args: &Args) -> Result<(), Error> {
    let stats: Stats = asking::ask(args.admin, "/stats")?;
    if args.json {
        output::json(&stats);
        return Ok(());
    }
    counted(&stats.all);
    output::line(format_args!("{} files of rules refused", stats.rules_refused));
    if let Some(core) = &stats.core {
        output::line(format_args!(
            "core, as {}: {} ranges, {:.1} % of all pages; {} requests answered by others and {} for others, {} asked of all \
             origins for want of an owner; {} times no answer, {} messages not of this core; {} pages came along with ranges",
            core.name,
            core.ranges,
            100.0 * core.share,
            core.forwarded,
            core.served,
            core.aside,
            core.unanswered,
            core.foreign,
            core.carried,
        ));
    }
    if let Some(why) = stats.core.as_ref().and_then(|core| core.refusal.as_ref()) {
        output::line(format_args!("placement refuses it, so all origins are asked: {why}"));
    }
    for site in stats.sites {
        if !site.name.is_empty() {
            output::line("");
            output::line(&site.name);
            counted(&site.counted);
        }
        origins(site.origins);
    }
    Ok(())
}

fn counted(of: &Counted) {
    let share =
        |part: u64, of: u64| if of == 0 { "-".to_owned() } else { format!("{:.1} %", 100.0 * part as f64 / of as f64) };
    output::line(format_args!(
        "{} requests: {} fast ({}), {} asked of all origins, {} refused; {} pages changed ({} of votes)",
        of.requests,
        of.fast,
        share(of.fast, of.requests),
        of.replicated,
        of.refused,
        of.transitions,
        share(of.transitions, of.replicated),
    ));
    output::line(format_args!("{} pages remembered; rules replaced {} times", of.remembered, of.rules_generation));
}

fn origins(origins: Vec<OriginStats>) {
    let rows = origins.into_iter().map(|of| {
        let asked = if of.ejected { "no" } else { "yes" };
        let health = match of.up {
            None => "not checked".to_owned(),
            Some(up) => {
                format!("{} ({} of {} checks failed)", if up { "up" } else { "down" }, of.checks_failed, of.checks)
            }
        };
        let [wrong, silent, outvoted] = [of.mismatches, of.silences, of.differed].map(|count| count.to_string());
        [of.origin, wrong, silent, outvoted, health, asked.to_owned()]
    });
    output::table(["ORIGIN", "WRONG ALONE", "SILENT ALONE", "OUTVOTED", "HEALTH", "ASKED ALONE"], rows);
}
