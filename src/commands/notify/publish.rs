//! `tidings notify publish`: a new version of an object.

use super::within;
use crate::cli::notify::Publish;
use crate::commands::{remote, runtime};
use crate::output;
use serde_json::json;
use tidings_base::{Class, Error};
use tidings_client::Client;
use tidings_client::notify::{Publication, publish};
use tidings_node::{Clock as _, SystemClock};
use tidings_wire::v1::notify_message::Message;
use tidings_wire::{Body, v1};

pub fn run(args: Publish) -> Result<(), Error> {
    let version = version(&args.version)?;
    let payload = args.payload.as_deref().map(remote::content).transpose()?.unwrap_or_default();
    let remote = within(args.application.clone(), args.remote)?;
    let publication =
        Publication { source: args.source.into(), payload, ..Publication::new(args.object.clone(), version) };
    let known = runtime()?.block_on(async {
        let client = Client::connect(remote::config(&remote)?).await?;
        publish(&client, [publication]).await?;
        Ok::<_, Error>(known(&client, &args.object).await)
    })?;
    let later = known.filter(|known| *known > version);
    if remote.json {
        let mut told = json!({ "app": args.application, "object": args.object, "version": version });
        if let Some(later) = later {
            told["known"] = later.into();
        }
        output::json(&told);
    } else if let Some(later) = later {
        output::line(format_args!(
            "{version} of {} is older than {later}, which is known: nobody is told",
            remote::printed(args.object.as_bytes())
        ));
    } else {
        output::line(format_args!("published {version} of {}", remote::printed(args.object.as_bytes())));
    }
    Ok(())
}

/// The version that is known of an object, for a publisher to see that his is older. It is published either way, so nothing
/// that goes wrong here is worth a word.
async fn known(client: &Client, object: &str) -> Option<u64> {
    let list = Message::ObjectList(v1::ObjectList { object: object.to_owned().into(), limit: 1 });
    let body = Body::Notify(v1::NotifyMessage { caller: None, message: Some(list) });
    match client.call(body).await.ok()? {
        Body::Notify(v1::NotifyMessage { message: Some(Message::ObjectListReply(reply)), .. }) => {
            reply.objects.first().map(|object| object.version)
        }
        _ => None,
    }
}

fn version(text: &str) -> Result<u64, Error> {
    if text == "now" {
        return Ok(SystemClock.now().wall.0);
    }
    text.parse().map_err(|_| {
        Error::new("notify.bad_version", Class::Invalid, format!("`{text}` is no version"))
            .hint("Use a number from 1 to 2^63-1 that grows, or `now`.")
    })
}
