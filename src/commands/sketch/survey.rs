//! `tidings sketch survey`: how static is my traffic.

use super::asking;
use crate::cli::sketch::Survey as Args;
use crate::output::{self, broken};
use std::fs::File;
use std::io::BufReader;
use tidings_base::{Class, Error};
use tidings_sketch_proxy::survey::{Study, Survey, read_har, share_at, svg};

/// Ratios at which the distributions are printed, in percent.
const RATIOS: [u32; 9] = [0, 1, 5, 10, 15, 25, 50, 75, 100];

/// Reads, counts, prints.
pub fn run(args: &Args) -> Result<(), Error> {
    let survey = match args.admin {
        Some(admin) => asking::ask(admin, &format!("/survey?least={}", args.least))?,
        None => recorded(args)?,
    };
    if survey.counted == 0 {
        let what = format!("no URL was asked for {} times with its body recorded", args.least);
        return Err(Error::new("sketch.nothing_to_survey", Class::Invalid, what)
            .hint("Record for longer, with content, or count URLs with fewer requests by --least."));
    }
    if let Some(path) = &args.svg {
        std::fs::write(path, svg(&survey))
            .map_err(|error| broken(format_args!("cannot write {}", path.display()), error))?;
    }
    match args.json {
        true => output::json(&survey),
        false => print(&survey),
    }
    Ok(())
}

fn recorded(args: &Args) -> Result<Survey, Error> {
    let mut study = Study::default();
    for path in &args.hars {
        let file = File::open(path).map_err(|error| broken(format_args!("cannot read {}", path.display()), error))?;
        read_har(&path.display().to_string(), BufReader::new(file))?.into_iter().for_each(|one| study.add(one));
    }
    Ok(study.survey(args.least))
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

fn print(survey: &Survey) {
    output::line(format_args!(
        "{} answers of {} URLs; {} more had no body recorded, {} were of more URLs than are followed. {} URLs were asked for \
         {} times or more:",
        survey.requests, survey.urls, survey.without_body, survey.not_followed, survey.counted, survey.least_requests
    ));
    output::line(format_args!(
        "{} never changed (the paper: 50 %), {} changed in less than 15 % of requests (the paper: 90 %)",
        percent(survey.purely_static),
        percent(survey.below_15_percent)
    ));
    let rows = RATIOS.map(|ratio| {
        let at = f64::from(ratio) / 100.0;
        let shares = [&survey.all, &survey.first_party, &survey.third_party].map(|of| match of.is_empty() {
            true => "-".to_owned(),
            false => percent(share_at(of, at)),
        });
        let [all, first, third] = shares;
        [format!("{ratio} %"), all, first, third]
    });
    output::table(["TRANSITIONS AT MOST", "ALL URLS", "FIRST PARTY", "THIRD PARTY"], rows);
    let sites = survey.sites.iter().map(|site| {
        let [urls, requests] = [site.urls, site.requests].map(|number| number.to_string());
        let below = percent(share_at(&site.points, 0.15));
        [site.site.clone(), urls, requests, percent(site.purely_static), below, percent(site.ratio)]
    });
    output::table(["SITE", "URLS", "REQUESTS", "NEVER CHANGED", "15 % AT MOST", "TRANSITIONS"], sites);
    output::line(format_args!(
        "of {} transitions {} could be compared; of these {} were one contiguous edit (the paper: 43 %), {} changed 30 % of \
         chunks or more (50 %), {} all (13 %)",
        survey.transitions,
        survey.compared,
        percent(survey.one_edit),
        percent(survey.third_new),
        percent(survey.all_new)
    ));
    output::line(format_args!("a sketcher would put {} of these requests to all origins:", percent(survey.votes)));
    let gains = survey.gain.iter().map(|gain| [gain.origins.to_string(), format!("{:.2} times", gain.times)]);
    output::table(["ORIGINS", "THROUGHPUT OVER ALL EXECUTING EVERYTHING"], gains);
}
