//! What publishers, applications and operators ask: publications, lists, resets.

use super::hub::Hub;
use super::realm::NOT_READY;
use bytes::Bytes;
use prost::Message as _;
use std::collections::{BTreeMap, BTreeSet};
use tidings_base::{Class, Error, NodeId};
use tidings_notify::inspect::{self, Objects};
use tidings_notify::matcher;
use tidings_notify::names::{MAX_NAME, MAX_PAYLOAD, MAX_SOURCE, MAX_VERSION, object_hash};
use tidings_tables::names::OBJECTS;
use tidings_wire::v1;
use tidings_wire::v1::notify_message::Message as Asked;

/// Publications of one request: what one append takes.
const MAX_PUBLICATIONS: usize = 1_024;
/// What a list has at most, and unless it says otherwise.
pub(crate) const MAX_LISTED: u32 = 10_000;
const LISTED: u32 = 100;
/// Pages that one list looks through: a list is for people.
const MAX_PAGES: usize = 1_000;

impl Hub {
    /// Refuses at once what people and publishers ask while too few nodes answer for anything to come of it.
    pub(super) fn refuse_hopeless(&self, asked: Option<&Asked>) -> Result<(), Error> {
        let resets = matches!(asked, Some(Asked::Reset(_)));
        let asks =
            matches!(asked, Some(Asked::Publish(_) | Asked::ObjectList(_) | Asked::ClientList(_) | Asked::Count(_)));
        if resets || (asks && self.kept.borrow().is_none()) {
            self.way.refuse_hopeless(NOT_READY)?;
        }
        match asks {
            true => self.stored()?.refuse_hopeless(NOT_READY),
            false => Ok(()),
        }
    }

    /// Publishes; durable in the feed when this returns.
    pub(super) async fn publish(&self, app: &str, publish: v1::Publish) -> Result<v1::Published, Error> {
        let count = publish.publications.len();
        if !(1..=MAX_PUBLICATIONS).contains(&count) {
            return Err(Error::new("notify.bad_batch", Class::Invalid, format!("a request of {count} publications"))
                .hint(format!("Send 1 to {MAX_PUBLICATIONS} at once.")));
        }
        publish.publications.iter().try_for_each(check)?;
        let realm = self.present_realm().await?;
        let (incarnation, generation) = (realm.incarnation, realm.generation(app));
        let times = Some(v1::NotifyTimes { published_us: self.clock.now().wall.0, ..Default::default() });
        let filled =
            |publication| v1::Publication { app: app.to_owned(), generation, incarnation, times, ..publication };
        let publications: Vec<v1::Publication> = publish.publications.into_iter().map(filled).collect();
        let entries = publications.iter().map(|publication| Bytes::from(publication.encode_to_vec()));
        let appended = self.append(entries.collect())?;
        // Nothing is told of that was not taken in: what is told early is bounded by what waits.
        publications.iter().for_each(|publication| self.hint(publication));
        appended.await?;
        self.stages.published(count);
        Ok(v1::Published {})
    }

    /// The fast path begins before the feed has made it durable (N2 allows it), if the object's matcher is here.
    fn hint(&self, publication: &v1::Publication) {
        if let Some(lease) = self.lease(object_hash(&publication.app, &publication.object)) {
            // Nothing relies on it: a matcher that has no room is told by the feed.
            self.tell_matcher(matcher::Input::Hint { lease, publication: Box::new(publication.clone()) });
        }
    }

    /// Objects of an application.
    pub(super) async fn objects(&self, app: &str, list: &v1::ObjectList) -> Result<v1::ObjectListReply, Error> {
        let (objects, more) = self.find_objects(app, &list.object, limit(list.limit)).await?;
        match objects.is_empty() && !list.object.is_empty() {
            true => Err(no_object(&list.object)),
            false => Ok(v1::ObjectListReply { objects, more }),
        }
    }

    /// So many objects of an application, or the one that is named; whether there are more.
    pub(super) async fn find_objects(
        &self,
        app: &str,
        object: &[u8],
        limit: usize,
    ) -> Result<(Vec<v1::ObjectInfo>, bool), Error> {
        let realm = self.kept()?.realm();
        let mut found = Objects::default();
        let mut from = None;
        for _ in 0..MAX_PAGES {
            let rows = self.scan(inspect::objects_page(&realm, app, object, from.take())).await?;
            rows.rows.iter().for_each(|row| found.take(&realm, app, row));
            from = rows.next;
            // Rows of one object stand together: all of those before the last are complete.
            if from.is_none() || found.len() > limit {
                break;
            }
        }
        let mut objects = found.into_list();
        let more = from.is_some() || objects.len() > limit;
        objects.truncate(limit);
        Ok((objects, more))
    }

