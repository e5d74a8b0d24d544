//! F7: the two sides agree on what is registered: by one replacement if that is small, by a descent if it is not.

use super::{Client, Event, Output};
use crate::digest::{self, Digest, MAX_PREFIXES, REPLACE_UP_TO};
use crate::mutant::Mutant;
use bytes::Bytes;
use std::collections::BTreeSet;
use tidings_base::{Now, Outbox};
use tidings_wire::v1;
use tidings_wire::v1::registration_change::Change;

/// A descent through prefixes of hashes, pinned to one change.
#[derive(Clone, Debug, Default)]
pub(super) struct Descent {
    op: u64,
    /// Prefixes below which the two sides differ.
    open: BTreeSet<Bytes>,
    missing: BTreeSet<Bytes>,
    surplus: BTreeSet<Bytes>,
}

impl Descent {
    pub(super) fn query(&self) -> v1::SyncQuery {
        v1::SyncQuery { op: self.op, prefixes: self.open.iter().take(MAX_PREFIXES).cloned().collect() }
    }
}

impl Client {
    /// Compares digests; the servers have everything that was said, and the application has finished reissuing.
    pub(super) fn compare(&mut self, now: Now, theirs: Digest, pending: u32, out: &mut Outbox<Output>) {
        if !self.complete {
            return;
        }
        if theirs == self.digest || self.is(Mutant::DigestIgnored) {
            self.descent = None;
            // Registrations that are not complete yet are asked about again.
            self.synced = pending == 0;
            if self.synced {
                if self.intended.values().all(|intent| !intent.refused) {
                    self.refusals = 0;
                }
                self.tell_all(out);
            }
            return;
        }
        self.synced = false;
        let count = self.intended.values().filter(|intent| !intent.refused).count();
        if count <= REPLACE_UP_TO {
            let wanted = self.intended.iter().filter(|(_, intent)| !intent.refused);
            let interest = |(object, intent): (&Bytes, &super::Intent)| v1::ObjectInterest {
                object: object.clone(),
                known_version: intent.known,
            };
            let all = v1::Replacement { objects: wanted.map(interest).collect() };
            return self.change(now, Change::Replace(all));
        }
        if self.descent.as_ref().is_none_or(|descent| descent.op != self.latest) {
            let open = BTreeSet::from([Bytes::new()]);
            self.descent = Some(Descent { op: self.latest, open, ..Default::default() });
            self.say(now);
        }
    }

    /// Every registration is complete; whoever has not heard so hears it now.
    fn tell_all(&mut self, out: &mut Outbox<Output>) {
        for (object, intent) in self.intended.iter_mut().filter(|(_, intent)| !intent.told && !intent.refused) {
            intent.told = true;
            out.put(Output::Event(Event::RegistrationStatus { object: object.clone(), registered: true }));
        }
    }

    /// One level further down, or the end.
    pub(super) fn descended(&mut self, now: Now, answer: &v1::SyncAnswer) {
        let Some(mut descent) = self.descent.take() else { return };
        if descent.op != answer.op || descent.op != self.latest {
            self.descent = Some(descent).filter(|descent| descent.op == self.latest);
            return;
        }
        for node in &answer.nodes {
            if descent.open.contains(&node.prefix) {
                self.compare_node(&mut descent, node);
            }
        }
        if !descent.open.is_empty() {
            self.descent = Some(descent);
            return self.say(now);
        }
        for object in descent.surplus {
            self.change(now, Change::Unregister(object));
        }
        for object in descent.missing {
            let known_version = self.intended.get(&object).map_or(0, |intent| intent.known);
            self.change(now, Change::Register(v1::ObjectInterest { object, known_version }));
        }
    }

    fn compare_node(&self, descent: &mut Descent, node: &v1::SyncNode) {
        let here = self.intended.iter().filter(|(_, intent)| !intent.refused);
        if node.leaf {
            let theirs: BTreeSet<&Bytes> = node.objects.iter().collect();
            let ours = here.filter(|(_, intent)| digest::below(intent.hash, &node.prefix));
            let ours: BTreeSet<&Bytes> = ours.map(|(object, _)| object).collect();
            descent.missing.extend(ours.difference(&theirs).map(|object| (*object).clone()));
            descent.surplus.extend(theirs.difference(&ours).map(|object| (*object).clone()));
        } else if node.children.len() == digest::FAN_OUT {
            let ours = digest::children(here.map(|(_, intent)| intent.hash), &node.prefix);
            for (digit, (ours, theirs)) in ours.into_iter().zip(&node.children).enumerate() {
                if Digest::of_message(theirs) != Some(ours) {
                    descent.open.insert([node.prefix.as_ref(), &[digit as u8]].concat().into());
                }
            }
        } else {
            return;
        }
        descent.open.remove(&node.prefix);
    }
}
