//! F8: handshakes. A token is granted for an id; a later handshake supersedes the session; a repeat gets the same grant.

use super::state::{After, Client, State, Work};
use super::{Output, Registrar, Step};
use crate::mutant::Mutant;
use crate::names::{Caller, Channel, ClientKey, MAX_SOURCE};
use crate::rows::{self, AFTER_LOSS, CREATED, PRESENCE, REGISTRAR, SESSION, Span, StoreReply, StoreResult};
use bytes::Bytes;
use std::time::Duration;
use tidings_base::{KeyHash, Now, Outbox};
use tidings_wire::v1;

/// For so long handshakes are repeated that another owner has answered, and its answer was lost: a client comes back within
/// five minutes.
const REPEATS: Duration = Duration::from_secs(6 * 60);

/// Somebody who will get a new id.
#[derive(Clone, Debug)]
pub(super) struct Newcomer {
    pub key: ClientKey,
    channel: Channel,
    contact: u64,
    hello: v1::NotifyHello,
    /// F3: it was known before something was lost.
    after_loss: bool,
    /// The worn id in whose place the new one comes, and its session.
    replaces: Option<(ClientKey, u64)>,
    /// Ids of the principal that were found so far.
    found: u32,
}

impl Newcomer {
    /// How many ids its principal may have before it: the one that it replaces does not count.
    fn most(&self, max_ids: u32) -> u32 {
        max_ids.saturating_add(u32::from(self.replaces.is_some()))
    }
}

impl Registrar {
    pub(super) fn hello(
        &mut self,
        now: Now,
        caller: &Caller,
        (channel, contact): (Channel, u64),
        hello: v1::NotifyHello,
        out: &mut Outbox<Output>,
    ) {
        let place = crate::names::client_hash(&caller.app, &caller.principal);
        if hello.source.len() > MAX_SOURCE {
            return self.refuse((place, channel), 0, v1::NotifyRefused::Invalid, hello.nonce, out);
        }
        if let Some(key) = self.nonces.get(&(place, hello.nonce)).cloned() {
            return self.give(now, &key, Work::Hello { channel, contact, session: 0, hello }, out);
        }
        let previous = match hello.previous.is_empty() {
            true => None,
            false => self.keys.open(&hello.previous, self.options.mutant),
        };
        // A token that is not theirs, or from before a loss, buys nothing: they start as new.
        let known = previous.and_then(|token| Some((self.owner_of(caller, &token).ok()?, token.session)));
        match known {
            Some((key, session)) => self.give(now, &key, Work::Hello { channel, contact, session, hello }, out),
            None => {
                let after_loss = !hello.previous.is_empty() && !self.is(Mutant::LossUntold);
                self.newcomer(now, caller, (channel, contact), (hello, after_loss, None), out);
            }
        }
    }

    /// Gives a new id, unless the principal has too many.
    fn newcomer(
        &mut self,
        now: Now,
        caller: &Caller,
        (channel, contact): (Channel, u64),
        (hello, after_loss, replaces): (v1::NotifyHello, bool, Option<(ClientKey, u64)>),
        out: &mut Outbox<Output>,
    ) {
        let Some(realm) = &self.realm else { return };
        let generation = realm.generation(&caller.app);
        let uuid = (u128::from(self.rng.next_u64()) << 64) | u128::from(self.rng.next_u64());
        let key = ClientKey::new(&caller.app, generation, &caller.principal, uuid.to_be_bytes());
        let (place, nonce) = (key.hash(), hello.nonce);
        let newcomer = Newcomer { key, channel, contact, hello, after_loss, replaces, found: 0 };
        match self.ids.get(&place).copied() {
            // Soon after a range was gained it may be a repeat of what another owner has granted: then the rows are read.
            Some(ids) if ids < newcomer.most(self.options.max_ids) && self.gained + REPEATS <= now.mono => {
                return self.welcome(now, newcomer, out);
            }
            // Some of them may have been collected.
            Some(_) => drop(self.ids.remove(&place)),
            None => {}
        }
        if self.counting.insert((place, nonce)) {
            self.count(newcomer, None, out);
        }
    }

    /// Reads a page of the principal's ids.
    fn count(&mut self, newcomer: Newcomer, from: Option<Bytes>, out: &mut Outbox<Output>) {
        let user = newcomer.key.to_message();
        let prefix = ClientKey::prefix(&user.app, newcomer.key.generation(), &user.user);
        let mut span = Span::of_prefix(self.incarnation(), &prefix);
        if let Some(from) = from {
            span.start = from;
        }
        let limit = newcomer.most(self.options.max_ids) - newcomer.found;
        let request = rows::scan(REGISTRAR, span, limit, &[CREATED, SESSION]);
        self.store(Step::Counting(newcomer), request, out);
    }

