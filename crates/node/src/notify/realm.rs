//! What state and tokens are bound to (F3, F8): incarnation, generations and keys, in one file of the cell.
//!
//! It is read through the cell's consistent cache: nobody can change it while a node may still use what it was.

use super::feeding;
use super::hub::Hub;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::{Class, Error, Wall};
use tidings_client::cell::{Cell, Events, File, Handle, Link, SessionOptions};
use tidings_notify::rows::Realm;
use tidings_notify::token::Keys;
use tidings_notify::{bridge, matcher, registrar};
use tidings_wire::v1;
use tidings_wire::v1::store_message::Message as StoreMessage;

/// The code of what this node cannot do yet, or not now.
pub(super) const NOT_READY: &str = "notify.not_ready";

/// The file.
const PATH: &str = "/realm";
/// The pause before another session is tried.
const AGAIN: Duration = Duration::from_millis(250);
/// How long a session may take to begin.
const BEGIN: Duration = Duration::from_secs(10);
/// How often the store is asked whether it was lost and restored.
const LOOK: Duration = Duration::from_secs(2);
/// How often a change of the file is tried against others'.
const ATTEMPTS: usize = 16;
/// Keys that are accepted: the newest, and those before it whose tokens clients still have.
const KEYS: usize = 3;
/// Until a new key is used, so that every node knows it when the first token under it comes back.
const SPREADS: Duration = Duration::from_secs(30);
/// After an incarnation was raised, nobody consumes for the one before any more: longer than a consumer waits, and than a
/// node can be without hearing of it.
const UNUSED: Duration = Duration::from_secs(120);
/// Channels that are closed in a moment when the realm changes, and how long that is: their clients come back at once.
const AT_ONCE: usize = 100;
const MOMENT: Duration = Duration::from_millis(100);

/// The file's contents. It has secrets in it, and so no form for logs.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Kept {
    /// Grows with every detected loss of what is stored.
    pub(super) incarnation: u64,
    /// The store's own incarnation that this one is for.
    store: u64,
    /// The instance of the file that it was written for: one that the cell was restored from has another. 0 = not noted yet.
    #[serde(default)]
    instance: u64,
    /// Generations of applications that were reset.
    #[serde(default)]
    generations: BTreeMap<String, u32>,
    /// Oldest first; all verify.
    keys: Vec<TokenKey>,
    /// Incarnations whose consumer groups the feed still has to forget: it keeps entries for each.
    #[serde(default = "nameless")]
    past: Vec<u64>,
}

