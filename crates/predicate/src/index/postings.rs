//! Which subscriptions stand under a token: most tokens have one, few have very many.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry as TableEntry;
use std::collections::BTreeSet;

/// From how many on subscriptions of one token are kept in a tree, so that one of very many is removed quickly.
const MANY: usize = 256;
/// Marks what an entry leads to as a list.
const LIST: u32 = 1 << 31;

/// Twelve bytes each: a token in halves, and a subscription or a list.
#[derive(Debug)]
struct Entry {
    token: [u32; 2],
    to: u32,
}

fn halves(token: u64) -> [u32; 2] {
    [token as u32, (token >> 32) as u32]
}

fn whole(entry: &Entry) -> u64 {
    u64::from(entry.token[0]) | u64::from(entry.token[1]) << 32
}

#[derive(Debug)]
enum List {
    Few(Vec<u32>),
    Many(BTreeSet<u32>),
}

impl List {
    fn add(&mut self, slot: u32) {
        match self {
            List::Few(slots) => {
                slots.push(slot);
                if slots.len() > MANY {
                    *self = List::Many(slots.iter().copied().collect());
                }
            }
            List::Many(slots) => {
                slots.insert(slot);
            }
        }
    }

    /// Takes one out; returns the only one that is left, if so.
    fn remove(&mut self, slot: u32) -> Option<u32> {
        match self {
            List::Few(slots) => {
                if let Some(at) = slots.iter().position(|other| *other == slot) {
                    slots.swap_remove(at);
                }
                if slots.len() == 1 { slots.first().copied() } else { None }
            }
            List::Many(slots) => {
                slots.remove(&slot);
                if slots.len() <= MANY / 2 {
                    *self = List::Few(slots.iter().copied().collect());
                }
                None
            }
        }
    }
}

/// Subscriptions by token. A subscription stands under a token once.
#[derive(Debug, Default)]
pub(crate) struct Postings {
    table: HashTable<Entry>,
    lists: Vec<List>,
    free: Vec<u32>,
}

impl Postings {
    pub(crate) fn add(&mut self, token: u64, slot: u32) {
        let wanted = halves(token);
        match self.table.entry(token, |entry| entry.token == wanted, whole) {
            TableEntry::Vacant(vacant) => {
                vacant.insert(Entry { token: wanted, to: slot });
            }
            TableEntry::Occupied(mut entry) => {
                let to = entry.get().to;
                if to & LIST != 0 {
                    self.lists[(to & !LIST) as usize].add(slot);
                    return;
                }
                let both = List::Few(vec![to, slot]);
                let list = match self.free.pop() {
                    Some(list) => {
                        self.lists[list as usize] = both;
                        list
                    }
                    None => {
                        self.lists.push(both);
                        self.lists.len() as u32 - 1
                    }
                };
                entry.get_mut().to = list | LIST;
            }
        }
    }

    pub(crate) fn remove(&mut self, token: u64, slot: u32) {
        let wanted = halves(token);
        let Ok(mut entry) = self.table.find_entry(token, |entry| entry.token == wanted) else { return };
        let to = entry.get().to;
        if to & LIST == 0 {
            entry.remove();
        } else if let Some(last) = self.lists[(to & !LIST) as usize].remove(slot) {
            self.lists[(to & !LIST) as usize] = List::Few(Vec::new());
            self.free.push(to & !LIST);
            entry.get_mut().to = last;
        }
    }

    /// Appends all that stand under a token.
    pub(crate) fn collect(&self, token: u64, out: &mut Vec<u32>) {
        let wanted = halves(token);
        let Some(entry) = self.table.find(token, |entry| entry.token == wanted) else { return };
        if entry.to & LIST == 0 {
            out.push(entry.to);
            return;
        }
        match &self.lists[(entry.to & !LIST) as usize] {
            List::Few(slots) => out.extend_from_slice(slots),
            List::Many(slots) => out.extend(slots),
        }
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }
}
