//! `sketch run`: the binary before three small web servers, of which one is wrong; and before a BFT group.

use crate::ports::free_address;
use crate::process::{Running, http_get, run, tidings, turn, until};
use rustix::process::Signal;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use tidings_bft::kv::KeyValue;
use tidings_bft::sin::Sin;
use tidings_bft::testing::{Modelled, Part};

/// A web server of one page, for as long as the test runs.
fn origin(page: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || answer(stream, page));
        }
    });
    address
}

fn answer(mut stream: TcpStream, page: &str) {
    let mut lines = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    while lines.read_line(&mut line).is_ok_and(|read| read > 0) {
        if line == "\r\n" {
            let length = page.len();
            if write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{page}").is_err() {
                return;
            }
        }
        line.clear();
    }
}

/// A proxy before one server that is wrong and two that are right.
fn proxy(arguments: &[&str]) -> Running {
    let origins = [origin("right"), origin("wrong"), origin("right")].map(|address| format!("http://{address}"));
    let mut command = tidings();
    command.args(["sketch", "run", "--listen", "127.0.0.1:0"]).args(arguments);
    origins.iter().for_each(|origin| {
        command.args(["--origin", origin]);
    });
    Running::start(&mut command)
}

/// The address in a line that a proxy prints.
fn address(line: &str) -> SocketAddr {
    let text = line.split("http://").nth(1).and_then(|rest| rest.split([';', '/']).next()).unwrap_or_default();
    text.parse().unwrap_or_else(|_| panic!("{line}"))
}

#[test]
fn pages_are_those_of_the_quorum() {
    let _turn = turn();
    let proxy = proxy(&[]);
    let line = proxy.line(1);
    let address = address(&line);
    assert!(line.contains("2 of 3"), "{line}");
    for _ in 0..20 {
        let (status, page) = until("it answers", || http_get(address, "/"));
        assert!(status == 200 && page.ends_with("right"), "{status} {page}");
    }
    proxy.signal(Signal::TERM);
    let said = proxy.ended();
    assert!(said.code == 0 && said.out.contains("20 requests"), "{said:?}");
    assert!(said.err.contains("access") && said.err.contains("verified"), "{said:?}");
}

#[test]
fn whoever_names_too_few_origins_to_compare_is_warned() {
    let _turn = turn();
    let told = |more: &[&str]| {
        let start = ["sketch", "run", "--listen", "127.0.0.1:0", "--origin", "http://a", "--origin", "http://b"];
        let proxy = Running::start(tidings().args(start).args(more));
        proxy.line(1);
        proxy.signal(Signal::TERM);
        proxy.ended().err.contains("warning: with fewer than three origins no wrong one is found")
    };
    assert_eq!((told(&[]), told(&["--quorum", "2"])), (true, false));
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    run(&["sketch", "run", "--origin", "ftp://a"]).failed(2, "only http:// and https://");
    let misfit =
        ["sketch", "run", "--listen", "127.0.0.1:0", "--origin", "http://a", "--origin", "http://b", "--quorum", "3"];
    run(&misfit).failed(2, "2 origins");
    for flag in ["--unverified-path", "--agreed-path"] {
        let said = run(&["sketch", "run", "--origin", "http://a", flag, "img"]);
        assert!(said.code == 2 && said.err.contains("a prefix begins with /"), "{said:?}");
    }
}