/// A file from before there was a group for each incarnation.
fn nameless() -> Vec<u64> {
    vec![0]
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
struct TokenKey {
    id: u32,
    secret: String,
    /// When it was made, in milliseconds since 1970.
    #[serde(default)]
    made_ms: u64,
}

/// What of the file the machines were told last.
#[derive(Default)]
pub(super) struct Entered {
    /// The file's instance and its generation.
    generation: (u64, u64),
    /// The key that tokens are made with.
    signer: u32,
}

impl Kept {
    fn new(incarnation: u64, store: u64, now: Wall) -> Result<Kept, Error> {
        let (generations, keys, past) = (BTreeMap::new(), Vec::new(), Vec::new());
        let mut kept = Kept { incarnation, store, instance: 0, generations, keys, past };
        kept.rotate(&secret()?, now);
        Ok(kept)
    }

    /// F8: another key; the oldest beyond [`KEYS`] is retired.
    fn rotate(&mut self, secret: &str, now: Wall) {
        let id = self.keys.last().map_or(1, |newest| newest.id.saturating_add(1));
        self.keys.push(TokenKey { id, secret: secret.to_owned(), made_ms: now.millis() });
        let retired = self.keys.len().saturating_sub(KEYS);
        self.keys.drain(..retired);
    }

    /// Whether the newest key has served for so long.
    fn is_stale(&self, every: Duration, now: Wall) -> bool {
        let age = self.keys.last().map(|newest| now.millis().saturating_sub(newest.made_ms));
        age.is_none_or(|age| u128::from(age) >= every.as_millis())
    }

    /// The key that tokens are made with: the newest that every node knows by now.
    fn signer(&self, now: Wall) -> u32 {
        let known = |key: &&TokenKey| key.made_ms + SPREADS.as_millis() as u64 <= now.millis();
        self.keys.iter().rev().find(known).or(self.keys.first()).map_or(0, |key| key.id)
    }

    fn of(file: &File) -> Result<Kept, Error> {
        serde_json::from_slice(file.contents()).map_err(|e| {
            Error::new("notify.bad_realm", Class::Failed, format!("Notify's file in the cell cannot be read: {e}"))
                .hint("It is the platform's own; restore the cell from a backup.")
        })
    }

    fn bytes(&self) -> Vec<u8> {
        // Numbers and texts always have a JSON form.
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub(super) fn realm(&self) -> Realm {
        Realm { incarnation: self.incarnation, generations: self.generations.clone() }
    }

    /// The keys as a registrar wants them: the last is for new tokens.
    fn keys(&self, signer: u32) -> Keys {
        let (last, others): (Vec<_>, Vec<_>) = self.keys.iter().partition(|key| key.id == signer);
        let all = others.into_iter().chain(last);
        let secrets: Vec<(u32, Vec<u8>)> =
            all.filter_map(|key| Some((key.id, BASE64.decode(&key.secret).ok()?))).collect();
        Keys::new(secrets.iter().map(|(id, secret)| (*id, secret.as_slice())))
    }

    /// Whether a file is the one that this was written for, and not what the cell was restored from.
    fn is_of(&self, file: &File) -> bool {
        self.instance == 0 || self.instance == file.stat().instance
    }

    /// Everything that is stored is gone, or as good as gone. Above what is known to have been used, and by the wall clock, so
    /// that one that was used before the cell itself was restored is not used again.
    pub(super) fn raise_incarnation(&mut self, known: u64, now: Wall) {
        self.past.push(self.incarnation);
        self.past.extend((known > self.incarnation).then_some(known));
        self.incarnation = above(self.incarnation.max(known), now);
    }

    /// Everything of an application is.
    pub(super) fn raise_generation(&mut self, app: &str) {
        *self.generations.entry(app.to_owned()).or_default() += 1;
    }
}

/// An incarnation that was not used before.
fn above(known: u64, now: Wall) -> u64 {
    (known + 1).max(now.millis())
}

fn no_session() -> Error {
    Error::new(NOT_READY, Class::Unreachable, "this node has no session with the cell")
        .hint("Try again in a moment, or ask another node.")
}

fn secret() -> Result<String, Error> {
    let mut secret = [0; 32];
    getrandom::fill(&mut secret)
        .map_err(|e| Error::new("node.no_randomness", Class::Failed, format!("no random bytes: {e}")))?;
    Ok(BASE64.encode(secret))
}

/// Keeps the realm known, one session after the other.
pub(super) async fn keep(hub: Arc<Hub>) {
    loop {
        if let Err(error) = session(&hub).await {
            tracing::debug!(%error, "notify: the realm is not known");
        }
        hub.cell.send_replace(None);
        tokio::time::sleep(AGAIN).await;
    }
}

/// One session with the cell, until it ends.
async fn session(hub: &Arc<Hub>) -> Result<(), Error> {
    let options = SessionOptions { begin_within: BEGIN, ..SessionOptions::default() };
    let cell = Link::new(hub.way.clone())?.session(options).await?;
    let file = open(hub, &cell).await?;
    let mut watch = file.watch();
    hub.cell.send_replace(Some(cell.clone()));
    loop {
        let read = file.contents_and_stat().await?;
        if !hub.follow_cell(&read).await? {
            tokio::time::sleep(AGAIN).await;
            continue;
        }
        hub.enter(&read).await?;
        hub.follow_store().await;
        hub.follow_loss().await;
        hub.follow_keys().await;
        hub.leave_groups().await;
        tokio::select! {
            event = watch.next() => if event.is_none() {
                return Ok(());
            },
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}

/// Opens the file; it is made by whoever comes first.
async fn open(hub: &Arc<Hub>, cell: &Cell) -> Result<Handle, Error> {
    let open = || cell.open(PATH).read().events(Events::CONTENTS);
    match open().await {
        Err(error) if error.code == "cell.no_node" => {
            let (store, now) = (hub.store_incarnation().await?, hub.clock.now().wall);
            // A cell that was restored to a time before Notify was used knows nothing of what is stored.
            let incarnation = match hub.kept() {
                Ok(kept) => above(kept.incarnation, now),
                Err(_) if hub.has_rows().await => above(store, now),
                Err(_) => store.max(1),
            };
            let kept = Kept::new(incarnation, store, now)?;
            let created = cell.open(PATH).write().create_file(kept.bytes()).await?;
            drop(created);
            open().await
        }
        opened => opened,
    }
}

impl Hub {
    /// The realm as it is known; who asks before there is one should ask again.
    pub(super) fn kept(&self) -> Result<Arc<Kept>, Error> {
        self.kept.borrow().clone().ok_or_else(|| {
            Error::new(NOT_READY, Class::Unreachable, "this node does not know Notify's realm yet")
                .hint("It is known as soon as the cell has a master; try again in a moment.")
        })
    }

    /// F3: the realm as it is now, for whoever publishes. It is read after the call and from the cell's cache: nobody who was
    /// told to fetch by a later one has begun to before the call.
    pub(super) async fn present_realm(&self) -> Result<Realm, Error> {
        self.kept()?;
        let file = tokio::time::timeout(BEGIN, self.read_realm()).await.map_err(|_| no_session())?;
        Ok(Kept::of(&file)?.realm())
    }

    /// Reads the realm as it is now, and enters it; if the store is another one than it is for, it is raised first. Waits
    /// for as long as there is no cell, or no store.
    pub(super) async fn refresh_realm(&self) {
        loop {
            let file = self.read_realm().await;
            if self.enter(&file).await.is_ok() && self.follow_store().await {
                return;
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// The file as it is now, as soon as there is a cell.
    async fn read_realm(&self) -> File {
        let mut cells = self.cell.subscribe();
        loop {
            let cell = cells.wait_for(Option::is_some).await.map(|cell| cell.clone());
            // Notify is stopping, and with it whoever waits.
            let Ok(cell) = cell else { return std::future::pending().await };
            if let Some(cell) = cell
                && let Ok(Some(file)) = cell.read(PATH).await
                && !Kept::of(&file).is_ok_and(|kept| !kept.is_of(&file))
            {
                return file;
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Tells everybody of the realm, if it is another one than before.
    async fn enter(&self, file: &File) -> Result<(), Error> {
        let mut entered = self.entered.lock().await;
        let generation = (file.stat().instance, file.stat().content_generation);
        if generation < entered.generation {
            return Ok(());
        }
        let kept = Kept::of(file)?;
        let signer = kept.signer(self.clock.now().wall);
        if generation > entered.generation || signer != entered.signer {
            self.registrar(registrar::Input::Keys(kept.keys(signer))).await;
            entered.signer = signer;
        }
        if generation == entered.generation {
            return Ok(());
        }
        let before = self.kept.borrow().clone();
        let realm = kept.realm();
        self.registrar(registrar::Input::Realm(realm.clone())).await;
        self.matcher(matcher::Input::Realm(realm.clone())).await;
        self.bridge(bridge::Input::Realm(realm)).await;
        entered.generation = generation;
        if let Some(before) = before {
            self.dismiss(&before, &kept);
        }
        self.kept.send_replace(Some(Arc::new(kept)));
        Ok(())
    }

    /// Nothing that is stored says any more who is there: clients come back, spread over a while.
    fn dismiss(&self, before: &Kept, now: &Kept) {
        let numbers: Vec<u64> = match before.incarnation == now.incarnation {
            false => self.channels.of(None),
            true => {
                let changed = now.generations.iter().filter(|(app, now)| before.generations.get(*app) != Some(now));
                changed.flat_map(|(app, _)| self.channels.of(Some(app))).collect()
            }
        };
        for (at, number) in numbers.into_iter().enumerate() {
            self.channels.close_after(number, MOMENT * (at / AT_ONCE) as u32);
        }
    }

    /// F3: a store that was lost and restored has another incarnation; so has Notify from then on. Whether the realm, as it is
    /// known here, is for the store as it is.
    async fn follow_store(&self) -> bool {
        // In this order: a store that has less than the realm was made for has gone back.
        let Ok(kept) = self.kept() else { return false };
        let Ok(store) = self.store_incarnation().await else { return false };
        if store != kept.store {
            self.note_loss(kept.incarnation, store, "the store was restored").await;
        }
        store == kept.store
    }

    /// F3: a cell that was restored has the realm as it was then, while what is stored may be of later ones: it is raised above
    /// all of them before anybody uses it. Whether a file is the cell's own.
    async fn follow_cell(&self, file: &File) -> Result<bool, Error> {
        let found = Kept::of(file)?;
        if found.instance == file.stat().instance {
            return Ok(true);
        }
        let (now, known) = (self.clock.now().wall, self.kept().map_or(0, |kept| kept.incarnation));
        let noted = self.change_file(|kept, instance| {
            if kept.instance != 0 && kept.instance != instance {
                kept.raise_incarnation(known, now);
            }
            kept.instance = instance;
        });
        let kept = noted.await?;
        if !found.is_of(file) {
            tracing::warn!(incarnation = kept.incarnation, "notify: the cell was restored: everything becomes unknown");
        }
        Ok(found.is_of(file))
    }

    /// F3: the feed has lost entries; noticed under this incarnation. Whether that is noted; otherwise it is tried again.
    pub(super) async fn feed_lost(&self, noticed: u64) -> bool {
        *self.lost.lock() = Some(noticed);
        self.follow_loss().await
    }

    /// Notes that the feed has lost entries, if that is not noted yet.
    async fn follow_loss(&self) -> bool {
        let Some(noticed) = *self.lost.lock() else { return true };
        let Ok(store) = self.store_incarnation().await else { return false };
        let noted = self.note_loss(noticed, store, "the feed has lost entries").await;
        let mut lost = self.lost.lock();
        if noted && *lost == Some(noticed) {
            *lost = None;
        }
        noted
    }

    /// Something that was stored under this incarnation is gone: whoever notices first raises it. Whether it is raised.
    async fn note_loss(&self, noticed: u64, store: u64, what: &'static str) -> bool {
        match self.kept() {
            Ok(kept) if kept.incarnation == noticed => {}
            Ok(_) => return true,
            Err(_) => return false,
        }
        let now = self.clock.now().wall;
        let raised = self.change_realm(|kept| {
            if kept.incarnation == noticed {
                kept.store = store;
                kept.raise_incarnation(noticed, now);
            }
        });
        let raised = raised.await;
        match &raised {
            Ok(kept) => tracing::warn!(what, incarnation = kept.incarnation, "notify: everything becomes unknown"),
            Err(error) => tracing::warn!(what, %error, "notify: the incarnation is not raised yet"),
        }
        raised.is_ok()
    }

    /// F8: makes a new key when the newest has served its time. All nodes try; the first one does it.
    async fn follow_keys(&self) {
        let (every, now) = (self.told.config.rotate_keys_every.into(), self.clock.now().wall);
        if !self.kept().is_ok_and(|kept| kept.is_stale(every, now)) {
            return;
        }
        if let Err(error) = self.add_key(|kept| kept.is_stale(every, now)).await {
            tracing::warn!(%error, "notify: no new key for tokens yet");
        }
    }

    /// F8: makes a new key for tokens; clients whose tokens a retired key made start anew.
    pub(super) async fn rotate_keys(&self) -> Result<v1::KeysRotated, Error> {
        let kept = self.add_key(|_| true).await?;
        let accepted: Vec<u32> = kept.keys.iter().map(|key| key.id).collect();
        Ok(v1::KeysRotated { key: accepted.last().copied().unwrap_or(0), accepted })
    }

    async fn add_key(&self, wanted: impl Fn(&Kept) -> bool) -> Result<Kept, Error> {
        let (secret, now) = (secret()?, self.clock.now().wall);
        let changed = self.change_realm(|kept| {
            if wanted(kept) {
                kept.rotate(&secret, now);
            }
        });
        let kept = changed.await?;
        tracing::info!(key = kept.keys.last().map(|key| key.id), "notify: there is a new key for tokens");
        Ok(kept)
    }

    /// Lets the feed forget consumer groups of earlier incarnations, where its leader is, once nobody consumes for them any
    /// more.
    async fn leave_groups(&self) {
        let (Ok(kept), Ok(stored)) = (self.kept(), self.stored()) else { return };
        // As long as no group is known, a feed keeps only so much.
        let unused = kept.incarnation.saturating_add(UNUSED.as_millis() as u64) <= self.clock.now().wall.millis();
        if !unused || !self.taken.has_joined(kept.incarnation) {
            return;
        }
        for past in &kept.past {
            if stored.leave(feeding::TOPIC, feeding::group(*past).as_bytes()).await.is_err() {
                return;
            }
            if let Err(error) = self.change_realm(|kept| kept.past.retain(|other| other != past)).await {
                return tracing::debug!(%error, "notify: a group that was left is not noted");
            }
        }
    }

    async fn store_incarnation(&self) -> Result<u64, Error> {
        match self.stored()?.ask(StoreMessage::Status(v1::StoreStatus {})).await? {
            StoreMessage::StatusReply(status) => Ok(status.incarnation),
            _ => Err(Error::new("store.malformed", Class::Failed, "the store's answer is no status")),
        }
    }

    /// Changes the realm, as soon as it is known.
    pub(super) async fn change_realm(&self, change: impl Fn(&mut Kept)) -> Result<Kept, Error> {
        self.kept()?;
        self.change_file(|kept, _| change(kept)).await
    }

    /// Changes the file, of which this is the instance, against others who do so at the same time.
    async fn change_file(&self, change: impl Fn(&mut Kept, u64)) -> Result<Kept, Error> {
        let cell = self.cell.borrow().clone();
        let cell = cell.ok_or_else(no_session)?;
        for _ in 0..ATTEMPTS {
            let Some(file) = cell.read(PATH).await? else { break };
            let before = Kept::of(&file)?;
            let mut kept = before.clone();
            change(&mut kept, file.stat().instance);
            if kept == before {
                return Ok(kept);
            }
            match cell.write_if(PATH, kept.bytes(), file.stat().content_generation).await {
                Ok(_) => return Ok(kept),
                Err(error) if error.class == Class::Refused => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::new("notify.busy", Class::Unreachable, "others change Notify's realm at the same time")
            .hint("Try again."))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_notify::rows;

    #[test]
    fn the_newest_keys_are_kept_and_a_new_one_is_used_when_all_know_it() {
        let at = |ms: u64| Wall(ms * 1_000);
        let spreads = SPREADS.as_millis() as u64;
        let mut kept = Kept::new(1, 1, at(1_000)).unwrap();
        assert_eq!(kept.signer(at(1_000)), 1, "there is no other");
        kept.rotate("two", at(50_000));
        assert_eq!((kept.signer(at(50_000)), kept.signer(at(50_000 + spreads))), (1, 2));
        assert!(
            !kept.is_stale(Duration::from_secs(10), at(59_999)) && kept.is_stale(Duration::from_secs(10), at(60_000))
        );
        kept.rotate("three", at(60_000));
        kept.rotate("four", at(60_001));
        assert_eq!(kept.keys.iter().map(|key| key.id).collect::<Vec<_>>(), [2, 3, 4]);
        assert_eq!(kept.signer(at(60_001)), 2);
    }

    /// Waits until this is so.
    async fn until(what: &str, is_so: impl Fn() -> bool) {
        let waiting = async {
            while !is_so() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), waiting).await.expect(what);
    }

    /// F3: nothing is acknowledged while those who missed something might never hear of it, and nobody gives up saying so.
    #[tokio::test(flavor = "multi_thread")]
    async fn f3_a_loss_of_the_feed_that_cannot_be_noted_is_noted_later() {
        let dir = tempfile::tempdir().unwrap();
        let (services, _data) = crate::services::testing::embedded(dir.path()).await;
        let hub = services.notify_here().unwrap().hub.clone();
        let incarnation = || hub.kept().map_or(0, |kept| kept.incarnation);
        until("a realm", || incarnation() > 0 && hub.taken.has_joined(incarnation())).await;
        let before = incarnation();
        let append = || hub.append(vec![bytes::Bytes::from_static(b"entry")]).unwrap();
        append().await.unwrap();
        // The feed has had entries that it does not have any more, and there is no session with the cell.
        hub.taken.rise(before, 1_000_000);
        let cell = hub.cell.send_replace(None);
        assert_eq!(append().await.unwrap_err().code, NOT_READY);
        assert_eq!((incarnation(), *hub.lost.lock()), (before, Some(before)));
        // It comes back, and nobody publishes.
        hub.cell.send_replace(cell);
        until("the incarnation is raised", || incarnation() > before).await;
        until("the loss is noted", || hub.lost.lock().is_none()).await;
        append().await.unwrap();
        drop(hub);
        crate::gate::Services::stop(&services).await;
    }

    /// F3: a cell that was restored to a time before Notify was used has no file, and what is stored is of some incarnation.
    #[tokio::test(flavor = "multi_thread")]
    async fn f3_a_realm_that_is_made_where_rows_are_stored_is_above_theirs() {
        let dir = tempfile::tempdir().unwrap();
        let (services, _data) = crate::services::testing::embedded(dir.path()).await;
        let hub = services.notify_here().unwrap().hub.clone();
        until("a realm", || hub.kept().is_ok()).await;
        let (first, now) = (hub.kept().unwrap().incarnation, hub.clock.now().wall.millis());
        assert!(first < now, "nothing was stored yet");
        let cell = v1::Cell { column: b"c".to_vec().into(), timestamp: 1, value: Some(b"v".to_vec().into()) };
        let row = v1::RowWrite { row: b"row".to_vec().into(), cells: vec![cell] };
        let group = v1::GroupWrite { group: rows::REGISTRAR.into(), rows: vec![row], fence: None };
        hub.ask_store(rows::StoreRequest::Write(v1::Apply { groups: vec![group] })).await.unwrap();
        // As a process that has just begun.
        hub.kept.send_replace(None);
        let cell = hub.cell.borrow().clone().unwrap();
        cell.delete(PATH).await.unwrap();
        until("another realm", || hub.kept().is_ok()).await;
        assert!(hub.kept().unwrap().incarnation >= now);
        drop((cell, hub));
        crate::gate::Services::stop(&services).await;
    }

    #[test]
    fn what_is_raised_is_above_all_that_was_used() {
        let mut kept = Kept::new(1, 1, Wall(1_000_000)).unwrap();
        kept.raise_incarnation(9_000, Wall(5_000_000));
        assert_eq!((kept.incarnation, &kept.past[..]), (9_001, &[1, 9_000][..]), "whatever the clock says");
        kept.raise_incarnation(1, Wall(10_000_000));
        assert_eq!((kept.incarnation, &kept.past[..]), (10_000, &[1, 9_000, 9_001][..]));
    }
}
