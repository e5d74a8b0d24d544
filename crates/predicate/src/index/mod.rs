//! The subscription index: an arriving record finds the predicates it satisfies without evaluating all of them.
//!
//! ```text
//!   subscription: template ─▶ alternatives ─▶ scheme and tokens        (access.rs, scheme.rs, postings.rs)
//!   record: columns ─▶ schemes that begin with them ─▶ tokens ─▶ candidates ─▶ both predicates evaluated
//!   writer's predicate, when that leaves many: ─▶ mirror of readers' data ─▶ candidates                 (mirror.rs)
//! ```
//! Candidates may be too many, never too few: every one is evaluated in full, so the index changes no answer. Where a
//! subscription stands follows from its template, its constants and its reader's data, and is computed again to remove it;
//! [`Index::update_data`] moves it without a new subscription.

mod matching;
mod mirror;
mod postings;
mod scheme;
mod token;

use crate::eval::Scope;
use crate::packed::{self, Packed};
use crate::predicate::Predicate;
use crate::refusal::{Refusal, Wrong};
use crate::template::{Path, Template};
use mirror::Mirrors;
use postings::Postings;
use scheme::{Bound, Bounds, Post, Recipe, Scheme, Shape, choose};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What one table's index holds at most; beyond each stands a named refusal.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Subscriptions.
    pub subscriptions: usize,
    /// Subscriptions without an atom that can be looked up: each is evaluated for every record.
    pub scanned: usize,
    /// The steps that all of these may take together for each record: one for an operation, and one for 16 bytes of constants.
    pub scanned_steps: usize,
    /// Different shapes of predicates.
    pub templates: usize,
    /// Different patterns of `matches`, over all shapes: each may take half a megabyte.
    pub patterns: usize,
    /// Different sets of fields that predicates are found by: a record may have to ask for each.
    pub schemes: usize,
    /// Places that all subscriptions together stand at: one for each value of a list, several for a circle.
    pub places: usize,
    /// Bytes of one reader's data and claims together.
    pub reader_data: usize,
    /// Fields of readers that are mirrored.
    pub mirrors: usize,
    /// Candidates of one record from which on the mirror is asked for fewer.
    pub many: usize,
    /// Steps that there always are to evaluate a candidate, taken together.
    pub candidate_steps: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            subscriptions: 4_000_000,
            // 1,000 evaluations take some 200 µs: what a record may cost beside its matches.
            scanned: 1_000,
            // As much as one evaluation may take: a record costs as much again as a read of it. A text of 64 KiB has a third.
            scanned_steps: crate::eval::STEPS as usize,
            templates: 16_384,
            patterns: 1_024,
            schemes: 1_024,
            // Some twenty bytes each.
            places: 40_000_000,
            reader_data: 16 * 1024,
            mirrors: 16,
            many: 1_024,
            // Whoever compares a few columns needs no more; a microsecond or two, beside a tenth of it to find one.
            candidate_steps: 64,
        }
    }
}

/// Names a subscription in its index; never used again after it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubscriptionId {
    slot: u32,
    generation: u32,
}

/// What matching one record took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Subscriptions that were looked at.
    pub candidates: usize,
    /// Predicates that were evaluated, of readers and of the writer.
    pub evaluated: usize,
    /// Whether candidates came from the mirror of readers' data.
    pub mirrored: bool,
}

/// A subscription: 24 bytes, and one piece with its constants, its reader's data and its claims.
#[derive(Debug)]
struct Slot {
    template: u32,
    generation: u32,
    data: Box<[u8]>,
}

const VACANT: u32 = u32::MAX;

/// Constants, reader's data and claims of a subscription, as they lie in its piece.
fn join(constants: &[u8], reader: &[u8], claims: &[u8]) -> Box<[u8]> {
    let mut data = Vec::with_capacity(4 + constants.len() + reader.len() + claims.len());
    for length in [constants.len(), reader.len()] {
        packed::varint(length as u64, &mut data);
    }
    [constants, reader, claims].iter().for_each(|part| data.extend_from_slice(part));
    data.into()
}

