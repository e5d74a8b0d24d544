//! What operators do with applications and keys, on any [`KeyStore`].

use crate::clock::Clock;
use crate::keys::{Key, KeyRecord, KeyStore};
use crate::principal::AppName;
use std::sync::Arc;
use tidings_base::{Class, Error, Wall};
use tidings_wire::v1;
use tidings_wire::v1::admin_message::Message;

/// Answers the admin messages about applications and keys.
#[derive(Clone)]
pub struct Apps {
    keys: Arc<dyn KeyStore>,
    clock: Arc<dyn Clock>,
}

impl Apps {
    /// Applications kept in `keys`.
    pub fn new(keys: Arc<dyn KeyStore>, clock: Arc<dyn Clock>) -> Apps {
        Apps { keys, clock }
    }

    /// Answers a message about applications; `None` if it is about something else.
    pub async fn call(&self, message: &Message) -> Option<Result<Message, Error>> {
        match message {
            Message::AppCreate(create) => Some(self.create_key(&create.app, true).await),
            Message::KeyCreate(create) => Some(self.create_key(&create.app, false).await),
            Message::KeyRevoke(revoke) => {
                Some(self.keys.revoke(&revoke.app, &revoke.id).await.map(|()| Message::Done(v1::Done {})))
            }
            Message::AppList(_) => Some(self.list().await),
            _ => None,
        }
    }

    async fn create_key(&self, app: &str, is_new: bool) -> Result<Message, Error> {
        let app = AppName::parse(app)?;
        let key = Key::random()?;
        let created = self.clock.now().wall;
        let record = {
            let (app, key) = (app.clone(), key.clone());
            let hashing = tokio::task::spawn_blocking(move || KeyRecord::new(&app, &key, created)).await;
            hashing.map_err(|e| Error::new("admin.hash_failed", Class::Failed, e.to_string()))??
        };
        match is_new {
            true => self.keys.create_app(record).await?,
            false => self.keys.add_key(record).await?,
        }
        Ok(Message::KeyCreated(v1::KeyCreated { app: app.to_string(), id: key.id.clone(), key: key.reveal() }))
    }

    async fn list(&self) -> Result<Message, Error> {
        let info =
            |key: KeyRecord| v1::KeyInfo { id: key.id, created: Wall(key.created).to_string(), revoked: key.revoked };
        let apps = self.keys.apps().await?.into_iter();
        let apps = apps.map(|(app, keys)| v1::AppInfo { app, keys: keys.into_iter().map(info).collect() }).collect();
        Ok(Message::AppListReply(v1::AppListReply { apps }))
    }
}
