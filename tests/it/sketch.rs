//! `sketch run`: the binary before three small web servers, of which one is wrong.

use crate::process::{Running, http_get, run, tidings, turn, until};
use rustix::process::Signal;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

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

#[test]
fn pages_are_those_of_the_quorum() {
    let _turn = turn();
    let origins = [origin("right"), origin("wrong"), origin("right")].map(|address| format!("http://{address}"));
    let mut command = tidings();
    command.args(["sketch", "run", "--listen", "127.0.0.1:0"]);
    origins.iter().for_each(|origin| {
        command.args(["--origin", origin]);
    });
    let proxy = Running::start(&mut command);
    let line = proxy.line(1);
    let address = line.split("http://").nth(1).and_then(|rest| rest.split(';').next()).unwrap();
    let address: SocketAddr = address.parse().unwrap_or_else(|_| panic!("{line}"));
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
fn what_cannot_be_is_refused_by_name() {
    run(&["sketch", "run", "--origin", "https://a"]).failed(2, "only http://");
    let misfit =
        ["sketch", "run", "--listen", "127.0.0.1:0", "--origin", "http://a", "--origin", "http://b", "--quorum", "3"];
    run(&misfit).failed(2, "2 origins");
}
