//! What operators ask: namespaces, tables, owners, drains, rebalancing.

use super::claims::{MAX_VIRTUAL_NODES, owners_file};
use super::file::Kind;
use super::lookups::{FIELD, PART, Part, shown, table_range};
use super::pool::{Member, Pool, first_lease};
use super::table::{Holder, arc};
use super::{
    MAX_NAMESPACES, Manager, Output, WITNESS, check_times, era, fail, no_namespace, not_leader, resting, serving,
};
use crate::config::Times;
use crate::policy;
use std::time::Duration;
use tidings_base::{Class, Error, KeyHash, KeyRange, Mono, Now, OpId, Outbox};
use tidings_wire::v1;
use tidings_wire::v1::placement_message::Message;

/// The shortest pause between two rounds of a policy, and the shortest drain: less is all work and no use. The longest: who
/// wants none of it has the policy `none`, and nobody waits for a drain for longer.
const LEAST_PAUSE_MS: u32 = 1_000;
const LONGEST_PAUSE_MS: u32 = 24 * 3_600_000;

/// The longest lease: for so long nobody has what a dead owner held, nor anything after a restore of the cell.
const LONGEST_LEASE: Duration = Duration::from_secs(3_600);

/// The shortest renewal interval: every owner asks twice as often.
const LEAST_RENEWAL: Duration = Duration::from_millis(100);

/// The longest name of a namespace.
const MAX_NAME: usize = 200;

impl Manager {
    pub(super) fn operate(&mut self, now: Now, op: OpId, request: Message, out: &mut Outbox<Output>) {
        let Some(epoch) = self.answers(now) else { return fail(out, op, not_leader()) };
        let answer = match request {
            Message::NamespaceCreate(create) => return self.create(now, op, epoch, create, out),
            Message::NamespaceDelete(delete) => return self.delete(now, op, &delete.namespace, out),
            Message::NamespaceList(_) => {
                let live = self.pools.values().filter(|pool| pool.exists() == Ok(true) || pool.is_damaged());
                let namespaces = live.map(|pool| pool.info(epoch)).collect();
                Ok(Message::NamespaceListReply(v1::NamespaceListReply { namespaces }))
            }
            Message::TableGet(get) => {
                self.pool(&get.namespace).map(|pool| Message::TableReply(pool.picture(epoch, KeyHash(get.from))))
            }
            Message::OwnerList(list) => {
                self.pool(&list.namespace).map(|pool| Message::OwnerListReply(pool.owners(now.mono, list.from)))
            }
            Message::OwnerDrain(drain) => match self.drain(now, op, &drain, out) {
                Ok(()) => return,
                Err(error) => Err(error),
            },
            Message::Rebalance(rebalance) => self.rebalance(now, &rebalance, out),
            _ => Err(Error::new("placement.unsupported", Class::Invalid, "this manager does not take this request")),
        };
        match answer {
            Ok(message) => out.put(Output::Answer { op, message }),
            Err(error) => fail(out, op, error),
        }
    }

    fn pool(&self, namespace: &str) -> Result<&Pool, Error> {
        let pool = self.pools.get(namespace).ok_or_else(|| no_namespace(namespace))?;
        pool.exists()?.then_some(pool).ok_or_else(|| no_namespace(namespace))
    }

