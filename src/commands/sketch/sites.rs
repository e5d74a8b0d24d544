//! What is behind a proxy, as it was typed, or as a file of sites says it: with the same flags, as keys.
//!
//! ```toml
//! [[site]]
//! name = "shop"
//! hosts = ["shop.example", "*.shop.example"]
//! origin = ["http://10.0.0.1", "http://10.0.0.2", "http://10.0.0.3"]
//! writes_to_one = true
//! rules = "shop.rules.toml"
//! ```

use super::rules;
use crate::cli::sketch::{Behind, InFile, NewPages, Site as Args};
use crate::commands::bft;
use crate::output;
use crate::stopwatch::wall_micros;
use clap::{CommandFactory, Parser};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Class, Error};
use tidings_bft::membership::ClientSecrets;
use tidings_sketch::http::{Bodies, PathRule};
use tidings_sketch::sketcher::{Allowance, Way, Writes};
use tidings_sketch_proxy::{BftGroup, CellGroup, Checks, Group, Service, Site, of_site};
use toml::{Table, Value};

/// The longest file of sites.
const LONGEST: u64 = 1 << 20;

/// A site as it was asked for.
pub struct Asked {
    name: String,
    /// Nothing for the only one, whose hosts are all.
    hosts: Option<Vec<String>>,
    args: Args,
}

/// The only site there is.
pub fn only(args: Args) -> Vec<Asked> {
    vec![Asked { name: String::new(), hosts: None, args }]
}

/// The sites of a file; for what it does not say of cells, as was typed or the environment says.
pub fn read(path: &Path, typed: &Args) -> Result<Vec<Asked>, Error> {
    let bad = |why: String| {
        Error::new("sketch.bad_sites", Class::Invalid, format!("{}: {why}", path.display())).hint(
            "A file of sites has a [[site]] for each, with name, hosts, and flags of `tidings sketch run` as keys; docs/sketch.md \
             shows one.",
        )
    };
    let length = std::fs::metadata(path).map_err(|error| bad(error.to_string()))?.len();
    if length > LONGEST {
        return Err(bad(format!("it is longer than {LONGEST} bytes")));
    }
    let text = std::fs::read_to_string(path).map_err(|error| bad(error.to_string()))?;
    parse(&text, typed).map_err(bad)
}

fn parse(text: &str, typed: &Args) -> Result<Vec<Asked>, String> {
    let mut file: Table = toml::from_str(text).map_err(|error| error.to_string())?;
    let sites = file.remove("site").unwrap_or(Value::Array(Vec::new()));
    if let Some(key) = file.keys().next() {
        return Err(format!("`{key}` is outside of any [[site]]"));
    }
    let Value::Array(sites) = sites else { return Err("`site` is not [[site]]".to_owned()) };
    if sites.is_empty() {
        return Err("there is no [[site]] in it".to_owned());
    }
    let mut all = Vec::new();
    for (at, site) in sites.into_iter().enumerate() {
        let number = at + 1;
        let Value::Table(mut site) = site else { return Err(format!("site {number} is no table")) };
        let name = match site.remove("name") {
            Some(Value::String(name)) => name,
            Some(_) => return Err(format!("site {number}: `name` is no string")),
            None => return Err(format!("site {number} has no name")),
        };
        let hosts = hosts(site.remove("hosts")).map_err(|why| format!("site {name}: {why}"))?;
        let says = ["cell_key", "cell_ca"].map(|key| site.contains_key(key));
        let mut args = arguments(site).map_err(|why| format!("site {name}: {why}"))?;
        if !says[0] {
            args.cell_key.clone_from(&typed.cell_key);
        }
        if !says[1] {
            args.cell_ca.clone_from(&typed.cell_ca);
        }
        all.push(Asked { name, hosts: Some(hosts), args });
    }
    Ok(all)
}

fn hosts(said: Option<Value>) -> Result<Vec<String>, String> {
    let wrong = || "`hosts` is a list of strings such as [\"shop.example\", \"*.shop.example\"], or [\"*\"]".to_owned();
    let Some(Value::Array(hosts)) = said else { return Err(wrong()) };
    hosts.into_iter().map(|host| host.as_str().map(str::to_owned).ok_or_else(wrong)).collect()
}

