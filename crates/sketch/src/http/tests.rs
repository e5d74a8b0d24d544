use super::*;
use crate::sigma::Sigma;
use crate::sketcher::Way;
use ::http::{Request, Response};
use tidings_base::Incarnation;

fn sketching() -> Sketching {
    Sketching::new([3; 32])
}

fn request(text: &str) -> request::Parts {
    let mut lines = text.lines();
    let (method, target) = lines.next().and_then(|line| line.split_once(' ')).expect("a request line");
    let mut builder = Request::builder().method(method).uri(target);
    for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
        builder = builder.header(name, value);
    }
    builder.body(()).expect("a request").into_parts().0
}

fn admit(text: &str) -> Result<Admitted, BadRequest> {
    Rules::default().admit(&sketching(), "http", &request(text), Bytes::new())
}

fn key(text: &str) -> Sketch {
    admit(text).expect("it is proper").key
}

const PAGE: &str = "GET /a?b=c\nHost: x.org\nAccept: text/html";

#[test]
fn every_part_that_is_forwarded_is_part_of_the_sketch() {
    let plain = key(PAGE);
    assert_eq!(plain, key("GET /a?b=c\nAccept: text/html\nHost: X.org"), "neither order nor the host's case matters");
    for other in [
        "POST /a?b=c\nHost: x.org\nAccept: text/html",
        "GET /a?b=d\nHost: x.org\nAccept: text/html",
        "GET /A?b=c\nHost: x.org\nAccept: text/html",
        "GET /a?b=c\nHost: y.org\nAccept: text/html",
        "GET /a?b=c\nHost: x.org\nAccept: text/plain",
        "GET /a?b=c\nHost: x.org",
        "GET /a?b=c\nHost: x.org\nAccept: text/html\nCookie: me=1",
        "GET /a?b=c\nHost: x.org\nAccept: text/html\nAccept-Language: de",
    ] {
        assert_ne!(plain, key(other), "{other}");
    }
    let rules = Rules::default();
    let admit = |rules: &Rules, scheme, body| rules.admit(&sketching(), scheme, &request(PAGE), body).unwrap().key;
    assert_ne!(plain, admit(&rules, "https", Bytes::new()));
    let with_body = |text, body| rules.admit(&sketching(), "http", &request(text), Bytes::from_static(body));
    let write = |body| with_body("PUT /a\nHost: x.org", body).unwrap().key;
    assert_ne!(write(b"x"), write(b"y"));
    for read in [PAGE, "HEAD /\nHost: x.org"] {
        assert_eq!(with_body(read, b"GET / HTTP/1.1").err(), Some(BadRequest::Body), "{read}");
    }
    assert_ne!(plain, admit(&Rules { generation: 1, ..rules }, "http", Bytes::new()), "other rules, other entries");
}

#[test]
fn sketchers_of_one_core_sketch_alike_if_their_rules_say_the_same() {
    let admit = |rules: &Rules| rules.admit(&sketching(), "http", &request(PAGE), Bytes::new()).unwrap().key;
    let rules = |generation| Rules { generation, shared: true, ..Rules::default() };
    let this = admit(&rules(0));
    assert_eq!(this, admit(&rules(7)), "each counts for itself how often they changed");
    let path = |way| PathRule { prefix: "/".into(), way, personal_too: false };
    for other in [
        Rules { inputs: vec![header::ACCEPT], ..rules(0) },
        Rules { non_inputs: vec![], ..rules(0) },
        Rules { stripped: vec![], ..rules(0) },
        Rules { paths: vec![path(Way::Usual)], ..rules(0) },
        Rules { paths: vec![path(Way::Replicated)], ..rules(0) },
        Rules { remembers_set_cookie: true, ..rules(0) },
    ] {
        assert_ne!(this, admit(&other), "{other:?}");
    }
    assert!(!Rules::decides(&CORE), "what sketchers say to each other is nobody else's");
}

#[test]
fn what_is_not_part_of_the_sketch_is_not_forwarded() {
    let text = format!(
        "{PAGE}\nX-Forwarded-Host: evil\nRange: bytes=0-1\nIf-None-Match: *\nAccept-Encoding: gzip\nTE: trailers\nConnection: accept-language\nAccept-Language: de"
    );
    let admitted = admit(&text).unwrap();
    let names: Vec<&str> = admitted.forwarded.inputs.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["accept"]);
    assert_eq!(admitted.key, key(PAGE));
    let named = admit(&format!("{PAGE}\nUser-Agent: curl")).unwrap();
    assert_eq!((named.key, named.forwarded.non_inputs.len()), (key(PAGE), 1), "a declared non-input is forwarded");
}

