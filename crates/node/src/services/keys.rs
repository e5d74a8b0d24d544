//! Applications and their keys, kept in the store.
//!
//! Group `.keys` (no application can be called that, so no tenant reaches it). Row `app/<name>`, column `keys`: all
//! keys of an application as JSON, changed by compare-and-set. Row `id/<id>`, column `app`: whose key it is. The
//! second is written first: one without the other names an application that does not know the key, which opens nothing.

use super::Stored;
use crate::keys::{self, KeyRecord, KeyStore, refuse};
use crate::principal::AppName;
use async_trait::async_trait;
use bytes::Bytes;
use std::collections::BTreeMap;
use tidings_base::{Class, Error};
use tidings_wire::v1::store_message::Message;
use tidings_wire::v1::{self, Cell, CompareAndSet, Get, GroupWrite, RowKey, RowWrite, Scan};

const GROUP: Bytes = Bytes::from_static(b".keys");
const KEYS: Bytes = Bytes::from_static(b"keys");
const APP: Bytes = Bytes::from_static(b"app");
const APPS_FROM: Bytes = Bytes::from_static(b"app/");
/// The first name after all that begin with `app/`.
const APPS_TO: Bytes = Bytes::from_static(b"app0");

/// How often a change is tried again when another one came first.
const TRIES: usize = 8;

#[async_trait]
impl KeyStore for Stored {
    async fn find(&self, id: &str) -> Result<Option<KeyRecord>, Error> {
        let Some(owner) = self.cell(format!("id/{id}"), APP).await? else { return Ok(None) };
        let owner = owner.value.unwrap_or_default();
        let (_, keys) = self.keys_of(&String::from_utf8_lossy(&owner)).await?;
        Ok(keys.and_then(|keys| keys.into_iter().find(|key| key.id == id)))
    }

    async fn apps(&self) -> Result<BTreeMap<String, Vec<KeyRecord>>, Error> {
        let mut apps = BTreeMap::new();
        let mut start = APPS_FROM;
        loop {
            let scan = Scan { group: GROUP, start, end: APPS_TO, limit: 0, columns: vec![KEYS] };
            let Message::Rows(rows) = self.ask(Message::Scan(scan)).await? else { return Err(confused()) };
            for row in rows.rows {
                let name = String::from_utf8_lossy(&row.row[APPS_FROM.len()..]).into_owned();
                apps.insert(name, parse(row.cells.first())?);
            }
            match rows.next {
                Some(next) => start = next,
                None => return Ok(apps),
            }
        }
    }

    async fn create_app(&self, first: KeyRecord) -> Result<(), Error> {
        let app = first.app.clone();
        self.change(&app, Some(&first.id), |keys| match keys {
            Some(_) => Err(refuse::app_exists(&app)),
            None => Ok(vec![first.clone()]),
        })
        .await
    }

    async fn add_key(&self, key: KeyRecord) -> Result<(), Error> {
        let app = key.app.clone();
        self.change(&app, Some(&key.id), |keys| {
            let mut keys = keys.ok_or_else(|| refuse::no_app(&app))?;
            keys::add(&mut keys, key.clone())?;
            Ok(keys)
        })
        .await
    }

    async fn revoke(&self, app: &str, id: &str) -> Result<(), Error> {
        self.change(app, None, |keys| {
            let mut keys = keys.ok_or_else(|| refuse::no_app(app))?;
            let key = keys.iter_mut().find(|key| key.id == id).ok_or_else(|| refuse::no_key(app, id))?;
            key.revoked = true;
            Ok(keys)
        })
        .await
    }
}

impl Stored {
    /// Refuses an application that nobody has made.
    pub(super) async fn app_exists(&self, app: &AppName) -> Result<(), Error> {
        match self.keys_of(app.as_str()).await? {
            (_, Some(_)) => Ok(()),
            (_, None) => Err(refuse::no_app(app.as_str())),
        }
    }

    /// Changes the keys of an application by compare-and-set. A new key's owner is written once the change is known
    /// not to be refused.
    async fn change(
        &self,
        app: &str,
        new_id: Option<&str>,
        change: impl Fn(Option<Vec<KeyRecord>>) -> Result<Vec<KeyRecord>, Error> + Send + Sync,
    ) -> Result<(), Error> {
        for _ in 0..TRIES {
            let (expected, keys) = self.keys_of(app).await?;
            let keys = change(keys)?;
            if let Some(id) = new_id {
                self.write_owner(id, app).await?;
            }
            let value = serde_json::to_vec(&keys)
                .map_err(|e| Error::new("admin.bad_record", Class::Failed, format!("keys cannot be written: {e}")))?;
            let write = Cell { column: KEYS, timestamp: expected + 1, value: Some(value.into()) };
            let set = CompareAndSet {
                key: Some(RowKey { group: GROUP, row: format!("app/{app}").into() }),
                column: KEYS,
                expected,
                write: Some(write),
                fence: None,
            };
            match self.ask(Message::CompareAndSet(set)).await? {
                Message::CompareAndSetDone(done) if done.written => return Ok(()),
                Message::CompareAndSetDone(_) => {}
                _ => return Err(confused()),
            }
        }
        Err(Error::new("admin.busy", Class::Refused, "the application is being changed by others all the time")
            .hint("Try again."))
    }

    /// The keys of an application with the timestamp they have; 0 and `None` if there is no such application.
    async fn keys_of(&self, app: &str) -> Result<(u64, Option<Vec<KeyRecord>>), Error> {
        match self.cell(format!("app/{app}"), KEYS).await? {
            None => Ok((0, None)),
            Some(cell) => Ok((cell.timestamp, Some(parse(Some(&cell))?))),
        }
    }

    async fn write_owner(&self, id: &str, app: &str) -> Result<(), Error> {
        let cell = Cell { column: APP, timestamp: 1, value: Some(app.to_owned().into()) };
        let row = RowWrite { row: format!("id/{id}").into(), cells: vec![cell] };
        let write = GroupWrite { group: GROUP, rows: vec![row], fence: None };
        match self.ask(Message::Apply(v1::Apply { groups: vec![write] })).await? {
            Message::Applied(applied) if applied.failures.is_empty() => Ok(()),
            _ => Err(confused()),
        }
    }

    async fn cell(&self, row: String, column: Bytes) -> Result<Option<Cell>, Error> {
        let get = Get { key: Some(RowKey { group: GROUP, row: row.into() }), columns: vec![column] };
        match self.ask(Message::Get(get)).await? {
            Message::Rows(rows) => Ok(rows.rows.into_iter().next().and_then(|row| row.cells.into_iter().next())),
            _ => Err(confused()),
        }
    }
}

fn parse(cell: Option<&Cell>) -> Result<Vec<KeyRecord>, Error> {
    let value = cell.and_then(|cell| cell.value.as_deref()).unwrap_or(b"[]");
    serde_json::from_slice(value)
        .map_err(|e| Error::new("admin.bad_record", Class::Failed, format!("a stored key cannot be read: {e}")))
}

fn confused() -> Error {
    Error::new("admin.bad_record", Class::Failed, "the store answered another question")
}
