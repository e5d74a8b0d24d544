//! Reading configurations: examples are true, mistakes are named with their place.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use tidings_node::Config;
use tidings_node::config::{Member, Time, Tls};
use tidings_node::notify::Hook;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn examples() -> PathBuf {
    root().join("examples/config")
}

/// A row of `docs/timings.md`.
struct Row {
    names: Vec<String>,
    value: String,
    file: String,
}

fn rows_of_times() -> Vec<Row> {
    let page = fs::read_to_string(root().join("docs/timings.md")).unwrap();
    let row = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        assert_eq!(cells.len(), 6, "{line}");
        let names = cells[0].split(", ").map(|name| name.trim_matches('`').to_owned()).collect();
        Row { names, value: cells[1].to_owned(), file: cells[5].trim_matches('`').to_owned() }
    };
    page.lines().filter(|line| line.starts_with("| `")).map(row).collect()
}

/// Every time of a configuration, by its key.
fn times(within: &str, table: &toml::Table, found: &mut BTreeMap<String, String>) {
    for (key, value) in table {
        let name = if within.is_empty() { key.clone() } else { format!("{within}.{key}") };
        match value {
            toml::Value::Table(table) => times(&name, table, found),
            toml::Value::String(text) if text.parse::<Time>().is_ok() => {
                found.insert(name, text.clone());
            }
            _ => {}
        }
    }
}

fn load(text: &str) -> Result<Config, tidings_base::Error> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("node.toml");
    fs::write(&path, text).unwrap();
    let config = Config::load(&path)?;
    config.validate_in(&path)?;
    Ok(config)
}

#[test]
fn all_examples_load_and_are_valid() {
    let mut seen = 0;
    for entry in fs::read_dir(examples()).unwrap() {
        let path = entry.unwrap().path();
        let config = Config::load(&path).unwrap_or_else(|e| panic!("{e}"));
        config.validate().unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        seen += 1;
    }
    assert!(seen >= 3);
}

#[test]
fn the_reference_is_the_defaults() {
    let mut config = Config::load(examples().join("reference.toml")).unwrap();
    config.data = Config::default().data;
    assert_eq!(config, Config::default());
    let text = fs::read_to_string(examples().join("reference.toml")).unwrap();
    let as_written = toml::to_string(&Config::default()).unwrap();
    for (key, _) in as_written.lines().filter_map(|line| line.split_once(" = ")) {
        let is_there = text.contains(&format!("{key} = ")) || text.contains(&format!("{key}]]"));
        assert!(is_there, "`{key}` is not in the reference");
    }
}

#[test]
fn the_page_of_times_names_every_time_with_its_default() {
    let mut config = Config::default();
    config.notify.hooks.insert("APP".to_owned(), Hook::default());
    let table: toml::Table = toml::from_str(&toml::to_string(&config).unwrap()).unwrap();
    let mut defaults = BTreeMap::new();
    times("", &table, &mut defaults);
    assert!(defaults.len() >= 30, "{defaults:?}");
    let mut page = BTreeMap::new();
    for row in rows_of_times() {
        for name in row.names.into_iter().filter(|name| name.contains('.')) {
            assert!(page.insert(name.clone(), row.value.clone()).is_none(), "`{name}` is on the page twice");
        }
    }
    assert_eq!(page, defaults, "left: docs/timings.md, right: the defaults");
}

#[test]
fn what_the_page_of_times_names_is_where_it_says() {
    let rows = rows_of_times();
    assert!(rows.len() >= 100);
    for row in rows {
        let folder = if row.file.starts_with("src/") { root() } else { root().join("crates") };
        let code = fs::read_to_string(folder.join(&row.file)).unwrap_or_else(|e| panic!("{}: {e}", row.file));
        for name in row.names {
            let last = name.rsplit(['.', ':']).next().unwrap_or_default();
            assert!(code.contains(last), "{} has no `{last}`", row.file);
        }
    }
}

