//! A web server beside each replica as the service: what is asked is fetched from there.
//!
//! ```text
//!   execute, read ─▶ Origin ─ queue ─▶ one thread: hyper ─▶ the server, on this machine
//!                 ◀─ status, headers, body, or why there is none
//! ```
//! Pages are fetched and never sent: they change outside the order (rule E), so that a group of honest servers gives answers
//! that at least one of them gave, and not delay-once reads. There is no state, and a replica that has lost its disk has lost
//! nothing here.

use crate::codec::{Malformed, Reader, put_bytes};
use crate::frame::LONGEST_RESULT;
use crate::seat::Durable;
use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Request as HttpRequest, Response as HttpResponse, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;
use tidings_sketch::direct::Reads;
use tidings_sketch::http::says_how_long;
use tidings_sketch::replica::Service;
use tidings_sketch::sigma::Sigma;
use tokio::sync::mpsc;

/// The longest path with its query.
pub const LONGEST_PATH: usize = 8 << 10;
/// The most headers of a request or an answer.
pub const MOST_HEADERS: usize = 128;
/// The longest answer, with its headers: with what is around it, it is a result.
pub const LONGEST_PAGE: usize = LONGEST_RESULT - (1 << 10);
/// How long a server may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Requests that wait for the thread.
const MOST_WAITING: usize = 1_024;
/// Pages of one block that are fetched at once. A server that says nothing takes its whole time for each.
pub(crate) const AT_ONCE: usize = 16;

/// What belongs to a connection, or to the moment, and is not passed on.
const NOT_PASSED_ON: [&str; 12] = [
    "age",
    "connection",
    "content-length",
    "date",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
];

/// What each server says of itself: interchangeable ones differ in it. Whoever serves the page has an ETag of his own (rule D).
const OF_ITS_OWN: [&str; 2] = ["etag", "server"];

/// A page that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its path, with the query.
    pub path: String,
    /// Headers, with names in lower case. `host` names one of several sites of the server.
    pub headers: Vec<(String, Bytes)>,
}

/// What the server says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// A page.
    Page {
        /// Its status.
        status: u16,
        /// Headers in the order of their names.
        headers: Vec<(String, Bytes)>,
        /// What it holds.
        body: Bytes,
    },
    /// There is none.
    Refused(Refusal),
}

/// Why there is no page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The request cannot be understood.
    #[error("the request is none for a web server")]
    Malformed = 1,
    /// The server cannot be reached, or takes too long.
    #[error("the server beside the replica does not answer")]
    Unreachable = 2,
    /// The page is too long.
    #[error("the page is longer than an answer may be")]
    TooLong = 3,
}

impl Request {
    /// As bytes.
    pub fn encoded(&self) -> Bytes {
        let mut out = BytesMut::new();
        put_bytes(&mut out, self.path.as_bytes());
        put_headers(&mut out, &self.headers);
        out.freeze()
    }

    fn read(bytes: &Bytes) -> Result<Request, Malformed> {
        let mut reader = Reader::new(bytes.clone());
        let path = text(&reader.bytes(LONGEST_PATH)?)?;
        let headers = read_headers(&mut reader, bytes.len())?;
        reader.end()?;
        if !path.starts_with('/') || headers.iter().any(|(name, _)| NOT_PASSED_ON.contains(&name.as_str())) {
            return Err(Malformed::Unknown);
        }
        Ok(Request { path, headers })
    }
}

impl Response {
    fn encoded(&self) -> Bytes {
        let mut out = BytesMut::new();
        match self {
            Response::Page { status, headers, body } => {
                out.put_u8(0);
                out.put_u32(u32::from(*status));
                put_headers(&mut out, headers);
                put_bytes(&mut out, body);
            }
            Response::Refused(refusal) => out.put_u8(*refusal as u8),
        }
        out.freeze()
    }

    /// Reads what the group answered.
    pub fn read(bytes: Bytes) -> Result<Response, Malformed> {
        let mut reader = Reader::new(bytes);
        let response = match reader.byte()? {
            0 => Response::Page {
                status: u16::try_from(reader.number32()?).map_err(|_| Malformed::Unknown)?,
                headers: read_headers(&mut reader, LONGEST_RESULT)?,
                body: reader.bytes(LONGEST_RESULT)?,
            },
            1 => Response::Refused(Refusal::Malformed),
            2 => Response::Refused(Refusal::Unreachable),
            3 => Response::Refused(Refusal::TooLong),
            _ => return Err(Malformed::Unknown),
        };
        reader.end()?;
        Ok(response)
    }
}