/// Keys as they would have been typed, and what they mean.
fn arguments(keys: Table) -> Result<Args, String> {
    let (mut typed, known) = (Vec::new(), InFile::command());
    for (key, value) in keys {
        let name = key.replace('_', "-");
        if !known.get_arguments().any(|argument| argument.get_long() == Some(&name)) {
            return Err(format!("`{key}` is no flag of what is behind a site"));
        }
        let flag = format!("--{name}");
        let values = match value {
            Value::Array(values) => values,
            value => vec![value],
        };
        for value in values {
            match value {
                Value::Boolean(true) => typed.push(flag.clone()),
                Value::Boolean(false) => {}
                Value::String(value) => typed.push(format!("{flag}={value}")),
                Value::Integer(value) => typed.push(format!("{flag}={value}")),
                _ => return Err(format!("`{key}` is a string, a number, true, or a list of these")),
            }
        }
    }
    let file = InFile::try_parse_from(typed).map_err(|error| {
        let told = error.to_string();
        let lines = told.lines().map(str::trim).take_while(|line| !line.is_empty() && !line.starts_with("Usage"));
        lines.collect::<Vec<_>>().join(" ").trim_start_matches("error: ").to_owned()
    })?;
    Ok(file.site)
}

/// A site as the proxy takes it, and its file of rules.
pub async fn configured(asked: Asked) -> Result<(Site, Option<rules::File>), Error> {
    let Asked { name, hosts, args } = asked;
    let mut file = args.rules.clone().map(rules::File::new);
    let rules = file.as_mut().map(rules::File::read).transpose().map_err(|error| of_site(&name, error))?;
    let mut site = site(args).await.map_err(|error| of_site(&name, error))?;
    site.rules = rules.unwrap_or(site.rules);
    site.name = name;
    site.hosts = hosts.unwrap_or(site.hosts);
    Ok((site, file))
}

