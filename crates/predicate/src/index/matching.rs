//! Whom a record is for: candidates by its columns, or by the readers that its writer chose, and their evaluation.

use super::mirror::wanted;
use super::scheme::Bound;
use super::{Index, SubscriptionId, VACANT, Work, split};
use crate::eval::{STEPS, Scope, Stack, TooSlow};
use crate::packed;
use crate::predicate::{Predicate, holds};
use crate::template::Template;
use std::collections::BTreeSet;

impl Index {
    /// Appends the subscriptions that a record is for, in order: their predicate holds for it, and its writer's predicate,
    /// if it has one, for them. Among them are those whose predicate takes more steps than it may.
    pub fn matches(&mut self, record: &Scope<'_>, writer: Option<&Predicate>, out: &mut Vec<SubscriptionId>) -> Work {
        self.matches_within(record, writer, u64::MAX, out)
    }

    /// The same within so many steps, and a few for each candidate: beyond them candidates are taken for what they may be.
    pub fn matches_within(
        &mut self,
        record: &Scope<'_>,
        writer: Option<&Predicate>,
        left: u64,
        out: &mut Vec<SubscriptionId>,
    ) -> Work {
        // What holds now and not later cannot be watched (R9): a writer's predicate that asks the time shows nothing here.
        let record = &Scope { now: None, joined: None, ..*record };
        let mut work = Work::default();
        // A writer that asks for nothing of readers shows the record to all or to none.
        let writer = match writer {
            Some(writer) if !writer.0.template.asks_reader => {
                work.evaluated += 1;
                if !writer.holds(record) {
                    return work;
                }
                None
            }
            other => other,
        };
        let mut candidates = self.candidates(record);
        let many = candidates.len() + self.always.len();
        let fewer = writer.filter(|_| many > self.limits.many).and_then(|writer| self.readers(record, writer, many));
        work.mirrored = fewer.is_some();
        let always = match fewer {
            Some(fewer) => {
                candidates = fewer;
                None
            }
            None => Some(&self.always),
        };
        candidates.sort_unstable();
        candidates.dedup();
        self.touch(&candidates);
        let start = out.len();
        let all = candidates.len() + always.map_or(0, BTreeSet::len);
        let mut left = left.saturating_add((all as u64).saturating_mul(self.limits.candidate_steps));
        let mut stack = Stack::default();
        for (slot, sure) in
            candidates.iter().map(|slot| (slot, false)).chain(always.into_iter().flatten().map(|slot| (slot, true)))
        {
            work.candidates += 1;
            let (holds, evaluated) = self.is_for(*slot, sure, record, writer, (&mut stack, &mut left));
            work.evaluated += evaluated;
            if holds {
                out.push(SubscriptionId { slot: *slot, generation: self.slots[*slot as usize].generation });
            }
        }
        out[start..].sort_unstable();
        // One that is found by a column may also be among those that hold for every record.
        let mut last = None;
        let mut kept = start;
        for at in start..out.len() {
            if last != Some(out[at]) {
                last = Some(out[at]);
                out[kept] = out[at];
                kept += 1;
            }
        }
        out.truncate(kept);
        work
    }

    /// All that a record may be for, apart from those that every record is for.
    fn candidates(&self, record: &Scope<'_>) -> Vec<u32> {
        let mut found: Vec<u32> = self.scanned.iter().copied().collect();
        let columns = record.this.and_then(packed::map_contents).unwrap_or_default();
        let led = packed::entries(columns).filter_map(|(name, _)| self.by_column.get(name)).flatten();
        for number in led.chain(&self.by_key) {
            if let Some(scheme) = &self.schemes[*number as usize] {
                let _ = scheme.collect(*number, record, self.seed, &self.postings, &self.bounds, &mut found);
            }
        }
        found
    }

    /// Looks at every candidate at once before one is evaluated after the other: memory is waited for together.
    fn touch(&self, candidates: &[u32]) {
        let first = |slot: &u32| self.slots[*slot as usize].data.first().copied().unwrap_or_default();
        std::hint::black_box(candidates.iter().map(first).fold(0, u8::wrapping_add));
    }

    /// Whether a record is for a subscription, and how many predicates that took.
    fn is_for<'a>(
        &'a self,
        slot: u32,
        sure: bool,
        record: &Scope<'a>,
        writer: Option<&'a Predicate>,
        (stack, left): (&mut Stack<'a>, &mut u64),
    ) -> (bool, usize) {
        let slot = &self.slots[slot as usize];
        let Some(shared) = self.templates.get(slot.template as usize).and_then(Option::as_ref) else {
            return (false, 0);
        };
        let (constants, reader) = split(&slot.data);
        let scope = Scope { key: record.key, this: record.this, meter: record.meter, ..reader };
        // Whose predicate takes too long to say is to hear that, if it may see the record: when the record is sent.
        if !sure && said(&shared.template, constants, &scope, stack, left) == Said::No {
            return (false, 1);
        }
        let shown = writer.is_none_or(|writer| {
            let said = said(&writer.0.template, &writer.0.constants, &scope, stack, left);
            matches!(said, Said::Yes | Said::Unknown)
        });
        (shown, usize::from(!sure) + usize::from(writer.is_some()))
    }

    /// All readers that a writer's predicate may hold for, if they are fewer than `most`.
    fn readers(&mut self, record: &Scope<'_>, writer: &Predicate, most: usize) -> Option<Vec<u32>> {
        let template = &writer.0.template;
        let bound = Bound { template, constants: &writer.0.constants, scope: *record };
        let mut found = Vec::new();
        for alternative in template.by_reader.alternatives.iter().filter(|other| bound.allows(&other.fixed)) {
            let mut best: Option<Vec<u32>> = None;
            for wanted in wanted(alternative, &bound, self.seed) {
                let bar = best.as_ref().map_or(most, Vec::len);
                if best.is_some() && bar <= self.limits.many {
                    break;
                }
                if self.mirrors.is_worth(&wanted, bar, self.slots.len()) {
                    let taken = self.slots.iter().enumerate().filter(|(_, slot)| slot.template != VACANT);
                    let readers = taken.map(|(number, slot)| (number as u32, split(&slot.data).1));
                    self.mirrors.make(&wanted, self.limits.mirrors, readers, self.seed);
                }
                best = self.mirrors.fewer(&wanted, bar).or(best);
            }
            found.extend(best?);
            if found.len() >= most {
                return None;
            }
        }
        Some(found)
    }
}

/// What an evaluation says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Yes,
    No,
    /// It takes more steps than one may.
    TooSlow,
    /// There were not enough steps left.
    Unknown,
}

/// Whether a text of this template holds with these constants; its steps are taken from those that are left.
fn said<'a>(
    template: &'a Template,
    constants: &'a [u8],
    scope: &Scope<'a>,
    stack: &mut Stack<'a>,
    left: &mut u64,
) -> Said {
    let most = u32::try_from(*left).unwrap_or(u32::MAX).min(STEPS);
    let mut steps = most;
    let held = holds(template, constants, scope, &mut steps, stack);
    *left -= u64::from(most - steps);
    match held {
        Ok(true) => Said::Yes,
        Ok(false) => Said::No,
        Err(TooSlow) if most < STEPS => Said::Unknown,
        Err(TooSlow) => Said::TooSlow,
    }
}