fn split(data: &[u8]) -> (&[u8], Scope<'_>) {
    let parts = || {
        let (constants, rest) = packed::read_varint(data)?;
        let (reader, rest) = packed::read_varint(rest)?;
        let (constants, rest) = rest.split_at_checked(constants as usize)?;
        let (reader, claims) = rest.split_at_checked(reader as usize)?;
        Some((constants, Scope { reader: Some(reader), user: Some(claims), ..Scope::default() }))
    };
    parts().unwrap_or_default()
}

/// A template in use.
#[derive(Debug)]
struct Shared {
    template: Arc<Template>,
    users: u32,
    /// Those of them that are kept for somebody who is away.
    kept: u32,
    /// For each alternative of its plan: the scheme, and what to hold its fields against.
    routes: Vec<Option<(u32, Recipe)>>,
}

/// Subscriptions of one table, found by the records that they match.
#[derive(Debug)]
pub struct Index {
    limits: Limits,
    seed: u64,
    slots: Vec<Slot>,
    free: Vec<u32>,
    templates: Vec<Option<Shared>>,
    by_shape: BTreeMap<Box<[u8]>, u32>,
    schemes: Vec<Option<Scheme>>,
    by_fields: BTreeMap<Shape, u32>,
    /// Schemes by the column that a record must have.
    by_column: BTreeMap<Box<[u8]>, Vec<u32>>,
    /// Schemes that begin with the key.
    by_key: Vec<u32>,
    postings: Postings,
    bounds: Bounds,
    always: BTreeSet<u32>,
    scanned: BTreeSet<u32>,
    /// The steps that those may take.
    scanned_steps: usize,
    /// At how many places all subscriptions together stand.
    places: usize,
    mirrors: Mirrors,
    kept: Kept,
}

/// Subscriptions that are kept for somebody who is away, and how many shapes and sets of fields are in use for them.
#[derive(Debug, Default)]
struct Kept {
    slots: BTreeSet<u32>,
    shapes: usize,
    schemes: usize,
}

impl Index {
    /// An empty index. The seed is a secret of the server: with it nobody can choose values that collide.
    pub fn new(limits: Limits, seed: u64) -> Index {
        Index {
            limits,
            seed,
            slots: Vec::new(),
            free: Vec::new(),
            templates: Vec::new(),
            by_shape: BTreeMap::new(),
            schemes: Vec::new(),
            by_fields: BTreeMap::new(),
            by_column: BTreeMap::new(),
            by_key: Vec::new(),
            postings: Postings::default(),
            bounds: Bounds::new(),
            always: BTreeSet::new(),
            scanned: BTreeSet::new(),
            scanned_steps: 0,
            places: 0,
            mirrors: Mirrors::default(),
            kept: Kept::default(),
        }
    }

    /// How many subscriptions there are.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many subscriptions are evaluated for every record, because no atom of theirs can be looked up.
    pub fn scanned(&self) -> usize {
        self.scanned.len()
    }

    /// Keeps a subscription though its reader is away, if it leaves room for those who are there: of evaluations for every record,
    /// patterns, shapes and sets of fields such subscriptions take one part in so many. Whether it is kept.
    pub fn keep(&mut self, id: SubscriptionId, parts: usize) -> bool {
        let Some(template) = self.template_of(id) else { return false };
        if self.kept.slots.contains(&id.slot) {
            return true;
        }
        if self.crowds(id, template, parts) {
            return false;
        }
        self.kept.slots.insert(id.slot);
        self.count_kept(template, true);
        true
    }

    /// Its reader is there again.
    pub fn unkeep(&mut self, id: SubscriptionId) {
        let Some(template) = self.template_of(id) else { return };
        if self.kept.slots.remove(&id.slot) {
            self.count_kept(template, false);
        }
    }

    fn crowds(&self, id: SubscriptionId, template: u32, parts: usize) -> bool {
        let Some(shared) = &self.templates[template as usize] else { return false };
        let limits = &self.limits;
        let many = self.scanned.len() > limits.scanned / parts || self.scanned_steps > limits.scanned_steps / parts;
        let scans = many && self.scanned.contains(&id.slot);
        let patterned = !shared.template.patterns.is_empty() && self.patterns() > limits.patterns / parts;
        let new = |number: &u32| self.schemes[*number as usize].as_ref().is_some_and(|scheme| scheme.kept == 0);
        let schemes: BTreeSet<u32> = shared.routes.iter().flatten().map(|(number, _)| *number).filter(new).collect();
        let shape = shared.kept == 0 && self.kept.shapes >= limits.templates / parts;
        scans || patterned || shape || !schemes.is_empty() && self.kept.schemes + schemes.len() > limits.schemes / parts
    }