    pub(super) fn counted(&mut self, now: Now, mut newcomer: Newcomer, result: StoreResult, out: &mut Outbox<Output>) {
        let (place, nonce) = (newcomer.key.hash(), newcomer.hello.nonce);
        let Ok(StoreReply::Rows(rows)) = result else {
            self.counting.remove(&(place, nonce));
            return;
        };
        let created = rows.rows.iter().filter(|row| rows::find(row, CREATED).is_some());
        newcomer.found = newcomer.found.saturating_add(created.clone().count() as u32);
        // A repeat of a handshake that another owner has granted.
        let granted = |row: &&v1::Row| rows::find(row, SESSION).is_some_and(|(_, of)| **of == nonce.to_be_bytes());
        if let Some(key) = created.clone().find(granted).and_then(|row| ClientKey::parse(rows::key_of_row(&row.row))) {
            self.counting.remove(&(place, nonce));
            self.nonces.insert((place, nonce), key.clone());
            let Newcomer { channel, contact, hello, .. } = newcomer;
            return self.give(now, &key, Work::Hello { channel, contact, session: 0, hello }, out);
        }
        let most = newcomer.most(self.options.max_ids);
        let full = newcomer.found >= most;
        if let (false, Some(next)) = (full, rows.next) {
            return self.count(newcomer, Some(next), out);
        }
        self.counting.remove(&(place, nonce));
        // Those who came meanwhile are in the count already, or in what was found, or in both.
        let known = self.ids.get(&place).copied().unwrap_or(0).max(newcomer.found);
        if full || known >= most {
            return self.refuse((place, newcomer.channel), 0, v1::NotifyRefused::TooManyIds, nonce, out);
        }
        self.ids.insert(place, known);
        self.welcome(now, newcomer, out);
    }

    fn welcome(&mut self, now: Now, newcomer: Newcomer, out: &mut Outbox<Output>) {
        let Newcomer { key, channel, contact, hello, after_loss, replaces, .. } = newcomer;
        if let Some(ids) = self.ids.get(&key.hash()) {
            *ids += 1;
        }
        let mut client = Box::new(Client::new(now.mono));
        (client.state, client.created, client.replaces) = (State::Ready, true, replaces.map(Box::new));
        (client.source, client.persistent, client.after_loss) = (hello.source.clone(), hello.persistent, after_loss);
        let value = [&[u8::from(hello.persistent)], hello.source.as_ref()].concat();
        let seqno = self.begin_session(now, &key, &mut client, (channel, contact), hello.nonce);
        client.put(rows::cell(CREATED, seqno, value));
        if after_loss {
            client.put(rows::cell(AFTER_LOSS, seqno, Bytes::new()));
        }
        self.nonces.insert((key.hash(), hello.nonce), key.clone());
        self.clients.insert(key.clone(), client);
        self.run(now, &key, out);
    }

    fn begin_session(
        &mut self,
        now: Now,
        key: &ClientKey,
        client: &mut Client,
        (channel, contact): (Channel, u64),
        nonce: u64,
    ) -> u64 {
        let seqno = self.seqno(key);
        (client.session, client.nonce, client.op) = (seqno, nonce, Some(0));
        // Should the write fail, the row is read again: nothing of this session is stable yet.
        client.durable.0 = 0;
        // Nor is it with what is being written, whose changes are the earlier session's.
        if let Some(writing) = &mut client.writing {
            writing.op = 0;
        }
        client.put(rows::cell(SESSION, seqno, nonce.to_be_bytes().to_vec()));
        self.connect(now, key, client, (channel, contact), seqno);
        client.dirty.after.push(After::Grant { channel, nonce });
        seqno
    }

    /// Something came by a connection; whether that is where the client can be reached from now on.
    pub(super) fn meet(
        &mut self,
        now: Now,
        key: &ClientKey,
        client: &mut Client,
        (channel, contact): (Channel, u64),
    ) -> bool {
        // What an earlier connection still had on its way does not take the client back there.
        let newer = client.channel.is_none() || contact > client.contact;
        if client.channel == Some(channel) || !newer {
            return false;
        }
        let seqno = self.seqno(key);
        self.connect(now, key, client, (channel, contact), seqno);
        true
    }

    /// The client is reachable by this connection from now on.
    pub(super) fn connect(
        &mut self,
        now: Now,
        key: &ClientKey,
        client: &mut Client,
        (channel, contact): (Channel, u64),
        seqno: u64,
    ) {
        if let Some(old) = client.channel.replace(channel) {
            self.unseat(key, old);
        }
        (client.heard, client.present, client.contact, client.seated) = (now.mono, false, contact, seqno);
        self.seat(key, channel, seqno);
        let value = [&channel.to_bytes()[..], &contact.to_be_bytes()].concat();
        client.put(rows::cell(PRESENCE, seqno, value));
        client.used(seqno, now.wall.millis());
    }

    /// One client a channel: whoever came by it last. An id that its token did not bring back is nobody's behind it any more.
    pub(super) fn seat(&mut self, key: &ClientKey, channel: Channel, seqno: u64) {
        let before = self.channels.insert(channel, key.clone()).filter(|before| before != key);
        let Some(before) = before else { return };
        let later = self.clients.get(&before).is_some_and(|other| other.seated > seqno);
        if later {
            self.channels.insert(channel, before);
            self.displaced.push((key.clone(), channel));
        } else {
            self.displaced.push((before, channel));
        }
    }