/// The group that was named, if one was.
fn group(args: &Args) -> Result<Option<BftGroup>, Error> {
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
async fn cell(args: &Args) -> Result<Option<CellGroup>, Error> {
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

async fn site(args: Args) -> Result<Site, Error> {
    let mut site = match (group(&args)?, cell(&args).await?) {
        (Some(group), _) => Site::of_group(group)?,
        (None, Some(cell)) => {
            let writes = if args.cell_writes { Writes::Replicated } else { Writes::Refused };
            Site { writes, ..Site::of_cell(cell)? }
        }
        (None, None) if args.origins.is_empty() => {
            return Err(output::usage("nothing is named that is to be served").hint(
                "Name each server with --origin, a BFT group with --group and --client, a cell with --cell, or several sites with \
                 --sites.",
            ));
        }
        (None, None) => {
            let site = Site::of(&args.origins)?;
            let faults = args.faults.unwrap_or(site.faults);
            Site { faults, quorum: args.quorum.unwrap_or_else(|| faults.saturating_add(1)), ..site }
        }
    };
    site.read_your_writes = args.read_your_writes;
    site.unverified_rather_than_none = args.unverified_rather_than_none;
    site.entries = args.entries;
    site.longest_request = args.memory_body;
    site.bodies =
        Bodies { memory: args.memory_body as u64, disk: args.longest_body, unverified_above: args.unverified_above };
    site.spool = args.spool.unwrap_or(site.spool);
    site.patience = Duration::from_millis(args.patience);
    site.give_up = Duration::from_millis(args.give_up);
    site.origin_ca = args.origin_ca;
    site.checks = args.health_path.as_deref().map(Checks::of).transpose()?;
    if let Some(checks) = &mut site.checks {
        checks.interval = Duration::from_millis(args.health_interval);
        checks.patience = Duration::from_millis(args.health_patience);
        (checks.down, checks.up) = (args.health_down, args.health_up);
    }
    site.allowance = match args.new_pages {
        NewPages::Any => None,
        NewPages::Limited { burst, a_second } => {
            Some(Allowance { burst, every: Duration::from_secs(1).checked_div(a_second).unwrap_or_default() })
        }
    };
    if args.writes_to_one {
        site.writes = Writes::One;
    }
    let rule = |prefix, way| PathRule { prefix, way, personal_too: false };
    let white = args.unverified_paths.into_iter().map(|prefix| rule(prefix, Way::One));
    let black = args.agreed_paths.into_iter().map(|prefix| rule(prefix, Way::Replicated));
    site.rules.paths = white.chain(black).collect();
    Ok(site)
}

/// Who must agree before a page of it is served.
pub fn agreement(site: &Site) -> String {
    let (all, quorum) = (site.replicas(), site.quorum);
    match &site.group {
        None => format!("{quorum} of {all} origins must agree"),
        Some(Group::Bft(_)) => format!("{quorum} of {all} replicas must agree"),
        Some(Group::Cell(_)) => format!("a cell of {all} members"),
    }
}

/// What whoever starts it should know: there is nothing to compare an origin's word with.
pub fn warning(site: &Site) -> Option<String> {
    let compares = site.group.is_some() || site.quorum > 1 || site.replicas() > 2;
    let of = if site.name.is_empty() { String::new() } else { format!("site {}: ", site.name) };
    let what = "with fewer than three origins no wrong one is found: name three or more, or let two agree (--quorum 2)";
    (!compares).then(|| format!("warning: {of}{what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(arguments: &[&str]) -> Args {
        InFile::try_parse_from(arguments).unwrap().site
    }

    #[test]
    fn keys_are_flags() {
        let text = r#"
            [[site]]
            name = "shop"
            hosts = ["shop.example", "*.shop.example"]
            origin = ["http://a", "http://b", "http://c"]
            faults = 1
            writes_to_one = true
            unverified_rather_than_none = false
            agreed_path = "/account/"

            [[site]]
            name = "town"
            hosts = ["*"]
            group = "group.toml"
            client = "client-1.toml"
            service = "pages"
            cell_key = "own"
        "#;
        let sites = parse(text, &typed(&["--cell-key", "typed"])).unwrap();
        let [shop, town] = &sites[..] else { panic!("two sites") };
        assert_eq!(shop.args.origins, ["http://a", "http://b", "http://c"]);
        assert_eq!((shop.args.faults, shop.args.writes_to_one), (Some(1), true));
        assert!(!shop.args.unverified_rather_than_none && shop.args.agreed_paths == ["/account/"]);
        assert_eq!((shop.args.patience, shop.args.entries), (1_000, 1 << 20), "what is not said is as without it");
        assert_eq!([shop, town].map(|site| site.args.cell_key.as_deref()), [Some("typed"), Some("own")]);
        assert_eq!((town.args.service, town.hosts.as_deref()), (Behind::Pages, Some(&["*".to_owned()][..])));
    }

    #[test]
    fn mistakes_say_where_and_what() {
        let parse = |text: &str| super::parse(text, &typed(&[])).err().unwrap();
        let of = |keys: &str| parse(&format!("[[site]]\nname = \"shop\"\nhosts = [\"a\"]\n{keys}"));
        for (keys, why) in [
            ("orgin = [\"http://a\"]", "site shop: `orgin` is no flag"),
            ("writes_to_two = false", "site shop: `writes_to_two` is no flag"),
            ("origin = [1.5]", "site shop: `origin` is a string"),
            ("origin = [\"http://a\"]\nfaults = -1", "site shop: invalid value '-1' for '--faults"),
            ("origin = [\"http://a\"]\ngroup = \"g\"\nclient = \"c\"", "site shop: the argument"),
            ("group = \"g\"", "site shop: the following required arguments were not provided: --client <FILE>"),
            ("listen = \":80\"", "site shop: `listen` is no flag"),
            ("unverified_path = [\"/a\", \"img\"]", "site shop: invalid value 'img' for '--unverified-path <PREFIX>'"),
        ] {
            assert!(of(keys).starts_with(why), "{keys}: {}", of(keys));
        }
        for (text, why) in [
            ("", "there is no [[site]] in it"),
            ("x = 1", "`x` is outside"),
            ("site = 1", "`site` is not [[site]]"),
            ("[[site]]\nhosts = [\"a\"]", "site 1 has no name"),
            ("[[site]]\nname = 1", "site 1: `name` is no string"),
            ("[[site]]\nname = \"a\"", "site a: `hosts` is a list"),
            ("[[site]]\nname = \"a\"\nhosts = \"a\"", "site a: `hosts` is a list"),
        ] {
            let told = parse(text);
            assert!(told.starts_with(why), "{text}: {told}");
        }
    }
}
