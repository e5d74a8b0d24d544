//! A connection of a client: one GET after the other, with as little of its own as can be.

use crate::output::broken;
use std::net::SocketAddr;
use tidings_base::{Class, Error};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

pub struct Line {
    to: SocketAddr,
    stream: BufReader<TcpStream>,
    head: String,
    /// The body of the latest answer.
    pub body: Vec<u8>,
}

fn lost(error: std::io::Error) -> Error {
    broken("a connection under measurement was lost", error)
}

fn wrong(what: String) -> Error {
    Error::new("bench.wrong_answer", Class::Failed, what)
}

impl Line {
    pub async fn connect(to: SocketAddr) -> Result<Line, Error> {
        let stream = TcpStream::connect(to).await.map_err(lost)?;
        stream.set_nodelay(true).map_err(lost)?;
        Ok(Line { to, stream: BufReader::new(stream), head: String::new(), body: Vec::new() })
    }

    /// Asks for a path; whether the answer was a fast one. Anything but 200 is an error.
    pub async fn get(&mut self, path: &str) -> Result<bool, Error> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.to);
        self.stream.write_all(request.as_bytes()).await.map_err(lost)?;
        let (mut status, mut length, mut fast) = (None, 0, false);
        loop {
            self.head.clear();
            if self.stream.read_line(&mut self.head).await.map_err(lost)? == 0 {
                return Err(wrong(format!("{} closed a connection instead of answering", self.to)));
            }
            let line = self.head.trim_end();
            match line.split_once(':') {
                _ if line.is_empty() => break,
                None => status = line.split(' ').nth(1).and_then(|status| status.parse::<u16>().ok()),
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                    length = value.trim().parse().unwrap_or(0);
                }
                Some((name, value)) if name.eq_ignore_ascii_case("tidings-verified") => fast = value.trim() == "fast",
                Some(_) => {}
            }
        }
        self.body.resize(length, 0);
        self.stream.read_exact(&mut self.body).await.map_err(lost)?;
        match status {
            Some(200) => Ok(fast),
            other => {
                let told = String::from_utf8_lossy(&self.body);
                Err(wrong(format!("{} answered {other:?} to GET {path}: {}", self.to, told.trim())))
            }
        }
    }

    /// The same, and the page must begin so.
    pub async fn get_expecting(&mut self, path: &str, beginning: &str) -> Result<bool, Error> {
        let fast = self.get(path).await?;
        if !self.body.starts_with(beginning.as_bytes()) {
            let told = String::from_utf8_lossy(&self.body[..self.body.len().min(20)]).into_owned();
            return Err(wrong(format!("GET {path} gave `{told}…`, not `{beginning}…`")));
        }
        Ok(fast)
    }
}