/// The answer to a request, whole.
fn asked(address: SocketAddr, head: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    write!(stream, "{head}Host: a\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Four replicas within this process, of which one says what was first; the binary before them.
#[test]
fn a_group_is_written_and_read() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let part = |sin| Part { addresses: (free_address(), free_address()), service: KeyValue::default(), sin };
    let parts = [None, Some(Sin::Stale), None, None].map(part).into();
    let town = runtime.block_on(Modelled::start(dir.path(), 1, 1, parts)).unwrap();
    let (group, client) = (dir.path().join("group.toml"), dir.path().join("client-1.toml"));
    std::fs::write(&group, town.founded.membership.to_text().unwrap()).unwrap();
    std::fs::write(&client, town.founded.clients[0].to_text().unwrap()).unwrap();
    let named = ["--group", group.to_str().unwrap(), "--client", client.to_str().unwrap()];

    let mut command = tidings();
    command.args(["sketch", "run", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--read-your-writes"]);
    let proxy = Running::start(command.args(named));
    let line = proxy.line(1);
    assert!(line.contains("3 of 4 replicas must agree"), "{line}");
    let at = address(&line);
    let mut session = String::new();
    for value in ["red", "green", "blue"] {
        let written = asked(at, "PUT /colour HTTP/1.1\r\n", value);
        assert!(written.starts_with("HTTP/1.1 20"), "{written}");
        let cookie = written.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap_or_default();
        session = cookie.split(';').next().unwrap_or_default().to_owned();
        for _ in 0..10 {
            let read = asked(at, &format!("GET /colour HTTP/1.1\r\nCookie: {session}\r\n"), "");
            assert!(read.starts_with("HTTP/1.1 200") && read.ends_with(value), "{read}");
        }
    }
    assert!(session.starts_with("tidings-session="), "{session}");
    let admin = address(&proxy.line(2)).to_string();
    let stats = run(&["sketch", "stats", "--admin", &admin, "--json"]).json();
    assert!(stats["fast"].as_u64() > Some(10), "{stats}");
    assert!(
        stats["sites"][0]["origins"][1]["origin"].as_str().unwrap_or_default().starts_with("replica-1 "),
        "{stats}"
    );
    proxy.signal(Signal::TERM);
    let said = proxy.ended();
    assert!(said.code == 0 && said.out.contains("asked of all replicas"), "{said:?}");

    run(&["sketch", "run", "--group", "nowhere.toml", "--client", named[3]]).failed(1, "cannot read nowhere.toml");
    let other = ["sketch", "run", "--group", named[1]];
    assert!(run(&other).err.contains("--client"), "a group is asked by one of its clients");
    let pages = [&["sketch", "run", "--service", "pages", "--read-your-writes"], &named[..]].concat();
    run(&pages).failed(2, "pages are not written here");
    let both = [&["sketch", "run", "--origin", "http://a"], &named[..]].concat();
    assert!(run(&both).err.contains("cannot be used with"), "servers or a group");
}

/// The value of a header of an answer, or that it is not there yet.
fn verified(address: SocketAddr) -> Option<String> {
    verified_of(address, "a")
}

fn verified_of(address: SocketAddr, host: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    write!(stream, "GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").ok()?;
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    lines.find_map(|line| line.strip_prefix("tidings-verified: ").map(str::to_owned))
}

#[test]
fn rules_are_read_again_and_bad_ones_refused() {
    let _turn = turn();
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("rules.toml");
    let rule = |way: &str| format!("[[path]]\nprefix = \"/\"\nway = \"{way}\"\n");
    // At once, as editors do.
    let put = |text: &str| {
        std::fs::write(place.path().join("new"), text).unwrap();
        std::fs::rename(place.path().join("new"), &file).unwrap();
    };
    put(&rule("sometimes"));
    let name = file.to_str().unwrap();
    run(&["sketch", "run", "--origin", "http://a", "--rules", name]).failed(2, "rules.toml:3: ");

    put(&rule("agreed"));
    let proxy = proxy(&["--rules", name, "--admin", "127.0.0.1:0"]);
    let (address, admin) = (address(&proxy.line(1)), address(&proxy.line(2)).to_string());
    let stats = || run(&["sketch", "stats", "--admin", &admin, "--json"]).json();
    until("it answers", || verified(address));
    assert_eq!(verified(address).as_deref(), Some("agreed"));
    put(&rule("unverified"));
    until("it looks at the file", || (stats()["rules_generation"] == 1).then_some(()));
    assert_eq!(verified(address).as_deref(), Some("no"));
    put("way = 1");
    until("it refuses the file", || (stats()["rules_refused"] == 1).then_some(()));
    assert_eq!((verified(address).as_deref(), &stats()["rules_generation"]), (Some("no"), &1.into()));
    put(&rule("unverified"));
    proxy.signal(Signal::HUP);
    until("it hears the signal", || (stats()["rules_generation"].as_u64() >= Some(2)).then_some(()));
    let told = run(&["sketch", "stats", "--admin", &admin]);
    assert!(told.code == 0 && told.out.contains("ASKED ALONE") && told.out.contains("http://127.0.0.1"), "{told:?}");
    proxy.signal(Signal::TERM);
    let said = proxy.ended();
    assert!(
        said.code == 0 && said.err.contains("rules.toml:1: ") && said.err.contains("the old rules stay"),
        "{said:?}"
    );
    run(&["sketch", "stats", "--admin", &admin]).failed(5, "no proxy tells of itself");
}

#[test]
fn several_sites_are_served_by_one_proxy() {
    let _turn = turn();
    let place = tempfile::tempdir().unwrap();
    let (file, rules) = (place.path().join("sites.toml"), place.path().join("news.toml"));
    std::fs::write(&rules, "[[path]]\nprefix = \"/\"\nway = \"agreed\"\n").unwrap();
    let site = |name: &str, page: &'static str, more: &str| {
        let origins = [0; 3].map(|_| format!("http://{}", origin(page)));
        format!("[[site]]\nname = \"{name}\"\nhosts = [\"{name}.example\"]\norigin = {origins:?}\n{more}\n")
    };
    let sites = site("shop", "shop", "quorum = 3\nfaults = 0") + &site("news", "news", &format!("rules = {rules:?}"));
    std::fs::write(&file, &sites).unwrap();
    let name = file.to_str().unwrap();

    let start = ["sketch", "run", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--sites", name];
    let proxy = Running::start(tidings().args(start));
    let at = address(&proxy.line(1));
    assert!(proxy.line(2).contains("shop (shop.example): 3 of 3 origins"), "{}", proxy.line(2));
    let admin = address(&proxy.line(4)).to_string();
    let verified = |host: &str| verified_of(at, host);
    until("it answers", || verified("shop.example"));
    assert_eq!((verified("shop.example").as_deref(), verified("other.example")), (Some("fast"), None));
    assert_eq!([(); 2].map(|()| verified("news.example").unwrap()), ["agreed", "agreed"], "by its own rules");
    std::fs::write(&rules, "").unwrap();
    let stats = || run(&["sketch", "stats", "--admin", &admin, "--json"]).json();
    until("its rules are read again", || (stats()["sites"][1]["rules_generation"] == 1).then_some(()));
    assert_eq!((&stats()["sites"][0]["rules_generation"], &stats()["sites"][0]["name"]), (&0.into(), &"shop".into()));
    let told = run(&["sketch", "stats", "--admin", &admin]);
    assert!(told.out.contains("\nshop\n") && told.out.contains("\nnews\n"), "{told:?}");

    for (text, why) in [
        (sites.replace("quorum", "qourum"), "site shop: `qourum` is no flag"),
        (sites.replace("news.example", "shop.example"), "shop.example leads to both shop and news"),
        (sites.replace("rules = ", "rules = \"x\" # "), "site news: x: "),
        (String::new(), "there is no [[site]] in it"),
    ] {
        std::fs::write(&file, text).unwrap();
        run(&start).failed(2, why);
    }
    run(&["sketch", "run", "--sites", "nowhere.toml"]).failed(2, "nowhere.toml: ");
    let both = run(&["sketch", "run", "--sites", name, "--patience", "5"]);
    assert!(both.code == 2 && both.err.contains("cannot be used with"), "{both:?}");
    run(&["sketch", "run"]).failed(2, "nothing is named that is to be served");
}

#[test]
fn recorded_traffic_is_surveyed() {
    let place = tempfile::tempdir().unwrap();
    let (har, svg) = (place.path().join("x.har"), place.path().join("x.svg"));
    let entry = |url: &str, body: String| {
        serde_json::json!({ "pageref": "1", "startedDateTime": "2026-01-01T00:00:00Z",
            "request": { "method": "GET", "url": url }, "response": { "status": 200, "content": { "text": body } } })
    };
    let still = (0..30).map(|_| entry("https://a.org/still", "the same".to_owned()));
    let clock = (0..30).map(|time| entry("https://b.net/clock", time.to_string()));
    let entries: Vec<_> = still.chain(clock).collect();
    std::fs::write(&har, serde_json::json!({ "log": { "entries": entries } }).to_string()).unwrap();
    let (har, svg) = (har.to_str().unwrap(), svg.to_str().unwrap());
    let survey = run(&["sketch", "survey", "--har", har, "--svg", svg, "--json"]).json();
    assert_eq!(
        (&survey["counted"], &survey["purely_static"], &survey["transitions"]),
        (&2.into(), &0.5.into(), &29.into())
    );
    assert!(std::fs::read_to_string(svg).unwrap().contains("<polyline"));
    let told = run(&["sketch", "survey", "--har", har]);
    assert!(told.code == 0 && told.out.contains("50.0 % never changed") && told.out.contains("b.net"), "{told:?}");
    run(&["sketch", "survey", "--har", har, "--least", "31"]).failed(2, "no URL was asked for 31 times");
    run(&["sketch", "survey", "--har", svg]).failed(2, "not a HAR file");
}

#[test]
fn a_running_proxy_is_surveyed_and_its_origins_are_checked() {
    let _turn = turn();
    let place = tempfile::tempdir().unwrap();
    let proxy = proxy(&["--admin", "127.0.0.1:0", "--survey", "--health-path", "/healthz", "--health-interval", "50"]);
    let (address, admin) = (address(&proxy.line(1)), address(&proxy.line(2)).to_string());
    for _ in 0..30 {
        assert_eq!(until("it answers", || http_get(address, "/page")).0, 200);
    }
    let svg = place.path().join("static.svg");
    let svg = svg.to_str().unwrap();
    let survey = ["sketch", "survey", "--admin", &admin, "--svg", svg];
    let json = || run(&[&survey[..], &["--json"]].concat()).json();
    // What is new is looked at beside.
    until("all are counted", || (json()["requests"] == 30).then_some(()));
    let told = run(&survey);
    assert!(told.code == 0 && told.out.contains("100.0 % never changed"), "{told:?}");
    assert!(std::fs::read_to_string(svg).unwrap().starts_with("<svg"));
    let all = json();
    assert_eq!((&all["counted"], &all["requests"], &all["transitions"]), (&1.into(), &30.into(), &0.into()));
    let both = run(&["sketch", "survey", "--admin", &admin, "--har", "x.har"]);
    assert!(both.code == 2 && both.err.contains("cannot be used with"), "{both:?}");

    let stats = || run(&["sketch", "stats", "--admin", &admin, "--json"]).json();
    let up = |stats: &serde_json::Value| (0..3).all(|origin| stats["sites"][0]["origins"][origin]["up"] == true);
    until("all are found up", || up(&stats()).then_some(()));
    let told = run(&["sketch", "stats", "--admin", &admin]);
    assert!(told.out.contains("HEALTH") && told.out.contains("up (0 of "), "{told:?}");
    run(&["sketch", "run", "--origin", "http://a", "--health-path", "healthz"]).failed(2, "not a path");
    let wrong = run(&["sketch", "run", "--origin", "http://a", "--new-pages", "5"]);
    assert!(wrong.code == 2 && wrong.err.contains("256/50"), "{wrong:?}");
}

#[test]
fn origins_that_are_down_are_named_and_only_those_left_out_that_are() {
    let _turn = turn();
    let origins = [(); 3].map(|()| format!("http://{}", free_address()));
    let mut command = tidings();
    command.args(["sketch", "run", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--health-path", "/healthz"]);
    origins.iter().for_each(|origin| {
        command.args(["--origin", origin]);
    });
    let proxy = Running::start(&mut command);
    let admin = address(&proxy.line(2)).to_string();
    let stats = || run(&["sketch", "stats", "--admin", &admin, "--json"]).json();
    let down = |stats: &serde_json::Value| (0..3).all(|origin| stats["sites"][0]["origins"][origin]["up"] == false);
    until("all are found down", || down(&stats()).then_some(()));
    proxy.signal(Signal::TERM);
    let said = proxy.ended().err;
    let told: Vec<&str> = said.lines().filter(|line| line.contains("an origin is down")).collect();
    assert!(origins.iter().all(|origin| told.iter().any(|line| line.contains(origin))), "{said}");
    let left_out = told.iter().filter(|line| line.contains("it is not asked alone")).count();
    assert_eq!((left_out, told.len()), (1, 3), "one of three may be wrong: {said}");
}
