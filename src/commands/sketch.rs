//! `tidings sketch run`: the sketcher in front of web servers, until it is told to stop.

use super::signals::Signals;
use super::{probe, runtime};
use crate::cli::sketch::{Run, Sketch};
use crate::output;
use tidings_base::Error;
use tidings_node::config::Log;
use tidings_node::logs;
use tidings_sketch::http::PathRule;
use tidings_sketch::sketcher::{Way, Writes};
use tidings_sketch_proxy::{Config, Proxy};

/// Runs what was typed.
pub fn run(command: Sketch) -> Result<(), Error> {
    match command {
        Sketch::Run(args) => serve(args),
    }
}

fn serve(args: Run) -> Result<(), Error> {
    logs::init(&Log { filter: args.log.clone(), ..Log::default() })?;
    probe::raise_open_files();
    let config = configured(args)?;
    runtime()?.block_on(async {
        let mut signals = Signals::listen()?;
        let (origins, quorum) = (config.origins.len(), config.quorum);
        let proxy = Proxy::start(config).await?;
        output::line(format_args!("listening on http://{}; {quorum} of {origins} origins must agree", proxy.address()));
        signals.next().await;
        let counts = proxy.counts();
        output::line(format_args!(
            "{} requests: {} fast, {} asked of all origins, {} refused; {} pages changed",
            counts.asked, counts.fast, counts.replicated, counts.refused, counts.transitions
        ));
        Ok(())
    })
}

fn configured(args: Run) -> Result<Config, Error> {
    let mut config = Config::of(args.listen, &args.origins)?;
    config.faults = args.faults.unwrap_or(config.faults);
    config.quorum = args.quorum.unwrap_or_else(|| config.faults.saturating_add(1));
    config.unverified_rather_than_none = args.unverified_rather_than_none;
    config.entries = args.entries;
    config.longest_body = args.longest_body;
    if args.writes_to_one {
        config.writes = Writes::One;
    }
    let rule = |prefix, way| PathRule { prefix, way, personal_too: false };
    let white = args.unverified_paths.into_iter().map(|prefix| rule(prefix, Way::One));
    let black = args.agreed_paths.into_iter().map(|prefix| rule(prefix, Way::Replicated));
    config.rules.paths = white.chain(black).collect();
    Ok(config)
}