    /// Clients of an application.
    pub(super) async fn clients(&self, app: &str, wanted: u32) -> Result<v1::ClientListReply, Error> {
        let (mut clients, more) = self.find_clients(app, limit(wanted)).await?;
        let node = |client: &v1::NotifyClientInfo| client.channel.map(|channel| channel.node);
        let nodes: BTreeSet<u64> = clients.iter().filter_map(node).collect();
        let answers = nodes.into_iter().map(async |node| (node, self.answers(NodeId(node)).await));
        let answers: BTreeMap<u64, bool> = futures::future::join_all(answers).await.into_iter().collect();
        for client in &mut clients {
            client.silent = node(client).is_some_and(|node| answers.get(&node) == Some(&false));
        }
        Ok(v1::ClientListReply { clients, more })
    }

    /// So many clients of an application; whether there are more.
    pub(super) async fn find_clients(
        &self,
        app: &str,
        limit: usize,
    ) -> Result<(Vec<v1::NotifyClientInfo>, bool), Error> {
        let realm = self.kept()?.realm();
        let mut clients = Vec::new();
        let mut from = None;
        for _ in 0..MAX_PAGES {
            let rows = self.scan(inspect::clients_page(&realm, from.take())).await?;
            clients.extend(rows.rows.iter().filter_map(|row| inspect::client(&realm, app, row)));
            from = rows.next;
            if from.is_none() || clients.len() > limit {
                break;
            }
        }
        let more = from.is_some() || clients.len() > limit;
        clients.truncate(limit);
        Ok((clients, more))
    }

    /// F3: forgets versions and registrations; clients come back, register again and fetch.
    pub(super) async fn reset(&self, app: &str, reset: v1::NotifyReset) -> Result<v1::NotifyResetDone, Error> {
        let now = self.clock.now().wall;
        let kept = self
            .change_realm(|kept| match reset.everything {
                true => kept.raise_incarnation(0, now),
                false => kept.raise_generation(app),
            })
            .await?;
        let (incarnation, generation) = (kept.incarnation, kept.realm().generation(app));
        tracing::warn!(app, incarnation, generation, everything = reset.everything, "notify: versions are forgotten");
        Ok(v1::NotifyResetDone { incarnation, generation })
    }
}

fn no_object(name: &[u8]) -> Error {
    let name = String::from_utf8_lossy(name);
    let message = format!("nobody has published or registered an object `{}`", crate::principal::clip(&name));
    Error::new("notify.no_object", Class::NotFound, message)
        .hint("`tidings notify objects APP` lists those that are known.")
}

fn limit(wanted: u32) -> usize {
    (if wanted == 0 { LISTED } else { wanted.min(MAX_LISTED) }) as usize
}

/// R3 of Tables: whoever is away listens to these. By a version above all others anybody could make them deaf for good.
pub(super) fn refuse_reserved(publish: &v1::Publish) -> Result<(), Error> {
    let reserved = |publication: &&v1::Publication| publication.object.starts_with(OBJECTS.as_bytes());
    let Some(publication) = publish.publications.iter().find(reserved) else { return Ok(()) };
    let name = String::from_utf8_lossy(&publication.object);
    let message = format!("the object `{}` is the platform's own", crate::principal::clip(&name));
    Err(Error::new("notify.reserved_object", Class::Refused, message)
        .hint(format!("Names that begin with `{OBJECTS}` are published by tables alone; choose another.")))
}

fn check(publication: &v1::Publication) -> Result<(), Error> {
    let sizes = [
        ("object's name", publication.object.len(), 1, MAX_NAME),
        ("source", publication.source.len(), 0, MAX_SOURCE),
        ("payload", publication.payload.len(), 0, MAX_PAYLOAD),
    ];
    for (what, length, least, most) in sizes {
        if !(least..=most).contains(&length) {
            let message = format!("the {what} has {length} bytes");
            return Err(Error::new("notify.bad_size", Class::Invalid, message)
                .hint(format!("It may have {least} to {most} bytes.")));
        }
    }
    if !(1..=MAX_VERSION).contains(&publication.version) {
        let message = format!("{} is no version", publication.version);
        return Err(Error::new("notify.bad_version", Class::Invalid, message)
            .hint("Versions are 1 to 2^63-1 and grow; microseconds since 1970 will do."));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_tables_are_nobody_elses_to_publish() {
        let publish = |names: &[&'static str]| {
            let object = |name: &&'static str| v1::Publication { object: (*name).into(), ..Default::default() };
            refuse_reserved(&v1::Publish { publications: names.iter().map(object).collect() })
        };
        let refused = publish(&["prices", "tables/0000000000000007.0"]).unwrap_err();
        assert_eq!((&*refused.code, refused.class), ("notify.reserved_object", Class::Refused));
        assert!(refused.hint.contains("tables/"), "{}", refused.hint);
        assert!(publish(&["prices", "tables", "tablespoons/1", "my/tables/1"]).is_ok());
    }
}