    fn create(&mut self, now: Now, op: OpId, epoch: u64, create: v1::NamespaceCreate, out: &mut Outbox<Output>) {
        let name = create.namespace;
        let config = create.config.unwrap_or_default();
        let times = Times::new(config.lease_ms, config.renew_ms);
        let checked = check_name(&name).and_then(|()| check_times(times, &self.fail_over, self.options.mutant));
        if let Err(error) = checked.and_then(|()| check_config(&config)) {
            return fail(out, op, error);
        }
        let instance = self.rng.next_u64() | 1;
        let full = self.pools.len() >= MAX_NAMESPACES;
        if let Some(Err(error)) = self.pools.get(&name).map(Pool::exists) {
            return fail(out, op, error);
        }
        let rests = match self.pools.get(&name) {
            Some(pool) => pool.rests(now.mono).filter(|_| pool.is_deleted()),
            // There may have been one of that name before a restore, with leases of any common length.
            None => self.lost_until(now, epoch, times),
        };
        if let Some(until) = rests {
            return fail(out, op, resting(now, until));
        }
        match self.pools.get_mut(&name) {
            Some(pool) if !pool.is_deleted() => {
                let there =
                    Error::new("placement.namespace_exists", Class::Refused, format!("`{name}` exists already"));
                return fail(out, op, there.hint("`tidings place namespaces` lists them."));
            }
            // The next leader counts what is recorded by the new times alone, so what was promised by the old ones must
            // not outlast them.
            Some(pool) if times.lease < pool.times.lease && now.mono < pool.last_end() => {
                let what = format!("owners of the earlier `{name}` may hold leases that are longer");
                let wait = pool.last_end().since(now.mono).as_secs() + 1;
                return fail(
                    out,
                    op,
                    Error::new("placement.leases_run", Class::Refused, what)
                        .hint(format!("Create it in {wait} s, or with leases that are not shorter.")),
                );
            }
            // F8: numbers go on where the earlier one of that name left off; what its owners still hold runs out first.
            Some(pool) => {
                let meta = v1::PlacementMeta { instance, config: Some(config), deleted: false, ..pool.meta.clone() };
                pool.set_meta(meta);
                pool.warning = None;
                pool.begin(now.mono);
            }
            None if full => {
                let full = Error::new("placement.too_many_namespaces", Class::Refused, "there is no room for another");
                return fail(out, op, full.hint(
                    "Deleted ones count, for their numbers go on (F8): create one under a name that was used before.",
                ));
            }
            None => {
                let (hash, era) = (KeyHash::FUNCTION.to_owned(), era(epoch));
                let meta = v1::PlacementMeta {
                    instance,
                    hash,
                    config: Some(config),
                    next_lease: first_lease(era),
                    next_lsn: 1,
                    deleted: false,
                    era,
                    first_lease: first_lease(era),
                };
                self.pools.insert(name.clone(), Pool::create(now.mono, name.clone(), meta));
            }
        }
        self.reply_after_meta(now, op, &name, out);
    }

    fn delete(&mut self, now: Now, op: OpId, name: &str, out: &mut Outbox<Output>) {
        match serving(&mut self.pools, now, name) {
            Ok(pool) => pool.meta.deleted = true,
            Err(error) => return fail(out, op, error),
        }
        self.reply_after_meta(now, op, name, out);
    }

    fn reply_after_meta(&mut self, now: Now, op: OpId, name: &str, out: &mut Outbox<Output>) {
        if let Some(pool) = self.pools.get_mut(name) {
            pool.commits.reply_after(Kind::Meta, op, Message::Done(v1::PlacementDone {}));
        }
        self.work(now, name, out);
    }

    /// Like all that is to last, a drain is answered when it is in the cell.
    fn drain(&mut self, now: Now, op: OpId, drain: &v1::OwnerDrain, out: &mut Outbox<Output>) -> Result<(), Error> {
        let pool = serving(&mut self.pools, now, &drain.namespace)?;
        let index = pool.by_id.get(&drain.owner).copied().ok_or_else(|| {
            Error::new("placement.no_owner", Class::NotFound, format!("no owner `{}` is known there", drain.owner))
                .hint("`tidings place owners NAMESPACE` lists them.")
        })?;
        pool.now = now.mono;
        if drain.cancel {
            pool.undrain(index);
        } else {
            pool.drain(index);
        }
        pool.commits.reply_after(owners_file(index), op, Message::Done(v1::PlacementDone {}));
        self.work(now, &drain.namespace, out);
        Ok(())
    }

    fn rebalance(&mut self, now: Now, request: &v1::Rebalance, out: &mut Outbox<Output>) -> Result<Message, Error> {
        let pool = serving(&mut self.pools, now, &request.namespace)?;
        pool.now = now.mono;
        let reply = pool.rebalance(request.dry_run);
        self.work(now, &request.namespace, out);
        Ok(Message::RebalanceReply(reply))
    }
}

impl Pool {
    fn info(&self, epoch: u64) -> v1::NamespaceInfo {
        v1::NamespaceInfo {
            namespace: self.name.clone(),
            instance: self.meta.instance,
            config: self.meta.config.clone(),
            owners: self.members.values().filter(|m| m.told.is_some() && m.live_until > Mono(0)).count() as u32,
            ranges: self.table.len() as u32,
            lsn: self.commits.published(),
            epoch,
            unowned: self.table.count_of(0) as u32,
            moving: self.moves.len() as u32,
            warning: self.warning.clone().or_else(|| self.commits.numbers_warning()).unwrap_or_default(),
        }
    }