#[test]
fn mistakes_are_told_with_file_line_and_what_was_expected() {
    for (text, place, expected) in [
        ("node = 1\nlisten = 7\n", ":2:10:", "socket address"),
        (
            "node = 1\n\n[limits]\nconections = 5\n",
            ":4:1:",
            "unknown field `conections`, expected one of `connections`",
        ),
        ("[timings]\ncall = \"soon\"\n", ":2:8:", "a duration such as"),
        ("[timings]\ncall = 12\n", ":2:8:", "a duration such as"),
        ("node = \n", ":1:8:", ""),
        ("roles = [\"cook\"]\n", ":1:10:", "unknown variant `cook`, expected one of `cell`"),
        ("[tls]\nkey = \"k\"\n", ":1:1:", "missing field `certificate`"),
        ("[[auth.issuers]]\nissuer = \"i\"\naudience = \"a\"\nalgorithm = \"none\"\napp = \"a\"\n", ":4:13:", "none"),
    ] {
        let error = load(text).unwrap_err();
        assert_eq!(error.code, "node.bad_config");
        assert!(error.message.contains(&format!("node.toml{place}")), "{text:?}: {error}");
        assert!(error.message.contains(expected), "{text:?}: {error}");
    }
    // What single values do not show: the whole would not work.
    for (text, place, expected) in [
        ("node = 1\n[notify]\nlease = \"5s\"\n", "node.toml:3:", "does not outlast a fail-over of the managers"),
        ("[placement]\nfail_over = \"10s\"\n", "", "`notify.lease` is 12s"),
        ("[notify]\nrenew = \"12s\"\n", "node.toml:2:", "does not outlast"),
        ("[notify]\nkeep_tombstones = \"19s\"\n", "node.toml:2:", "`notify.keep_tombstones` is 19s"),
        ("[limits]\noperation_bytes = 7\n", "node.toml:2:", "less than one frame"),
        ("[timings]\n\ncall = \"0s\"\n", "node.toml:3:", "`timings.call` is zero"),
        ("[cell]\nlease = \"2m\"\n", "node.toml:2:", "`cell.lease` is 2m"),
    ] {
        let error = load(text).unwrap_err();
        assert_eq!(error.code, "node.bad_config");
        assert!(error.message.contains(place) && error.message.contains(expected), "{text:?}: {error}");
    }
    let missing = Config::load("/nonexistent/node.toml").unwrap_err();
    assert_eq!((missing.code.as_ref(), missing.class.exit_code()), ("node.no_config", 3));
}

#[test]
fn relative_paths_are_seen_from_the_files_directory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("node.toml");
    fs::write(&path, "data = \"d\"\n[tls]\ncertificate = \"c\"\nkey = \"/k\"\n").unwrap();
    let config = Config::load(&path).unwrap();
    assert_eq!(config.data, dir.path().join("d"));
    assert_eq!(config.tls.unwrap().certificate, dir.path().join("c"));
}

#[test]
fn beyond_loopback_needs_tls_and_authentication_or_an_insecure_word() {
    let tls = Tls { certificate: "c".into(), key: "k".into(), client_ca: None };
    let mut config = Config { listen: "0.0.0.0:7400".parse().unwrap(), ..Config::default() };
    let refused = |config: &Config| config.validate().unwrap_err();
    assert_eq!(refused(&config).code, "node.insecure_listen");
    assert!(refused(&config).message.contains("TLS and authentication are not configured"));
    config.tls = Some(tls.clone());
    assert!(refused(&config).message.contains("authentication is not configured"));
    config.tls = None;
    config.auth.operator_key_hash = Some("h".into());
    assert!(refused(&config).message.contains("TLS is not configured"));
    assert!(refused(&config).hint.contains("--insecure-listen"));
    config.tls = Some(tls);
    config.validate().unwrap();
    let open = Config { listen: "0.0.0.0:7400".parse().unwrap(), insecure_listen: true, ..Config::default() };
    open.validate().unwrap();
    assert!(open.trusts_everyone());
    assert!(!config.trusts_everyone());
}