    /// A template has one user more or less that is away.
    fn count_kept(&mut self, template: u32, more: bool) {
        let Some(shared) = &mut self.templates[template as usize] else { return };
        shared.kept = if more { shared.kept + 1 } else { shared.kept - 1 };
        if shared.kept != u32::from(more) {
            return;
        }
        count(&mut self.kept.shapes, more);
        for (number, _) in shared.routes.iter().flatten() {
            let Some(scheme) = &mut self.schemes[*number as usize] else { continue };
            scheme.kept = if more { scheme.kept + 1 } else { scheme.kept - 1 };
            if scheme.kept == u32::from(more) {
                count(&mut self.kept.schemes, more);
            }
        }
    }

    /// How many patterns all shapes have.
    fn patterns(&self) -> usize {
        self.templates.iter().flatten().map(|shared| shared.template.patterns.len()).sum()
    }

    /// Adds a subscription of a reader with this data and these verified claims.
    pub fn subscribe(
        &mut self,
        predicate: &Predicate,
        reader: &Packed,
        claims: &Packed,
    ) -> Result<SubscriptionId, Refusal> {
        predicate.check_live()?;
        if self.len() >= self.limits.subscriptions {
            return Err(full("this table has no room for another subscription"));
        }
        self.check_data(reader, claims)?;
        let data = join(&predicate.0.constants, reader.as_bytes(), claims.as_bytes());
        let template = self.share(&predicate.0.template)?;
        let posts = match self.checked_posts(template, &data, false) {
            Ok(posts) => posts,
            Err(refusal) => {
                self.unshare(template);
                return Err(refusal);
            }
        };
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { template: VACANT, generation: 0, data: Box::default() });
            self.slots.len() as u32 - 1
        });
        let Slot { generation, .. } = self.slots[slot as usize];
        self.mirrors.add(slot, &split(&data).1, self.seed);
        self.slots[slot as usize] = Slot { template, generation, data };
        self.stand(slot, &posts);
        Ok(SubscriptionId { slot, generation })
    }

    /// Lets a predicate that was subscribed have in common with all others of its shape what they have in common: compiled alone it
    /// holds a kilobyte or two of its own.
    pub fn intern(&self, id: SubscriptionId, predicate: &mut Predicate) {
        let shared = self.template_of(id).and_then(|template| self.templates.get(template as usize)?.as_ref());
        if let Some(shared) = shared.filter(|shared| shared.template.shape == predicate.0.template.shape) {
            predicate.0.template = Arc::clone(&shared.template);
        }
    }

    /// Ends a subscription; whether there was one.
    pub fn unsubscribe(&mut self, id: SubscriptionId) -> bool {
        let Some(template) = self.template_of(id) else { return false };
        self.unkeep(id);
        self.leave(id.slot);
        let slot = &mut self.slots[id.slot as usize];
        self.mirrors.remove(id.slot, &split(&slot.data).1, self.seed);
        slot.template = VACANT;
        slot.data = Box::default();
        // A slot whose generations are used up is never used again.
        if let Some(next) = slot.generation.checked_add(1) {
            slot.generation = next;
            self.free.push(id.slot);
        }
        self.unshare(template);
        true
    }

    /// Changes the reader's data and claims of a subscription, which stays what it is; whether there is one.
    pub fn update_data(&mut self, id: SubscriptionId, reader: &Packed, claims: &Packed) -> Result<bool, Refusal> {
        let Some(template) = self.template_of(id) else { return Ok(false) };
        self.check_data(reader, claims)?;
        let (constants, _) = split(&self.slots[id.slot as usize].data);
        let data = join(constants, reader.as_bytes(), claims.as_bytes());
        let moves = self.templates[template as usize].as_ref().is_some_and(|shared| shared.template.asks_reader);
        let posts =
            if moves { Some(self.checked_posts(template, &data, self.scanned.contains(&id.slot))?) } else { None };
        if posts.is_some() {
            self.leave(id.slot);
        }
        let slot = &mut self.slots[id.slot as usize];
        self.mirrors.remove(id.slot, &split(&slot.data).1, self.seed);
        self.mirrors.add(id.slot, &split(&data).1, self.seed);
        slot.data = data;
        if let Some(posts) = posts {
            self.stand(id.slot, &posts);
        }
        Ok(true)
    }

    fn template_of(&self, id: SubscriptionId) -> Option<u32> {
        let slot = self.slots.get(id.slot as usize)?;
        (slot.generation == id.generation && slot.template != VACANT).then_some(slot.template)
    }

    fn check_data(&self, reader: &Packed, claims: &Packed) -> Result<(), Refusal> {
        let most = self.limits.reader_data;
        if reader.as_bytes().len() + claims.as_bytes().len() > most {
            return Err(Refusal::new(Wrong::TooLarge, format!("reader data and claims take more than {most} bytes")));
        }
        Ok(())
    }

    /// The number of a template of this shape, with one more user.
    fn share(&mut self, template: &Arc<Template>) -> Result<u32, Refusal> {
        if let Some(number) = self.by_shape.get(&template.shape) {
            if let Some(shared) = &mut self.templates[*number as usize] {
                shared.users += 1;
            }
            return Ok(*number);
        }
        if self.by_shape.len() >= self.limits.templates {
            return Err(full("this table is watched by too many predicates of different shapes"));
        }
        if !template.patterns.is_empty() && self.patterns() + template.patterns.len() > self.limits.patterns {
            return Err(full("this table is watched by too many different patterns"));
        }
        let routes: Vec<Option<(u32, Recipe)>> = template
            .by_record
            .alternatives
            .iter()
            .map(|alternative| {
                let (shape, recipe) = choose(alternative, template)?;
                Some((self.scheme(shape)?, recipe))
            })
            .collect();
        let number = vacant(&mut self.templates);
        self.templates[number as usize] = Some(Shared { template: template.clone(), users: 1, kept: 0, routes });
        self.by_shape.insert(template.shape.clone(), number);
        Ok(number)
    }

    /// Takes one user from a template; what nobody uses goes.
    fn unshare(&mut self, number: u32) {
        let Some(shared) = &mut self.templates[number as usize] else { return };
        shared.users -= 1;
        if shared.users > 0 {
            return;
        }
        let Some(shared) = self.templates[number as usize].take() else { return };
        self.by_shape.remove(&shared.template.shape);
        for (scheme, _) in shared.routes.into_iter().flatten() {
            let gone = self.schemes[scheme as usize].as_mut().is_some_and(|scheme| {
                scheme.users -= 1;
                scheme.users == 0
            });
            if gone && let Some(scheme_gone) = self.schemes[scheme as usize].take() {
                self.by_fields.remove(&scheme_gone.shape);
                self.by_key.retain(|other| *other != scheme);
                self.by_column.retain(|_, schemes| {
                    schemes.retain(|other| *other != scheme);
                    !schemes.is_empty()
                });
            }
        }
    }

    /// The number of a scheme, with one more user; none if there is no room for it.
    fn scheme(&mut self, shape: Shape) -> Option<u32> {
        let number = match self.by_fields.get(&shape) {
            Some(number) => *number,
            None if self.by_fields.len() >= self.limits.schemes => return None,
            None => {
                let number = vacant(&mut self.schemes);
                match shape.leading() {
                    Path::Key => self.by_key.push(number),
                    Path::Field(_, fields) => {
                        let column = fields.first().map(|field| field.as_bytes()).unwrap_or_default();
                        self.by_column.entry(column.into()).or_default().push(number);
                    }
                }
                self.by_fields.insert(shape.clone(), number);
                self.schemes[number as usize] = Some(Scheme::new(shape));
                number
            }
        };
        if let Some(scheme) = &mut self.schemes[number as usize] {
            scheme.users += 1;
        }
        Some(number)
    }

    /// Where a subscription with this data stands.
    fn posts(&self, template: u32, data: &[u8]) -> BTreeSet<Post> {
        let mut posts = BTreeSet::new();
        let Some(shared) = &self.templates[template as usize] else { return posts };
        let (constants, scope) = split(data);
        let bound = Bound { template: &shared.template, constants, scope };
        for (alternative, route) in shared.template.by_record.alternatives.iter().zip(&shared.routes) {
            if !bound.allows(&alternative.fixed) {
                continue;
            }
            match route {
                Some((number, recipe)) => {
                    let asks_more = alternative.more || alternative.atoms.len() > recipe.atoms();
                    if asks_more && recipe.is_vacuous(&bound) {
                        posts.insert(Post::Scan);
                    } else if let Some(scheme) = &self.schemes[*number as usize] {
                        scheme.posts(*number, recipe, &bound, self.seed, &mut posts);
                    }
                }
                None if alternative.more || !alternative.atoms.is_empty() => {
                    posts.insert(Post::Scan);
                }
                None => {
                    posts.insert(Post::Always);
                }
            }
        }
        posts
    }

    fn checked_posts(&self, template: u32, data: &[u8], scanned: bool) -> Result<BTreeSet<Post>, Refusal> {
        let posts = self.posts(template, data);
        let many = || {
            self.scanned.len() >= self.limits.scanned
                || self.scanned_steps + self.steps(template, data) > self.limits.scanned_steps
        };
        if posts.contains(&Post::Scan) && !scanned && many() {
            return Err(full(
                "this table is watched by too many or too long predicates that no column can be looked up for; compare a column with \
                 `==`, `in`, `<`, `startsWith` or `distance`",
            ));
        }
        if self.places + posts.len() > self.limits.places {
            return Err(full("this table is watched for too many values: ask for fewer in one list"));
        }
        Ok(posts)
    }

    /// The steps that a subscription may take, whatever the record and its reader hold.
    fn steps(&self, template: u32, data: &[u8]) -> usize {
        let operations = self.templates[template as usize].as_ref().map_or(0, |shared| shared.template.ops.len());
        operations + split(data).0.len() / crate::eval::BYTES_A_STEP
    }

    fn stand(&mut self, slot: u32, posts: &BTreeSet<Post>) {
        self.places += posts.len();
        for post in posts {
            match *post {
                Post::Token { scheme, level, token } => {
                    self.postings.add(token, slot);
                    if let Some(scheme) = &mut self.schemes[scheme as usize] {
                        scheme.count(level, true);
                    }
                }
                Post::Bound { group, at, .. } => {
                    self.bounds.insert((group, at, slot));
                }
                Post::Always => {
                    self.always.insert(slot);
                }
                Post::Scan => {
                    self.scanned.insert(slot);
                    let Slot { template, data, .. } = &self.slots[slot as usize];
                    self.scanned_steps += self.steps(*template, data);
                }
            }
        }
    }

    fn leave(&mut self, slot: u32) {
        let Slot { template, ref data, .. } = self.slots[slot as usize];
        let (posts, steps) = (self.posts(template, data), self.steps(template, data));
        self.places -= posts.len();
        for post in posts {
            match post {
                Post::Token { scheme, level, token } => {
                    self.postings.remove(token, slot);
                    if let Some(scheme) = &mut self.schemes[scheme as usize] {
                        scheme.count(level, false);
                    }
                }
                Post::Bound { group, at, .. } => {
                    self.bounds.remove(&(group, at, slot));
                }
                Post::Always => {
                    self.always.remove(&slot);
                }
                Post::Scan => {
                    self.scanned.remove(&slot);
                    self.scanned_steps -= steps;
                }
            }
        }
    }
}

fn count(of: &mut usize, more: bool) {
    *of = if more { *of + 1 } else { *of - 1 };
}

fn full(message: &str) -> Refusal {
    Refusal::new(Wrong::Full, message)
}

/// The number of a place that is free.
fn vacant<T>(among: &mut Vec<Option<T>>) -> u32 {
    let free = among.iter().position(Option::is_none).unwrap_or_else(|| {
        among.push(None);
        among.len() - 1
    });
    free as u32
}

#[cfg(test)]
mod tests;