    fn picture(&self, epoch: u64, from: KeyHash) -> v1::TableReply {
        let part = self.part(self.table.iter_from(from), |start, range| v1::TableRange {
            rate: self.heat.of(arc(start, range)).0,
            pinned: range.pinned,
            ..table_range(start, range)
        });
        let Part { ranges, mut owners, next } = part;
        if next == 0 {
            let idle = self.members.values().filter(|member| self.table.count_of(member.record.index) == 0);
            owners.extend(fitting(idle.filter_map(shown)).0);
        }
        v1::TableReply { info: Some(self.info(epoch)), ranges, owners, next }
    }

    /// As many owners as one frame holds.
    fn owners(&self, now: Mono, from: u32) -> v1::OwnerListReply {
        let info = |member: &Member| {
            let owner = shown(member)?;
            let index = member.record.index;
            let mine = self.table.of_owner(index).into_iter();
            let mine = mine.filter_map(|start| self.table.get(start).map(|range| (start, range)));
            let mine: Vec<_> = mine.filter(|(_, range)| range.holder != Holder::Nobody).collect();
            let points: u128 = mine.iter().map(|(start, range)| KeyRange::new(*start, range.last).len()).sum();
            let until = mine.iter().map(|(_, range)| range.until).max().unwrap_or_default();
            Some(v1::OwnerInfo {
                owner: Some(owner),
                ranges: mine.len() as u32,
                share_ppm: (points * 1_000_000 / KeyRange::FULL.len()) as u32,
                rate: member.load().map_or(0.0, |load| load.rate),
                remaining_ms: until.since(now).as_millis() as u64,
                live: member.live_until > now,
                heard_ms: member.heard.map(|heard| now.since(heard).as_millis() as u64),
            })
        };
        let (owners, rest) = fitting(self.members.range(from..).filter_map(|(_, member)| info(member)));
        let next = rest.and_then(|info| info.owner).map_or(0, |owner| owner.index);
        v1::OwnerListReply { owners, next }
    }
}

/// As many messages as one frame holds, and the first that it does not.
fn fitting<M: prost::Message>(messages: impl Iterator<Item = M>) -> (Vec<M>, Option<M>) {
    let (mut fit, mut bytes) = (Vec::new(), 0);
    for message in messages {
        bytes += message.encoded_len() + FIELD;
        if bytes > PART {
            return (fit, Some(message));
        }
        fit.push(message);
    }
    (fit, None)
}

fn check_config(config: &v1::NamespaceConfig) -> Result<(), Error> {
    if policy::by_name(&config.policy).is_none() {
        let name: String = config.policy.chars().take(40).collect();
        return Err(Error::new("placement.bad_policy", Class::Invalid, format!("there is no policy `{name}`"))
            .hint("Use `hottest`, `paper` or `none`."));
    }
    if config.virtual_nodes > MAX_VIRTUAL_NODES {
        let what = format!("{} virtual nodes an owner are too many", config.virtual_nodes);
        return Err(Error::new("placement.bad_virtual_nodes", Class::Invalid, what)
            .hint(format!("Use at most {MAX_VIRTUAL_NODES}; 64 are the default.")));
    }
    for (what, ms) in [("rebalance_ms", config.rebalance_ms), ("drain_ms", config.drain_ms)] {
        if ms != 0 && !(LEAST_PAUSE_MS..=LONGEST_PAUSE_MS).contains(&ms) {
            return Err(bad_times(format!("`{what}` cannot be {ms}")).hint(format!(
                "Use a second to a day ({LEAST_PAUSE_MS} to {LONGEST_PAUSE_MS} ms), or leave it out: 60 s are the default."
            )));
        }
    }
    let Times { lease, renew } = Times::new(config.lease_ms, config.renew_ms);
    if lease > LONGEST_LEASE || renew < LEAST_RENEWAL {
        return Err(bad_times(format!("a lease of {lease:?} renewed every {renew:?} is of no use"))
            .hint(format!("Use leases of at most {LONGEST_LEASE:?}, renewed every {LEAST_RENEWAL:?} or less often.")));
    }
    Ok(())
}

fn bad_times(what: String) -> Error {
    Error::new("placement.bad_times", Class::Invalid, what)
}

fn check_name(name: &str) -> Result<(), Error> {
    // They are parts of paths in the cell.
    let taken = ["leader", ".", "..", WITNESS].contains(&name);
    let fits = (1..=MAX_NAME).contains(&name.len()) && !name.contains(char::is_control) && !taken;
    if fits {
        return Ok(());
    }
    Err(Error::new("placement.bad_namespace", Class::Invalid, "this cannot name a namespace")
        .hint(format!("Use 1 to {MAX_NAME} bytes without control characters; not `leader`, `.`, `..` or `.restored`.")))
}