fn text(bytes: &[u8]) -> Result<String, Malformed> {
    std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| Malformed::Unknown)
}

fn put_headers(out: &mut BytesMut, headers: &[(String, Bytes)]) {
    out.put_u32(headers.len() as u32);
    for (name, value) in headers {
        put_bytes(out, name.as_bytes());
        put_bytes(out, value);
    }
}

fn read_headers(reader: &mut Reader, longest: usize) -> Result<Vec<(String, Bytes)>, Malformed> {
    let count = reader.number32()? as usize;
    if count > MOST_HEADERS {
        return Err(Malformed::Long);
    }
    (0..count).map(|_| Ok((text(&reader.bytes(longest)?)?, reader.bytes(longest)?))).collect()
}

type Job = (HttpRequest<Empty<Bytes>>, SyncSender<Response>);

/// The server beside a replica. Copies share their connections.
#[derive(Clone, Debug)]
pub struct Origin {
    address: SocketAddr,
    jobs: mpsc::Sender<Job>,
}

impl Origin {
    /// A server that listens there.
    pub fn new(address: SocketAddr) -> io::Result<Origin> {
        let (jobs, queue) = mpsc::channel(MOST_WAITING);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("origin".to_owned()).spawn(move || runtime.block_on(fetch_all(queue)))?;
        Ok(Origin { address, jobs })
    }

    fn fetch(&self, request: &Bytes) -> Response {
        fetched(self.begin(request))
    }

    /// Where the page will be, if it can be asked for.
    fn begin(&self, request: &Bytes) -> Result<Receiver<Response>, Refusal> {
        let request = Request::read(request).ok().and_then(|request| self.asked(&request)).ok_or(Refusal::Malformed)?;
        let (sender, receiver) = sync_channel(1);
        self.jobs.try_send((request, sender)).map_err(|_| Refusal::Unreachable)?;
        Ok(receiver)
    }

    fn asked(&self, request: &Request) -> Option<HttpRequest<Empty<Bytes>>> {
        let uri: Uri = format!("http://{}{}", self.address, request.path).parse().ok()?;
        let mut asked = HttpRequest::get(uri).body(Empty::new()).ok()?;
        for (name, value) in &request.headers {
            let name = HeaderName::from_lowercase(name.as_bytes()).ok()?;
            asked.headers_mut().append(name, HeaderValue::from_bytes(value).ok()?);
        }
        Some(asked)
    }
}

fn fetched(begun: Result<Receiver<Response>, Refusal>) -> Response {
    // The thread answers within its patience; a little more is for the way there.
    let waited = |page: Receiver<Response>| page.recv_timeout(2 * PATIENCE).map_err(|_| Refusal::Unreachable);
    begun.and_then(waited).unwrap_or_else(Response::Refused)
}

async fn fetch_all(mut queue: mpsc::Receiver<Job>) {
    let client = Client::builder(TokioExecutor::new()).build(HttpConnector::new());
    while let Some((request, sender)) = queue.recv().await {
        let client = client.clone();
        tokio::spawn(async move {
            let fetched = tokio::time::timeout(PATIENCE, fetch(&client, request)).await;
            // Who has given up has no use for it.
            let _ = sender.send(fetched.unwrap_or(Response::Refused(Refusal::Unreachable)));
        });
    }
}