#[test]
fn head_becomes_get_and_writes_keep_their_conditions() {
    let head = admit("HEAD /\nHost: x").unwrap();
    assert_eq!((head.forwarded.method, head.key), (Method::GET, key("GET /\nHost: x")));
    let put = admit("PUT /\nHost: x\nIf-Match: \"1\"").unwrap();
    assert_eq!((put.kind, put.forwarded.inputs.len()), (Kind::Write, 1));
}

#[test]
fn ambiguous_requests_are_refused() {
    for (text, why) in [
        ("GET /", BadRequest::Host),
        ("GET /\nHost: a\nHost: b", BadRequest::Host),
        ("GET http://a/\nHost: b", BadRequest::Host),
        ("GET /\nHost: a b", BadRequest::Host),
        ("GET /\nHost: a/b", BadRequest::Host),
        ("GET /\nHost: me@a", BadRequest::Host),
        ("POST /\nHost: a\nContent-Length: 1\nContent-Length: 1", BadRequest::Length),
        ("POST /\nHost: a\nContent-Length: 1\nTransfer-Encoding: chunked", BadRequest::Length),
        ("GET /\nHost: a\nUpgrade: websocket\nConnection: upgrade", BadRequest::Upgrade),
        ("CONNECT a:1\nHost: a:1", BadRequest::Method),
        ("TRACE /\nHost: a", BadRequest::Method),
        ("OPTIONS *\nHost: a", BadRequest::Target),
    ] {
        assert_eq!(admit(text).err(), Some(why), "{text}");
    }
}

#[test]
fn offers_of_another_protocol_are_passed_over() {
    for offer in ["h2c", "H2C", "TLS/1.0", "h2c, TLS/1.3"] {
        let admitted =
            admit(&format!("{PAGE}\nUpgrade: {offer}\nConnection: Upgrade, HTTP2-Settings\nHTTP2-Settings: x"));
        assert_eq!(admitted.map(|admitted| admitted.key).ok(), Some(key(PAGE)), "{offer}");
    }
    assert_eq!(admit(&format!("{PAGE}\nUpgrade: h2c, websocket")).err(), Some(BadRequest::Upgrade));
}