    /// A handshake that names an id which is, or was, there.
    pub(super) fn resume(
        &mut self,
        now: Now,
        key: &ClientKey,
        client: &mut Client,
        (channel, contact, session): (Channel, u64, u64),
        hello: v1::NotifyHello,
        out: &mut Outbox<Output>,
    ) {
        let nonce = hello.nonce;
        if client.created && nonce == client.nonce {
            // A repeat: the same grant.
            self.meet(now, key, client, (channel, contact));
            client.dirty.after.push(After::Grant { channel, nonce });
        } else if client.created && session == client.session && hello.source == client.source && !self.is_worn(client)
        {
            // Whoever had the session hears of it now if it can, and with its next message at the latest.
            if let Some(old) = client.channel.filter(|old| *old != channel) {
                self.refuse((key.hash(), old), client.session, v1::NotifyRefused::Superseded, 0, out);
            }
            self.begin_session(now, key, client, (channel, contact), nonce);
        } else {
            // F10: collected; F8: a second tab or cloned storage, superseded meanwhile; F12: another installation; an id that
            // is worn. Each gets a new id.
            let answered = self.nonces.remove(&(key.hash(), nonce));
            if let Some(other) = answered.filter(|other| other != key) {
                // The same handshake came before, and has another id by now.
                self.nonces.insert((key.hash(), nonce), other.clone());
                return self.give(now, &other, Work::Hello { channel, contact, session: 0, hello }, out);
            }
            let user = key.to_message();
            let caller = Caller { app: user.app, principal: user.user };
            // F3: the new id has to hear of a loss as the old one had; of an id that is not there nobody knows whether it had.
            let after_loss = client.after_loss || (!client.created && !hello.previous.is_empty());
            let after_loss = after_loss && !self.is(Mutant::LossUntold);
            let same = client.created && session == client.session && hello.source == client.source;
            let replaces = same.then(|| (key.clone(), session));
            self.newcomer(now, &caller, (channel, contact), (hello, after_loss, replaces), out);
        }
    }

    /// Another id has come in the place of a worn one, and is stable. Whoever else uses this one hears so.
    pub(super) fn replaced(
        &mut self,
        now: Now,
        key: &ClientKey,
        client: &mut Client,
        (channel, session): (Channel, u64),
        out: &mut Outbox<Output>,
    ) {
        if !client.created || client.session != session || !self.is_worn(client) {
            return;
        }
        if let Some(old) = client.channel.filter(|old| *old != channel) {
            self.refuse((key.hash(), old), session, v1::NotifyRefused::InvalidId, 0, out);
        }
        self.goodbye(now, key, client, channel, true);
    }

    /// Whether so many registrations were ended under this id that its client goes on under another: what is left of them is
    /// in its row for days.
    pub(super) fn is_worn(&self, client: &Client) -> bool {
        client.ended >= self.options.max_ended
    }

    pub(super) fn grant(
        &self,
        key: &ClientKey,
        client: &Client,
        channel: Channel,
        nonce: u64,
        out: &mut Outbox<Output>,
    ) {
        // A grant that a later handshake has overtaken would name a session that is not its nonce's.
        let Some(token) = self.token(key, client).filter(|_| client.nonce == nonce) else { return };
        let grant = v1::NotifyGrant {
            nonce,
            token,
            session: client.session,
            salt: key.uuid().to_vec().into(),
            generation: key.generation(),
        };
        let down = v1::NotifyDown { grant: Some(grant), ..self.down(client) };
        self.send(key.hash(), channel, down, out);
    }

    /// A token of a client's session, as long as there is a key.
    pub(super) fn token(&self, key: &ClientKey, client: &Client) -> Option<Bytes> {
        self.keys.seal(&v1::NotifyTokenBody {
            client: Some(key.to_message()),
            session: client.session,
            data_centre: self.options.data_centre.clone(),
            realm: self.realm.as_ref().map(|realm| realm.message(key.app())),
        })
    }

    /// A connection closed: it matters only if presence still names it.
    pub(super) fn went(&mut self, now: Now, key: &ClientKey, client: &mut Client, channel: Channel) {
        if client.channel != Some(channel) {
            return;
        }
        client.channel = None;
        self.unseat(key, channel);
        let seqno = self.seqno(key);
        client.put(rows::gone(PRESENCE, seqno));
        client.used(seqno, now.wall.millis());
    }

    /// F10: it goes. An id that is not used again is collected at once; its client hears so when that is certain.
    pub(super) fn goodbye(&mut self, now: Now, key: &ClientKey, client: &mut Client, channel: Channel, for_good: bool) {
        if for_good {
            client.leaving = Some(channel);
        }
        if let Some(present) = client.channel {
            self.went(now, key, client, present);
        }
    }

    /// Where a caller's clients stand.
    pub fn place_of(caller: &Caller) -> KeyHash {
        crate::names::client_hash(&caller.app, &caller.principal)
    }
}
