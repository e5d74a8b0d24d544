//! `tidings sketch …`: the sketcher in front of web servers, until it is told to stop; and what it tells of itself.

mod asking;
mod rules;
mod sharing;
mod sites;
mod stats;
mod survey;

use super::signals::Signals;
use super::{probe, runtime};
use crate::cli::sketch::{Run, Sketch};
use crate::output;
use futures::future::{select_all, try_join_all};
use std::time::Duration;
use tidings_base::Error;
use tidings_node::config::Log;
use tidings_node::logs;
use tidings_sketch_proxy::{Config, Counted, Group, Identity, Proxy, Site};

/// How long a proxy has to hand its part of a core over when it is told to stop.
const LEAVING: Duration = Duration::from_secs(20);

/// Runs what was typed.
pub fn run(command: Sketch) -> Result<(), Error> {
    match command {
        Sketch::Run(args) => serve(*args),
        Sketch::Stats(args) => stats::run(&args),
        Sketch::Survey(args) => survey::run(&args),
    }
}

fn serve(args: Run) -> Result<(), Error> {
    logs::init(&Log { filter: args.log.clone(), ..Log::default() })?;
    probe::raise_open_files();
    let shared = sharing::Sharing::of(&args);
    let Run { site, sites, listen, certificate, key, admin, survey, threads, .. } = args;
    let asked = match sites {
        Some(path) => sites::read(&path, &site)?,
        None => sites::only(site),
    };
    runtime()?.block_on(async {
        let mut signals = Signals::listen()?;
        let (mut all, mut files) = (Vec::new(), Vec::new());
        // Together: each cell is met, and may take its time.
        for (site, file) in try_join_all(asked.into_iter().map(sites::configured)).await? {
            files.extend(file.map(|file| (all.len(), file)));
            all.push(site);
        }
        let tls = certificate.zip(key).map(|(certificate, key)| Identity { certificate, key });
        let scheme = if tls.is_some() { "https" } else { "http" };
        let told = told(&all);
        let warnings: Vec<String> = all.iter().filter_map(sites::warning).collect();
        let core = sharing::joined(&shared).await?;
        let others = others(&all);
        let config = Config::new(listen, all);
        let threads = threads.unwrap_or(config.threads);
        let proxy = Proxy::start(Config { tls, admin, survey, core, threads, ..config }).await?;
        let (first, further) = told;
        output::line(format_args!("listening on {scheme}://{}; {first}", proxy.address()));
        further.iter().for_each(|site| output::line(format_args!("  {site}")));
        warnings.iter().for_each(output::note);
        if let Some(admin) = proxy.admin() {
            output::line(format_args!("telling metrics on http://{admin}/metrics"));
        }
        if files.is_empty() {
            let _ = signals.next().await;
        } else {
            let watched = select_all(files.into_iter().map(|(site, file)| Box::pin(file.watch(&proxy, site))));
            tokio::select! {
                _ = signals.next() => {}
                (never, ..) = watched => match never? {},
            }
        }
        // It serves while it hands over; whoever is in a hurry says so again.
        tokio::select! {
            () = proxy.leave_core(LEAVING) => {}
            _ = signals.next() => {}
        }
        let Counted { requests, fast, replicated, refused, transitions, .. } = proxy.stats().all;
        output::line(format_args!(
            "{requests} requests: {fast} fast, {replicated} asked of {others}, {refused} refused; {transitions} pages changed"
        ));
        Ok(())
    })
}

/// Who must agree: of the only site, or in a line for each.
fn told(sites: &[Site]) -> (String, Vec<String>) {
    match sites {
        [only] => (sites::agreement(only), Vec::new()),
        several => {
            let of = |site: &Site| format!("{} ({}): {}", site.name, site.hosts.join(", "), sites::agreement(site));
            (format!("{} sites", several.len()), several.iter().map(of).collect())
        }
    }
}

/// Who is asked for what is not fast.
fn others(sites: &[Site]) -> &'static str {
    match sites {
        [Site { group: Some(Group::Bft(_)), .. }] => "all replicas",
        [Site { group: Some(Group::Cell(_)), .. }] => "the master",
        _ => "all origins",
    }
}
