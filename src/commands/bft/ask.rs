//! `tidings bft get`, `put`, `delete` and `fetch`: one question to the service of a group.

use crate::cli::bft::{Asks, Delete, Fetch, Get, Put, Way};
use crate::commands::runtime;
use crate::output;
use crate::stopwatch::wall_micros;
use bytes::Bytes;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Class, Error};
use tidings_bft::client::{Answered, Client, Options};
use tidings_bft::direct::{self, How};
use tidings_bft::http;
use tidings_bft::kv::{LONGEST_KEY, Request, Response};
use tidings_bft::membership::{ClientSecrets, Membership};

/// How long replicas have to be reached. Those that come later are asked again.
const PATIENCE: Duration = Duration::from_secs(2);

/// Reads a value.
pub fn get(args: &Get) -> Result<(), Error> {
    let answered = read(&args.asks, Request::Get(key(&args.key)?).encoded(), &args.way)?;
    let response = of_keys(&answered)?;
    let Response::Value(value) = response else { return Err(unexpected(&response)) };
    let Some(value) = value else {
        return Err(Error::new("bft.no_value", Class::NotFound, format!("`{}` has no value", args.key))
            .hint("`tidings bft put` gives it one."));
    };
    let text = String::from_utf8_lossy(&value);
    match args.asks.json {
        true => output::json(&json!({ "key": args.key, "value": text, "ordered": answered.sigma.is_some() })),
        false => output::line(text),
    }
    Ok(())
}

/// Gives a key a value.
pub fn put(args: &Put) -> Result<(), Error> {
    let request = Request::Put(key(&args.key)?, Bytes::copy_from_slice(args.value.as_bytes()));
    change(&args.asks, &args.key, &request)
}

/// Takes a key away.
pub fn delete(args: &Delete) -> Result<(), Error> {
    change(&args.asks, &args.key, &Request::Delete(key(&args.key)?))
}

/// Fetches a page.
pub fn fetch(args: &Fetch) -> Result<(), Error> {
    let request = http::Request { path: args.path.clone(), headers: Vec::new() };
    let answered = read(&args.asks, request.encoded(), &args.way)?;
    let response = http::Response::read(answered.result).map_err(|error| other_service("web pages", &error))?;
    let (status, headers, body) = match response {
        http::Response::Page { status, headers, body } => (status, headers, body),
        http::Response::Refused(refusal) => {
            return Err(Error::new("bft.refused", Class::Refused, refusal.to_string())
                .hint("A path begins with `/`; `tidings bft status` shows who is there."));
        }
    };
    if args.asks.json {
        let headers: Vec<_> =
            headers.iter().map(|(name, value)| json!([name, String::from_utf8_lossy(value)])).collect();
        output::json(&json!({ "status": status, "headers": headers, "body": String::from_utf8_lossy(&body),
                              "ordered": answered.sigma.is_some() }));
    } else {
        output::exact(String::from_utf8_lossy(&body));
    }
    if status >= 400 {
        return Err(Error::new("bft.status", Class::Failed, format!("`{}` has status {status}", args.path))
            .hint("The servers beside the replicas say so."));
    }
    Ok(())
}

fn change(asks: &Asks, key: &str, request: &Request) -> Result<(), Error> {
    let answered = ask(asks, request.encoded(), true)?;
    let before = match of_keys(&answered)? {
        Response::Done(before) => before,
        Response::Refused(refusal) => return Err(Error::new("bft.refused", Class::Refused, refusal.to_string())),
        other => return Err(unexpected(&other)),
    };
    if asks.json {
        let place = answered.sigma.map(|sigma| json!({ "height": sigma.height(), "index": sigma.index() }));
        output::json(&json!({ "key": key, "existed": before, "place": place }));
    }
    Ok(())
}

/// Reads in the way that was asked for. Where it was not executed in the order, the answer has no place.
fn read(asks: &Asks, request: Bytes, way: &Way) -> Result<Answered, Error> {
    if !way.remembered {
        return ask(asks, request, way.ordered);
    }
    let (membership, secrets) = of(asks)?;
    runtime()?.block_on(async {
        let size = usize::from(membership.size());
        let options = Options::after(wall_micros());
        let mut client = match way.strict {
            true => direct::Client::start_strict(membership, secrets, &options)?,
            false => direct::Client::start(membership, secrets, &options)?,
        };
        let _ = tokio::time::timeout(PATIENCE, client.connected(size)).await;
        let direct::Answered { result, how, sigma } = client.read(request).await?;
        Ok(Answered { result, sigma: sigma.filter(|_| how == How::Agreed) })
    })
}

/// The group and who asks it.
fn of(asks: &Asks) -> Result<(Arc<Membership>, ClientSecrets), Error> {
    let membership = Arc::new(super::group(&asks.group)?);
    let secrets = super::client(&asks.client, &membership)?;
    Ok((membership, secrets))
}

/// Asks once, and gives up after half a minute.
fn ask(asks: &Asks, request: Bytes, ordered: bool) -> Result<Answered, Error> {
    let (membership, secrets) = of(asks)?;
    runtime()?.block_on(async {
        let size = usize::from(membership.size());
        // Nonces must rise from process to process, and nothing is kept between them: the time does.
        let mut client = Client::start(membership, secrets, &Options::after(wall_micros()))?;
        let _ = tokio::time::timeout(PATIENCE, client.connected(size)).await;
        match ordered {
            true => client.call(request).await,
            false => client.read(request).await,
        }
    })
}

fn of_keys(answered: &Answered) -> Result<Response, Error> {
    Response::read(answered.result.clone()).map_err(|error| other_service("keys and values", &error))
}

fn other_service(of: &str, error: &impl std::fmt::Display) -> Error {
    Error::new("bft.malformed", Class::Failed, format!("the group did not answer as a service of {of}: {error}"))
        .hint("Its replicas run `get`, `put` and `delete`, or, with `--origin`, `fetch`.")
}

fn key(text: &str) -> Result<Bytes, Error> {
    if text.is_empty() || text.len() > LONGEST_KEY {
        return Err(output::usage(format!("a key has 1 to {LONGEST_KEY} bytes")));
    }
    Ok(Bytes::copy_from_slice(text.as_bytes()))
}

fn unexpected(response: &Response) -> Error {
    Error::new("bft.malformed", Class::Failed, format!("the group answered {response:?}"))
}
