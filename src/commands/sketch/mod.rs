//! `tidings sketch …`: the sketcher in front of web servers, until it is told to stop; and what it tells of itself.

mod asking;
mod rules;
mod sharing;
mod stats;
mod survey;

use super::signals::Signals;
use super::{bft, probe, runtime};
use crate::cli::sketch::{Behind, NewPages, Run, Sketch};
use crate::output;
use crate::stopwatch::wall_micros;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::Error;
use tidings_bft::membership::ClientSecrets;
use tidings_node::config::Log;
use tidings_node::logs;
use tidings_sketch::http::{Bodies, PathRule};
use tidings_sketch::sketcher::{Allowance, Way, Writes};
use tidings_sketch_proxy::{BftGroup, CellGroup, Checks, Config, Group, Identity, Proxy, Service, Stats};

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
    let rules = file.as_mut().map(rules::File::read).transpose()?;
    runtime()?.block_on(async {
        let mut signals = Signals::listen()?;
        let mut config = configured(args).await?;
        config.rules = rules.unwrap_or(config.rules);
        let (all, quorum) = (config.replicas(), config.quorum);
        // Who agrees, and who is asked for what is not fast.
        let (agree, others) = match &config.group {
            None => (format!("{quorum} of {all} origins must agree"), "all origins"),
            Some(Group::Bft(_)) => (format!("{quorum} of {all} replicas must agree"), "all replicas"),
            Some(Group::Cell(_)) => (format!("a cell of {all} members"), "the master"),
        };
        let scheme = if config.tls.is_some() { "https" } else { "http" };
        config.core = sharing::joined(&shared).await?;
        let proxy = Proxy::start(config).await?;
        let address = proxy.address();
        output::line(format_args!("listening on {scheme}://{address}; {agree}"));
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
            "{requests} requests: {fast} fast, {replicated} asked of {others}, {refused} refused; {transitions} pages changed"
        ));
        Ok(())
    })
}

/// The group that was named, if one was.
fn group(args: &Run) -> Result<Option<BftGroup>, Error> {
    let Some((group, client)) = args.group.as_ref().zip(args.client.as_ref()) else { return Ok(None) };
    if args.read_your_writes && args.service == Behind::Pages {
        return Err(output::usage("--read-your-writes is of keys: pages are not written here")
            .hint("Leave it out, or serve keys and values with --service keys."));
    }
    Ok(Some(BftGroup {
        membership: Arc::new(bft::group(group)?),
        client: ClientSecrets::parse(&bft::text(client)?)?,
        // Nonces must rise from process to process, and nothing is kept between them: the time does.
        last_nonce: wall_micros(),
        service: match args.service {
            Behind::Keys => Service::Keys,
            Behind::Pages => Service::Pages,
        },
    }))
}

/// The cell that was named, if one was.
async fn cell(args: &Run) -> Result<Option<CellGroup>, Error> {
    if args.cell.is_empty() {
        return Ok(None);
    }
    if args.read_your_writes && !args.cell_writes {
        return Err(output::usage("--read-your-writes needs --cell-writes: nothing is written here otherwise")
            .hint("Add --cell-writes, or leave it out."));
    }
    let key = args.cell_key.as_deref().filter(|key| !key.is_empty());
    CellGroup::meet(&args.cell, key, args.cell_ca.clone()).await.map(Some)
}

async fn configured(args: Run) -> Result<Config, Error> {
    let mut config = match (group(&args)?, cell(&args).await?) {
        (Some(group), _) => Config::of_group(args.listen, group)?,
        (None, Some(cell)) => {
            let config = Config::of_cell(args.listen, cell)?;
            Config { writes: if args.cell_writes { Writes::Replicated } else { Writes::Refused }, ..config }
        }
        (None, None) => {
            let mut config = Config::of(args.listen, &args.origins)?;
            config.faults = args.faults.unwrap_or(config.faults);
            config.quorum = args.quorum.unwrap_or_else(|| config.faults.saturating_add(1));
            config
        }
    };
    config.read_your_writes = args.read_your_writes;
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