#[test]
fn what_makes_no_sense_is_refused_with_its_key() {
    let member = |node| Member { node, address: format!("10.0.0.{node}:7400") };
    type Spoil = Box<dyn Fn(&mut Config)>;
    let cases: Vec<(&str, Spoil)> = vec![
        ("`node`", Box::new(|c| c.node = 0)),
        ("`roles`", Box::new(|c| c.roles.clear())),
        ("`roles` leaves out `cell`", Box::new(|c| c.roles.retain(|role| *role != tidings_node::config::Role::Cell))),
        ("`roles` leaves out `edge`", Box::new(|c| c.roles.retain(|role| *role != tidings_node::config::Role::Edge))),
        ("`advertise`", Box::new(|c| c.advertise = Some("nowhere".into()))),
        ("`advertise`", Box::new(|c| c.advertise = Some("a\"b:1".into()))),
        ("`members`", Box::new(move |c| c.members = vec![member(1), member(1), member(2)])),
        ("`members`", Box::new(move |c| c.members = vec![member(1), member(2)])),
        ("`members`", Box::new(move |c| c.members = vec![member(2), member(3), member(4)])),
        ("`limits.connections`", Box::new(|c| c.limits.connections = 0)),
        ("`limits.header_bytes`", Box::new(|c| c.limits.header_bytes = 10)),
        ("`limits.frame_bytes`", Box::new(|c| c.limits.frame_bytes = u32::MAX)),
        ("`timings.lease`", Box::new(|c| c.timings.lease = Time::millis(150))),
        ("`timings.election`", Box::new(|c| c.timings.election = Time::millis(100))),
        ("`timings.dead_after`", Box::new(|c| c.timings.dead_after = Time::seconds(1))),
    ];
    for (key, spoil) in cases {
        let mut config = Config::default();
        spoil(&mut config);
        let error = config.validate().unwrap_err();
        assert_eq!(error.code, "node.bad_config");
        assert!(error.message.contains(key), "{key}: {error}");
    }
}

#[test]
fn a_cluster_whose_callers_authenticate_needs_certificates_for_its_members() {
    let mut config = Config::load(examples().join("cluster.toml")).unwrap();
    config.validate().unwrap();
    config.tls.as_mut().unwrap().client_ca = None;
    assert!(config.validate().unwrap_err().message.contains("`tls.client_ca`"));
}

#[test]
fn issuers_are_pinned_completely() {
    let base = "[[auth.issuers]]\nissuer = \"i\"\naudience = \"a\"\nalgorithm = \"ES256\"\napp = \"shop\"\n";
    assert!(load(&format!("{base}jwks = \"j\"\n")).is_ok());
    for (text, expected) in [
        (base.to_owned(), "exactly one of `jwks` and `public_key`"),
        (format!("{base}jwks = \"j\"\npublic_key = \"p\"\n"), "exactly one of `jwks` and `public_key`"),
        (format!("{base}public_key = \"p\"\n").replace("ES256", "HS256"), "a shared secret"),
        (format!("{base}jwks = \"j\"\n{base}jwks = \"k\"\n"), "configured twice"),
        (
            format!("{base}jwks = \"j\"\n{}jwks = \"k\"\n", base.replace("\"i\"", "\"k\"")),
            "both speak for application `shop`",
        ),
        (format!("{base}jwks = \"j\"\n").replace("shop", "Shop"), "cannot name an application"),
        (format!("{base}jwks = \"j\"\n").replace("\"a\"", "\"\""), "needs both"),
        (format!("{base}jwks = \"j\"\ngrants = [\"admin.write\"]\n"), "expected a grant such as"),
        // A URL to fetch keys from is not something that can be configured, let alone claimed.
        (format!("{base}jwks_url = \"https://x\"\n"), "unknown field `jwks_url`"),
    ] {
        let error = load(&text).unwrap_err();
        assert!(error.message.contains(expected), "{text}: {error}");
    }
}

#[test]
fn a_cell_that_cannot_work_is_refused_with_what_could() {
    for (text, expected) in [
        ("[cell]\nlease = \"2m\"\n", "cell.lease"),
        ("[cell]\ncache_lease = \"7s\"\n", "cell.cache_lease"),
        ("[cell]\ncache_lease = \"300ms\"\n", "cell.cache_lease"),
        ("[cell]\nwait = \"0ms\"\n", "cell.wait"),
        ("[cell]\nidle = \"0s\"\n", "cell.idle"),
        ("[cell]\nrest_sessions = 0\n", "cell.rest_sessions"),
        ("[cell]\nspares = [{ node = 0, address = \"a:1\" }]\n", "cell.spares"),
        ("[cell]\nspares = [{ node = 4, address = \"nowhere\" }]\n", "cell.spares.address"),
        ("[cell]\nspare_names = [\"nowhere\"]\n", "cell.spare_names"),
        ("[cell]\nleese = \"1s\"\n", "leese"),
    ] {
        let error = load(text).unwrap_err();
        assert_eq!(error.code, "node.bad_config", "{text}");
        assert!(error.message.contains(expected), "{text}: {error}");
    }
    let config = load("[cell]\nlease = \"30s\"\nspares = [{ node = 4, address = \"10.0.0.4:7400\" }]\n").unwrap();
    assert_eq!((config.cell.lease, config.cell.spares[0].node), (Time::seconds(30), 4));
}