async fn fetch(client: &Client<HttpConnector, Empty<Bytes>>, request: HttpRequest<Empty<Bytes>>) -> Response {
    let Ok(answer) = client.request(request).await else { return Response::Refused(Refusal::Unreachable) };
    let (parts, body) = answer.into_parts();
    match Limited::new(body, LONGEST_PAGE).collect().await {
        Ok(body) => page(&HttpResponse::from_parts(parts, ()), body.to_bytes()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => Response::Refused(Refusal::TooLong),
        Err(_) => Response::Refused(Refusal::Unreachable),
    }
}

fn page(answer: &HttpResponse<()>, body: Bytes) -> Response {
    let lasts = answer.headers().iter().any(|(name, value)| says_how_long(name, value));
    let kept = answer.headers().iter().filter(|(name, _)| {
        let name = name.as_str();
        let means_nothing = lasts && name == "expires";
        !NOT_PASSED_ON.contains(&name) && !OF_ITS_OWN.contains(&name) && !means_nothing
    });
    let mut headers: Vec<(String, Bytes)> =
        kept.map(|(name, value)| (name.as_str().to_owned(), Bytes::copy_from_slice(value.as_bytes()))).collect();
    headers.sort();
    let size: usize = headers.iter().map(|(name, value)| name.len() + value.len() + 8).sum();
    if headers.len() > MOST_HEADERS || size + body.len() > LONGEST_PAGE {
        return Response::Refused(Refusal::TooLong);
    }
    Response::Page { status: answer.status().as_u16(), headers, body }
}

impl Service for Origin {
    fn execute(&mut self, _: Sigma, request: &Bytes) -> Bytes {
        self.fetch(request).encoded()
    }
}

impl Reads for Origin {
    /// Everything is: pages are fetched and never sent.
    fn is_read(&self, _: &Bytes) -> bool {
        true
    }

    fn read(&self, request: &Bytes) -> Bytes {
        self.fetch(request).encoded()
    }

    /// Rule D: no errors. Rule C: nothing that is for one visitor.
    fn keeps(&self, request: &Bytes, response: &Bytes) -> bool {
        let personal = |(name, _): &(String, Bytes)| ["authorization", "cookie"].contains(&name.as_str());
        if Request::read(request).map_or(true, |request| request.headers.iter().any(personal)) {
            return false;
        }
        match Response::read(response.clone()) {
            Ok(Response::Page { status, headers, .. }) => {
                status < 500 && !headers.iter().any(|(name, _)| name == "set-cookie")
            }
            Ok(Response::Refused(_)) | Err(_) => false,
        }
    }
}

impl Durable for Origin {
    const SLOW: bool = true;
    /// Pages change when they like (rule E).
    const ORDERED: bool = false;

    fn together(&self, requests: &[Bytes]) -> Vec<Bytes> {
        let (mut under_way, mut pages) = (VecDeque::new(), Vec::with_capacity(requests.len()));
        for request in requests {
            if under_way.len() == AT_ONCE {
                pages.extend(under_way.pop_front().map(fetched));
            }
            under_way.push_back(self.begin(request));
        }
        pages.extend(under_way.into_iter().map(fetched));
        pages.iter().map(Response::encoded).collect()
    }

    fn save(&self, _: &mut BytesMut) {}

    fn load(&self, _: &mut Reader) -> Result<Origin, Malformed> {
        Ok(self.clone())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::sync::{Arc, Barrier};

    /// A server that gives every request this answer, and tells what it was asked.
    fn server(answer: Vec<u8>) -> (Origin, std::sync::mpsc::Receiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (told, asked) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let _ = told.send(head(&mut stream));
                let _ = stream.write_all(&answer);
                let _ = stream.shutdown(Shutdown::Both);
            }
        });
        (Origin::new(address).unwrap(), asked)
    }

    /// A request as it comes.
    fn head(stream: &mut TcpStream) -> String {
        let (mut request, mut piece) = (Vec::new(), [0; 4_096]);
        while !request.ends_with(b"\r\n\r\n") {
            let read = stream.read(&mut piece).unwrap();
            request.extend_from_slice(&piece[..read]);
        }
        String::from_utf8(request).unwrap()
    }

    /// What a server was asked.
    #[derive(Default)]
    pub(crate) struct Asked {
        pub(crate) all: AtomicUsize,
        at_once: AtomicUsize,
        pub(crate) most_at_once: AtomicUsize,
    }

    /// A server that says what path it was asked for, and to nobody before as many have asked it as may at once.
    pub(crate) fn gathering() -> (Origin, Arc<Asked>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (asked, gathered) = (Arc::new(Asked::default()), Arc::new(Barrier::new(AT_ONCE)));
        let noted = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, gathered, asked) = (stream.unwrap(), Arc::clone(&gathered), Arc::clone(&noted));
                std::thread::spawn(move || {
                    let head = head(&mut stream);
                    let path = head.split(' ').nth(1).unwrap();
                    asked.all.fetch_add(1, SeqCst);
                    asked.most_at_once.fetch_max(asked.at_once.fetch_add(1, SeqCst) + 1, SeqCst);
                    gathered.wait();
                    asked.at_once.fetch_sub(1, SeqCst);
                    let length = path.len();
                    let _ = write!(
                        stream,
                        "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{path}"
                    );
                });
            }
        });
        (Origin::new(address).unwrap(), asked)
    }

    fn ask(origin: &Origin, path: &str, headers: &[(&str, &str)]) -> Response {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), Bytes::from((*value).to_owned())));
        let request = Request { path: path.to_owned(), headers: headers.collect() };
        Response::read(origin.read(&request.encoded())).unwrap()
    }

    #[test]
    fn a_page_is_what_the_server_says_without_what_is_of_the_moment() {
        let answer = "HTTP/1.1 200 OK\r\nDate: now\r\nServer: s\r\nETag: \"7\"\r\nX-B: 2\r\nContent-Length: 5\r\nExpires: soon\r\n\
             Connection: close\r\nCache-Control: max-age=9\r\nX-A: 1\r\n\r\nhello";
        let (origin, asked) = server(answer.into());
        let page = ask(&origin, "/page?x=1", &[("accept", "text/plain"), ("host", "a.org")]);
        let header = |name: &str, value: &'static str| (name.to_owned(), Bytes::from_static(value.as_bytes()));
        let headers = vec![header("cache-control", "max-age=9"), header("x-a", "1"), header("x-b", "2")];
        assert_eq!(page, Response::Page { status: 200, headers, body: Bytes::from_static(b"hello") });
        let asked = asked.recv().unwrap();
        assert!(asked.starts_with("GET /page?x=1 HTTP/1.1\r\n") && asked.contains("accept: text/plain"), "{asked}");
        assert!(asked.matches("host: ").count() == 1 && asked.contains("host: a.org"), "{asked}");
    }

    #[test]
    fn what_is_no_request_reaches_no_server() {
        let (origin, asked) = server(Vec::new());
        let refused = Response::Refused(Refusal::Malformed);
        assert_eq!(ask(&origin, "page", &[]), refused);
        assert_eq!(ask(&origin, "/a b", &[]), refused);
        assert_eq!(ask(&origin, "/page", &[("connection", "upgrade")]), refused);
        assert_eq!(ask(&origin, "/page", &[("x-a", "1\r\nx-b: 2")]), refused);
        assert_eq!(ask(&origin, "/page", &[("X-A", "1")]), refused);
        for nonsense in [&b""[..], b"\0\0\0\x09/", b"\0\0\0\x01/\0\0\x01\0"] {
            let answer = origin.read(&Bytes::copy_from_slice(nonsense));
            assert_eq!(Response::read(answer), Ok(refused.clone()));
        }
        assert!(asked.try_recv().is_err());
    }

    #[test]
    fn errors_and_cookies_are_not_remembered() {
        let origin = Origin::new(([127, 0, 0, 1], 1).into()).unwrap();
        let page = |status, name: &str| {
            let headers = vec![(name.to_owned(), Bytes::from_static(b"1"))];
            Response::Page { status, headers, body: Bytes::new() }.encoded()
        };
        let keeps = |header: &str, response: &Bytes| {
            let headers = vec![(header.to_owned(), Bytes::from_static(b"1"))];
            origin.keeps(&Request { path: "/".to_owned(), headers }.encoded(), response)
        };
        assert!(keeps("accept", &page(200, "x-a")) && keeps("accept", &page(404, "x-a")));
        assert!(!keeps("accept", &page(500, "x-a")) && !keeps("accept", &page(200, "set-cookie")));
        assert!(!keeps("cookie", &page(200, "x-a")) && !keeps("authorization", &page(200, "x-a")));
        let refusals = [Refusal::Malformed, Refusal::Unreachable, Refusal::TooLong];
        assert!(!refusals.into_iter().any(|refusal| keeps("accept", &Response::Refused(refusal).encoded())));
        assert!(!keeps("accept", &Bytes::from_static(b"nonsense")));
    }

    #[test]
    fn a_server_that_is_away_or_says_too_much_has_no_page() {
        let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert_eq!(ask(&Origin::new(gone).unwrap(), "/", &[]), Response::Refused(Refusal::Unreachable));
        let (nonsense, _asked) = server(b"nonsense\r\n\r\n".to_vec());
        assert_eq!(ask(&nonsense, "/", &[]), Response::Refused(Refusal::Unreachable));
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", LONGEST_PAGE + 1);
        let (long, _asked) = server([head.into_bytes(), vec![b'x'; LONGEST_PAGE + 1]].concat());
        assert_eq!(ask(&long, "/", &[]), Response::Refused(Refusal::TooLong));
    }
}