#[test]
fn a_date_that_means_nothing_is_not_forwarded() {
    let fields = |headers: &[(&'static str, &str)]| take(200, headers, "page").unwrap().response.fields.len();
    let expires = ("expires", "Thu, 01 Jan 2026 00:00:00 GMT");
    assert_eq!(fields(&[expires]), 1);
    assert_eq!(fields(&[expires, ("cache-control", "public")]), 2);
    for says in ["max-age=60", "public, Max-Age=60", "no-cache", "no-store, private"] {
        assert_eq!(fields(&[expires, ("cache-control", says)]), 1, "{says}");
    }
}

#[test]
fn personal_requests_are_fast_by_rule_only() {
    let rule = |prefix: &str, way, personal_too| PathRule { prefix: prefix.into(), way, personal_too };
    let rules = Rules {
        paths: vec![rule("/", Way::Usual, false), rule("/img/", Way::One, false), rule("/img/me", Way::Usual, true)],
        ..Rules::default()
    };
    let way = |text: &str| match rules.admit(&sketching(), "http", &request(text), Bytes::new()).unwrap().kind {
        Kind::Read { way, .. } => way,
        Kind::Write => panic!("it is a read"),
    };
    assert_eq!(way("GET /\nHost: x"), Way::Usual);
    assert_eq!(way("GET /\nHost: x\nCookie: a=b"), Way::Personal);
    assert_eq!(way("GET /\nHost: x\nAuthorization: Basic eA=="), Way::Personal);
    assert_eq!(way("GET /img/1\nHost: x"), Way::One);
    assert_eq!(way("GET /img/1\nHost: x\nCookie: a=b"), Way::Personal);
    assert_eq!(way("GET /img/me\nHost: x\nCookie: a=b"), Way::Usual);
}

/// What ends here decides nothing: neither the answer, nor who is asked for it.
#[test]
fn cookies_that_do_not_pass_are_as_if_they_were_not_there() {
    let of = |rules: &Rules, headers: &str| {
        let asked = request(&format!("GET /\nHost: x\n{headers}"));
        let admitted = rules.admit(&sketching(), "http", &asked, Bytes::new()).unwrap();
        let cookie = admitted.forwarded.inputs.iter().find(|(name, _)| name == header::COOKIE);
        let cookie = cookie.map(|(_, value)| value.to_str().unwrap().to_owned());
        let Kind::Read { way, .. } = admitted.kind else { panic!("it is a read") };
        (cookie, way, admitted.key)
    };
    let rules = Rules { stripped_cookies: vec!["_ga*".into(), "seen".into()], ..Rules::default() };
    let none = of(&rules, "Accept: x");
    for cookies in ["_ga=1", "_ga_X=1; seen=2", "seen; _gat", " _ga =1"] {
        assert_eq!(of(&rules, &format!("Accept: x\nCookie: {cookies}")), none, "{cookies}");
    }
    for (cookies, passing) in [("_ga=1; me=2", "me=2"), ("seen2=1", "seen2=1"), ("x_ga=1", "x_ga=1"), ("=_ga", "=_ga")]
    {
        let (cookie, way, key) = of(&rules, &format!("Accept: x\nCookie: {cookies}"));
        assert_eq!((cookie.as_deref(), way), (Some(passing), Way::Personal));
        assert_ne!(key, none.2);
    }
    let without = Rules { inputs: vec![header::ACCEPT], ..Rules::default() };
    assert_eq!(of(&without, "Accept: x\nCookie: me=1\nAuthorization: y"), of(&without, "Accept: x"));
    let declared = Rules { non_inputs: vec![header::COOKIE], ..without };
    assert_eq!(of(&declared, "Accept: x\nCookie: me=1").1, Way::Personal, "it reaches the origin");
}

/// Rules C and D, and that they are missed: what decides an answer is sketched, and no condition goes upstream.
#[test]
fn inputs_are_sketched_and_conditions_stay_here() {
    let of = |mutant, headers: &str| {
        let parts = request(&format!("GET /\nHost: x.org\n{headers}"));
        let admitted = Rules { mutant, ..Rules::default() }.admit(&sketching(), "http", &parts, Bytes::new()).unwrap();
        (admitted.key, admitted.forwarded.inputs.len())
    };
    for (mutant, alike) in [(None, false), (Some(Mutant::InputUnsketched), true)] {
        let [one, other] = ["Accept-Language: de", "Accept-Language: en"].map(|headers| of(mutant, headers));
        assert_eq!((one.1, other.1, one.0 == other.0), (1, 1, alike), "{mutant:?}");
    }
    for (mutant, forwarded) in [(None, 0), (Some(Mutant::ConditionsForwarded), 4)] {
        let conditions = "If-None-Match: *\nIf-Modified-Since: x\nRange: bytes=0-1\nAccept-Encoding: gzip";
        assert_eq!(of(mutant, conditions).1, forwarded, "{mutant:?}");
    }
}

/// Whatever a path is spelt like, no rule makes it laxer than the page that servers may take it for.
#[test]
fn spellings_do_not_lead_past_rules() {
    let rule = |prefix: &str, way| PathRule { prefix: prefix.to_owned(), way, personal_too: way != Way::Replicated };
    let paths = vec![rule("/img/", Way::One), rule("/live/", Way::Replicated), rule("/a%20b/", Way::One)];
    let rules = Rules { paths, ..Rules::default() };
    let way = |path: &str, more: &str| {
        let parts = request(&format!("GET {path}\nHost: x.org{more}"));
        match rules.admit(&sketching(), "http", &parts, Bytes::new()).unwrap().kind {
            Kind::Read { way, .. } => way,
            Kind::Write => panic!("it is a read"),
        }
    };
    for (path, expected) in [
        ("/img/1", Way::One),
        ("/img/a%20b", Way::One),
        ("/img/.hidden/..x", Way::One),
        ("/a%20b/1", Way::One),
        ("/img/../login", Way::Usual),
        ("/img/%2e%2E/login", Way::Usual),
        ("/img/..%2Flogin", Way::Usual),
        ("/img/..%5clogin", Way::Usual),
        ("/img/..;/login", Way::Usual),
        ("/img/..", Way::Usual),
        ("/%69mg/1", Way::Usual),
        ("//img/1", Way::Usual),
        ("/live/1", Way::Replicated),
        ("/%6Cive/1", Way::Replicated),
        ("//live/1", Way::Replicated),
        ("/x/..%2flive/./1", Way::Replicated),
        ("/img/%2e%2e/live/1", Way::Replicated),
        ("http://x.org/live/1", Way::Replicated),
        ("/live/../x", Way::Replicated),
        ("/%zz", Way::Usual),
        ("/../..", Way::Usual),
    ] {
        assert_eq!(way(path, ""), expected, "{path}");
    }
    let cookie = "\nCookie: me=1";
    assert_eq!((way("/img/1", cookie), way("/img/../account", cookie)), (Way::One, Way::Personal));
}

#[test]
fn the_session_cookie_is_ours_alone() {
    let sigma = Sigma::new(Incarnation(1), 9, 2).unwrap();
    let token = crate::session::seal(&sketching(), sigma);
    let admitted = admit(&format!("{PAGE}\nCookie: tidings-session={token}")).unwrap();
    assert_eq!(admitted.kind, Kind::Read { way: Way::Usual, after: Some(sigma) });
    assert_eq!(admitted.key, key(PAGE));
    let both = admit(&format!("{PAGE}\nCookie: a=b; tidings-session={token}; c=d")).unwrap();
    assert_eq!(both.key, key(&format!("{PAGE}\nCookie: a=b; c=d")));
    let forged = admit(&format!("{PAGE}\nCookie: tidings-session=1.ffffff.0.00")).unwrap();
    assert_eq!(forged.kind, Kind::Read { way: Way::Usual, after: None });
}

fn take(
    status: u16,
    headers: &[(&'static str, &str)],
    body: &'static str,
) -> Result<crate::Answer<Page<&'static str>>, BadResponse> {
    let mut builder = Response::builder().status(status);
    for (name, value) in headers {
        builder = builder.header(*name, *value);
    }
    let parts = builder.body(()).expect("a response").into_parts().0;
    let whole = (body, body.len() as u64, BodyHash::of(body.as_bytes()));
    Rules::default().take(&sketching(), &key(PAGE), &parts, whole, &HeaderMap::new())
}

#[test]
fn every_part_of_a_response_that_is_forwarded_is_part_of_its_sketch() {
    let sketch = |status, headers: &[(&'static str, &str)], body| take(status, headers, body).unwrap().sketch;
    let plain = sketch(200, &[("content-type", "text/html")], "page");
    let own =
        [("content-type", "text/html"), ("date", "today"), ("server", "x"), ("etag", "\"1\""), ("connection", "close")];
    assert_eq!(plain, sketch(200, &own, "page"), "what the sketcher writes itself or strips differs between replicas");
    assert_ne!(plain, sketch(404, &[("content-type", "text/html")], "page"));
    assert_ne!(plain, sketch(200, &[("content-type", "text/plain")], "page"));
    assert_ne!(plain, sketch(200, &[("content-type", "text/html"), ("location", "/evil")], "page"));
    assert_ne!(plain, sketch(200, &[("content-type", "text/html")], "pagf"));
    let forged = take(200, &[("tidings-verified", "fast")], "page").unwrap();
    assert!(forged.response.fields.is_empty(), "no replica says what was verified");
}

#[test]
fn a_response_answers_one_request() {
    let parts = Response::builder().body(()).unwrap().into_parts().0;
    let taken = |key: &Sketch| {
        let whole = ("", 0, BodyHash::of(b""));
        Rules::default().take(&sketching(), key, &parts, whole, &HeaderMap::new()).unwrap().sketch
    };
    assert_ne!(taken(&key(PAGE)), taken(&key("GET /other\nHost: x.org")));
}

#[test]
fn errors_and_cookies_are_not_remembered_and_parts_are_refused() {
    assert!(take(200, &[], "").unwrap().keep && take(404, &[], "").unwrap().keep);
    assert!(!take(503, &[], "").unwrap().keep);
    assert!(!take(200, &[("set-cookie", "a=b")], "").unwrap().keep);
    assert_eq!(take(304, &[], "").err(), Some(BadResponse::Status(StatusCode::NOT_MODIFIED)));
    assert_eq!(take(206, &[], "").err(), Some(BadResponse::Status(StatusCode::PARTIAL_CONTENT)));
}

#[test]
fn conditions_and_ranges_are_evaluated_here() {
    let page = take(200, &[("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT")], "0123456789").unwrap().response;
    let etag = page.etag();
    let reply = |headers: &str| Wanted::by(&request(&format!("GET /\n{headers}"))).of(&page);
    let status = |headers: &str| reply(headers).status.as_u16();
    assert_eq!((status(""), reply("").content), (200, 0..10));
    assert_eq!(status(&format!("If-None-Match: \"x\", W/{etag}")), 304);
    assert_eq!(status("If-None-Match: \"x\"\nIf-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT"), 200);
    assert_eq!(status("If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT"), 304);
    assert_eq!(status("If-Modified-Since: Sun, 06 Nov 1994 08:49:36 GMT"), 200);
    assert_eq!(status("If-Match: \"x\""), 412);
    assert_eq!(status(&format!("If-Match: W/{etag}")), 412);
    assert_eq!(status(&format!("If-Match: {etag}")), 200);
    assert_eq!(status("If-Unmodified-Since: Sun, 06 Nov 1994 08:49:36 GMT"), 412);
    let part = reply("Range: bytes=2-4");
    assert_eq!((part.status.as_u16(), part.content, part.content_range.as_deref()), (206, 2..5, Some("bytes 2-4/10")));
    assert_eq!(reply("Range: bytes=-3").content, 7..10);
    assert_eq!(reply("Range: bytes=8-99").content, 8..10);
    assert_eq!((status("Range: bytes=10-"), status("Range: bytes=4-0"), status("Range: lines=1-2")), (416, 416, 200));
    let several = reply("Range: bytes=0-1, -2");
    assert_eq!((several.status.as_u16(), several.parts, several.content_range), (206, vec![0..2, 8..10], None));
    assert_eq!(status(&format!("Range: bytes=2-4\nIf-Range: {etag}")), 206);
    assert_eq!(status("Range: bytes=2-4\nIf-Range: \"old\""), 200);
    assert_eq!(status("Range: bytes=2-4\nIf-Range: Sunday, 06-Nov-94 08:49:37 GMT"), 206);
    assert_eq!(status("Range: bytes=2-4\nIf-Range: Sun, 06 Nov 1994 08:49:36 GMT"), 200);
    let head = Wanted::by(&request("HEAD /\nRange: bytes=2-4")).of(&page);
    assert_eq!((head.status.as_u16(), head.content, head.send), (200, 0..10, false));
    let missing = take(404, &[], "gone").unwrap().response;
    assert_eq!(Wanted::by(&request("GET /\nIf-None-Match: *")).of(&missing).status.as_u16(), 404);
}

/// Rule D: the whole is verified, then compressed; a compressed page is another representation.
#[test]
fn texts_are_compressed_for_whoever_takes_them_so() {
    static LONG: &str = match std::str::from_utf8(&[b'x'; 2_000]) {
        Ok(text) => text,
        Err(_) => "",
    };
    let page = |kind: &str, body| take(200, &[("content-type", kind)], body).unwrap().response;
    let text = page("text/html; charset=utf-8", LONG);
    let reply = |headers: &str| Wanted::by(&request(&format!("GET /\n{headers}"))).of(&text);
    for taken in ["gzip", "br, gzip;q=0.5", "*", "identity;q=0, x-gzip"] {
        assert!(reply(&format!("Accept-Encoding: {taken}")).gzip, "{taken}");
    }
    for other in ["br", "gzip;q=0", "gzip;q=0, *", "*;q=0", "identity"] {
        assert!(!reply(&format!("Accept-Encoding: {other}")).gzip, "{other}");
    }
    assert!(!reply("").gzip && !reply("Accept-Encoding: gzip\nRange: bytes=0-1").gzip);
    let coded = reply("Accept-Encoding: gzip").etag;
    assert_ne!(coded, reply("").etag);
    let status = |headers: &str| reply(headers).status.as_u16();
    assert_eq!(status(&format!("Accept-Encoding: gzip\nIf-None-Match: {coded}")), 304);
    assert_eq!(status(&format!("If-None-Match: {coded}")), 200, "what it has is not this one");
    assert!(!is_compressible(&page("image/png", LONG)) && !is_compressible(&page("text/plain", "short")));
    let packed = take(200, &[("content-type", "text/css"), ("content-encoding", "br")], LONG).unwrap().response;
    assert!(!is_compressible(&packed));
    let controlled = |says| take(200, &[("content-type", "text/css"), ("cache-control", says)], LONG).unwrap().response;
    assert!(is_compressible(&controlled("public, max-age=9")) && !is_compressible(&controlled("public, No-Transform")));
    let status = |status| take(status, &[("content-type", "text/html")], LONG).unwrap().response;
    assert!(is_compressible(&status(404)) && !is_compressible(&status(500)));
}

#[test]
fn bodies_have_bounds() {
    let bodies = Bodies::default();
    let holds = [1 << 20, (1 << 20) + 1, 1 << 30, (1 << 30) + 1].map(|length| bodies.hold(length));
    assert_eq!(holds, [Hold::Memory, Hold::Disk, Hold::Disk, Hold::Refused]);
    assert_eq!(Bodies { unverified_above: Some(10), ..bodies }.hold(11), Hold::Unverified);
}
