//! `tidings sketch …`: the sketcher in front of web servers, until it is told to stop; and what it tells of itself.

mod asking;
mod rules;
mod sharing;
mod stats;
mod survey;

use super::signals::Signals;
use super::{probe, runtime};
use crate::cli::sketch::{NewPages, Run, Sketch};
use crate::output;
use std::time::Duration;
use tidings_base::Error;
use tidings_node::config::Log;
use tidings_node::logs;
use tidings_sketch::http::{Bodies, PathRule};
use tidings_sketch::sketcher::{Allowance, Way, Writes};
use tidings_sketch_proxy::{Checks, Config, Identity, Proxy, Stats};

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
    let mut file = args.rules.clone().map(rules::File::new);
    let shared = sharing::Sharing::of(&args);
    let mut config = configured(args)?;
    if let Some(file) = &mut file {
        config.rules = file.read()?;
    }
    runtime()?.block_on(async {
        let mut signals = Signals::listen()?;
        let (origins, quorum) = (config.origins.len(), config.quorum);
        let scheme = if config.tls.is_some() { "https" } else { "http" };
        config.core = sharing::joined(&shared).await?;
        let proxy = Proxy::start(config).await?;
        let address = proxy.address();
        output::line(format_args!("listening on {scheme}://{address}; {quorum} of {origins} origins must agree"));
        if let Some(admin) = proxy.admin() {
            output::line(format_args!("telling metrics on http://{admin}/metrics"));
        }
        match file {
            None => drop(signals.next().await),
            Some(file) => tokio::select! {
                _ = signals.next() => {}
                never = file.watch(&proxy) => match never? {},
            },
        }
        // It serves while it hands over; whoever is in a hurry says so again.
        tokio::select! {
            () = proxy.leave_core(LEAVING) => {}
            _ = signals.next() => {}
        }
        let Stats { requests, fast, replicated, refused, transitions, .. } = proxy.stats();
        output::line(format_args!(
            "{requests} requests: {fast} fast, {replicated} asked of all origins, {refused} refused; {transitions} pages changed"
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
    config.longest_request = args.memory_body;
    config.bodies =
        Bodies { memory: args.memory_body as u64, disk: args.longest_body, unverified_above: args.unverified_above };
    config.spool = args.spool.unwrap_or(config.spool);
    config.patience = Duration::from_millis(args.patience);
    config.give_up = Duration::from_millis(args.give_up);
    config.origin_ca = args.origin_ca;
    config.admin = args.admin;
    config.survey = args.survey;
    config.checks = args.health_path.as_deref().map(Checks::of).transpose()?;
    if let Some(checks) = &mut config.checks {
        checks.interval = Duration::from_millis(args.health_interval);
        checks.patience = Duration::from_millis(args.health_patience);
        (checks.down, checks.up) = (args.health_down, args.health_up);
    }
    config.allowance = match args.new_pages {
        NewPages::Any => None,
        NewPages::Limited { burst, a_second } => {
            Some(Allowance { burst, every: Duration::from_secs(1).checked_div(a_second).unwrap_or_default() })
        }
    };
    config.tls = args.certificate.zip(args.key).map(|(certificate, key)| Identity { certificate, key });
    if args.writes_to_one {
        config.writes = Writes::One;
    }
    let rule = |prefix, way| PathRule { prefix, way, personal_too: false };
    let white = args.unverified_paths.into_iter().map(|prefix| rule(prefix, Way::One));
    let black = args.agreed_paths.into_iter().map(|prefix| rule(prefix, Way::Replicated));
    config.rules.paths = white.chain(black).collect();
    Ok(config)
}
