//! A replica's side: its history table, updated by the log and by nothing else.

use super::{Digest, Question, Remembered, Word};
use crate::ReplicaId;
use crate::mutant::Mutant;
use crate::replica::{Command, Outcome, Service};
use bytes::Bytes;
use tidings_base::Incarnation;
use tidings_base::bounded::BoundedMap;

/// An answer that is read again keeps its σ within so many heights, and takes the new one with the first read of the next.
///
/// If every ordered read moved σ, replicas that are a moment apart would not match, so that fast reads of a much-read page failed, were
/// ordered, and moved σ again. If none did, a replica that has begun again would not match the others until the page changes.
pub const SPAN: u64 = 64;

/// A service some of whose requests change nothing.
pub trait Reads: Service {
    /// Whether a request changes nothing: decided by the request alone, alike at every replica.
    fn is_read(&self, request: &Bytes) -> bool;

    /// Answers a request that changes nothing, as things stand.
    fn read(&self, request: &Bytes) -> Bytes;

    /// Whether an answer may be remembered: not so for errors (rule D), and for what is for one client alone (rule C).
    fn keeps(&self, _request: &Bytes, _response: &Bytes) -> bool {
        true
    }
}

/// How a replica remembers.
#[derive(Clone, Debug)]
pub struct Options {
    /// The group's name.
    pub group: u64,
    /// Which replica it is.
    pub id: ReplicaId,
    /// The most requests that are remembered: the least recently used goes. About 200 bytes each.
    pub entries: usize,
    /// A rule left out, for tests.
    #[doc(hidden)]
    pub mutant: Option<Mutant>,
}

/// What one replica remembers, in memory only.
#[derive(Clone, Debug)]
pub struct ReplicaSketcher {
    options: Options,
    table: BoundedMap<Digest, Remembered>,
    life: Incarnation,
    /// Nothing up to this height is remembered: it may have been said before.
    floor: u64,
    /// The last block that it was told of.
    last: Option<u64>,
    /// A mutant's: what is not remembered yet.
    late: Vec<(Digest, Option<Remembered>)>,
}

impl ReplicaSketcher {
    /// A replica begins, or begins again. `height` is the highest that it may have executed before it stopped: what its disk holds,
    /// not where its execution begins anew.
    pub fn new(options: Options, life: Incarnation, height: u64) -> ReplicaSketcher {
        let floor = if options.mutant == Some(Mutant::ReplayRemembered) { 0 } else { height };
        let table = BoundedMap::new(options.entries);
        ReplicaSketcher { options, table, life, floor, last: None, late: Vec::new() }
    }

    /// A state was taken over: what others read on the way there it has not seen, and it will answer for it from its reply cache.
    pub fn took_over(&mut self, life: Incarnation, height: u64) {
        (self.life, self.floor, self.last) = (life, height, Some(height));
        if self.options.mutant != Some(Mutant::TransferKeepsTable) {
            self.table = BoundedMap::new(self.options.entries);
        }
    }

    /// A block was executed, and this came of its commands. Must be told before any reply to them leaves. After a block that it was
    /// not told of it begins anew.
    pub fn executed<S: Reads>(&mut self, service: &S, height: u64, done: &[(Command, Outcome)]) {
        if self.last.replace(height).is_some_and(|last| height != last + 1) {
            self.table = BoundedMap::new(self.options.entries);
            self.floor = self.floor.max(height.saturating_sub(1));
        }
        for (request, remembered) in std::mem::take(&mut self.late) {
            self.remember(request, remembered);
        }
        for (command, outcome) in done {
            let Outcome::Done { sigma, result } = outcome else { continue };
            // A command that is ordered again has its first result, and that is no news.
            let repeated = sigma.height() != height || sigma.incarnation() != self.life;
            if repeated && self.options.mutant != Some(Mutant::RepeatRemembered) {
                continue;
            }
            if height <= self.floor || !service.is_read(&command.request) {
                continue;
            }
            let request = Digest::of_request(&command.request);
            let sketch = Digest::of_response(request, result);
            let remembered = service.keeps(&command.request, result).then_some(Remembered { sketch, sigma: *sigma });
            match self.options.mutant {
                Some(Mutant::RepliedFirst) => self.late.push((request, remembered)),
                _ => self.remember(request, remembered),
            }
        }
    }

    fn remember(&mut self, request: Digest, remembered: Option<Remembered>) {
        let Some(new) = remembered else {
            // What is not remembered is forgotten: the next fast read must not return something older than this one did.
            if self.options.mutant != Some(Mutant::ErrorsKeepEntry) {
                self.table.remove(&request);
            }
            return;
        };
        let same = |old: &Remembered| {
            let spans = [old.sigma, new.sigma].map(|sigma| (sigma.incarnation(), sigma.height() / SPAN));
            old.sketch == new.sketch && spans[0] == spans[1]
        };
        if !self.table.get(&request).is_some_and(|old| same(old)) {
            self.table.insert(request, new);
        }
    }

    /// What it says to a fast read; nothing if the request may change something.
    pub fn word<S: Reads>(&mut self, service: &S, question: &Question) -> Option<Word> {
        if !service.is_read(&question.request) {
            return None;
        }
        Some(Word {
            from: self.options.id,
            group: self.options.group,
            client: question.client,
            nonce: question.nonce,
            remembered: self.remembers(&question.request),
            response: question.execute.then(|| service.read(&question.request)),
        })
    }

    /// What it remembers of a request.
    pub fn remembers(&mut self, request: &Bytes) -> Option<Remembered> {
        self.table.get(&Digest::of_request(request)).copied()
    }

    /// How many requests it remembers.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether it remembers nothing.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }
}
