//! Lists of access: who may read, write and administer a table, besides what its level says.
//!
//! A list narrows: whoever is not authorised at the table's level is refused whatever the list says, and with a list nobody
//! may do anything that it does not allow. A denial counts more than any permission. The table's own application and
//! operators cannot be shut out: they could give themselves the right back.

use crate::refusal::Refusal;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The most entries of a list: with the partitions of a table it fits one file of the cell.
pub const MAX_ENTRIES: usize = 128;
/// The longest name in a list, in bytes.
pub const MAX_WHO: usize = 256;

/// Whoever shows nothing. `*` means everybody who is known: nobody is named, or shut out.
pub const NOBODY: &str = "nobody";

/// What a list allows or denies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Right {
    /// Records are read, counted and watched.
    Read,
    /// Records are written.
    Write,
    /// The table is altered, cut and joined, its list is changed, and its bounds and sizes are told.
    Administer,
}

impl Right {
    /// All of them.
    pub const ALL: [Right; 3] = [Right::Read, Right::Write, Right::Administer];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Right::Read => "read",
            Right::Write => "write",
            Right::Administer => "administer",
        }
    }
}

/// What is said of one name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// `*`, `app:APPLICATION/KEY`, `user:APPLICATION/SUBJECT`, with `*` in the last place for all of them; or `nobody`.
    pub who: String,
    /// What it may do.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub allow: BTreeSet<Right>,
    /// What it may not do, whoever allows it.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub deny: BTreeSet<Right>,
}

/// A change of what is said of one name; made twice it is as if it were made once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// The name.
    pub who: String,
    /// First everything that was said of it is taken back.
    pub remove: bool,
    /// Then these are allowed, and not denied any more.
    pub allow: BTreeSet<Right>,
    /// And these are denied, and not allowed any more.
    pub deny: BTreeSet<Right>,
}

/// A table's list of access, in the order of names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Acl {
    entries: Vec<Entry>,
}

impl Acl {
    /// What is said, one name after the other.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Whether somebody may do something: allowed by one entry, and denied by none.
    pub fn allows(&self, principal: &str, right: Right) -> bool {
        let mut of = self.entries.iter().filter(|entry| means(&entry.who, principal));
        let denied = of.clone().any(|entry| entry.deny.contains(&right));
        !denied && of.any(|entry| entry.allow.contains(&right))
    }

    /// Changes what is said of one name.
    pub fn change(&mut self, change: &Change) -> Result<(), Refusal> {
        check(&change.who)?;
        if let Some(both) = change.allow.intersection(&change.deny).next() {
            let what = format!("`{}` cannot both be allowed and denied to one name.", both.name());
            return Err(Refusal::Invalid(what));
        }
        let at = match self.entries.binary_search_by(|entry| entry.who.cmp(&change.who)) {
            Ok(at) => at,
            Err(at) => {
                self.entries.insert(at, Entry { who: change.who.clone(), ..Entry::default() });
                at
            }
        };
        let entry = &mut self.entries[at];
        if change.remove {
            entry.allow.clear();
            entry.deny.clear();
        }
        entry.deny.retain(|right| !change.allow.contains(right));
        entry.allow.retain(|right| !change.deny.contains(right));
        entry.allow.extend(&change.allow);
        entry.deny.extend(&change.deny);
        if entry.allow.is_empty() && entry.deny.is_empty() {
            self.entries.remove(at);
        }
        match self.entries.len() > MAX_ENTRIES {
            true => Err(Refusal::Invalid(format!("A list of access has at most {MAX_ENTRIES} entries."))),
            false => Ok(()),
        }
    }
}

/// Whether a name of a list stands for somebody. Names of principals have no stars of their own.
fn means(who: &str, principal: &str) -> bool {
    if principal == NOBODY {
        return who == NOBODY;
    }
    match who.strip_suffix('*') {
        Some(start) => principal.starts_with(start),
        None => who == principal,
    }
}

/// Refuses what names nobody.
fn check(who: &str) -> Result<(), Refusal> {
    let named = |who: &str| {
        let (kind, rest) = who.split_once(':')?;
        let (app, last) = rest.split_once('/')?;
        let plain = |c: char| !c.is_control() && !c.is_whitespace() && !matches!(c, '/' | '*');
        let fits = |text: &str| !text.is_empty() && text.chars().all(plain);
        (matches!(kind, "app" | "user") && fits(app) && (last == "*" || fits(last))).then_some(())
    };
    if matches!(who, "*" | NOBODY) || who.len() <= MAX_WHO && named(who).is_some() {
        return Ok(());
    }
    let shown: String = who.chars().take(80).collect();
    Err(Refusal::Invalid(format!(
        "`{shown}` names nobody: write *, app:APPLICATION/KEY or user:APPLICATION/SUBJECT, with * in the last place for all, or \
         nobody for callers without a credential."
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use Right::{Administer, Read, Write};

    fn list(entries: &[(&str, &[Right], &[Right])]) -> Acl {
        let mut acl = Acl::default();
        for (who, allow, deny) in entries {
            let (allow, deny) = (allow.iter().copied().collect(), deny.iter().copied().collect());
            acl.change(&Change { who: (*who).to_owned(), remove: false, allow, deny }).unwrap();
        }
        acl
    }

    #[test]
    fn what_nobody_allows_is_denied_and_a_denial_counts_more() {
        let acl = list(&[("user:shop/*", &[Read, Write], &[]), ("user:shop/bob", &[Administer], &[Write])]);
        for (who, right, may) in [
            ("user:shop/ann", Read, true),
            ("user:shop/ann", Administer, false),
            ("user:shop/bob", Read, true),
            ("user:shop/bob", Write, false),
            ("user:shop/bob", Administer, true),
            ("user:shopping/ann", Read, false),
            ("user:blog/ann", Read, false),
            ("app:shop/k", Read, false),
            ("", Read, false),
        ] {
            assert_eq!(acl.allows(who, right), may, "{who} {right:?}");
        }
        assert!(!Acl::default().allows("user:shop/ann", Read));
        let all = list(&[("*", &[Read], &[])]);
        assert!(all.allows("", Read) && all.allows("app:blog/k", Read) && !all.allows("user:shop/ann", Write));
        assert!(!all.allows(NOBODY, Read) && list(&[(NOBODY, &[Read], &[])]).allows(NOBODY, Read));
    }

    #[test]
    fn changes_made_twice_are_made_once_and_rights_move_between_allowed_and_denied() {
        let change = |allow: &[Right], deny: &[Right], remove| Change {
            who: "user:shop/ann".to_owned(),
            remove,
            allow: allow.iter().copied().collect(),
            deny: deny.iter().copied().collect(),
        };
        let mut acl = Acl::default();
        for _ in 0..2 {
            acl.change(&change(&[Read, Write], &[], false)).unwrap();
            assert_eq!(acl, list(&[("user:shop/ann", &[Read, Write], &[])]));
        }
        acl.change(&change(&[], &[Write], false)).unwrap();
        assert_eq!(acl, list(&[("user:shop/ann", &[Read], &[Write])]));
        acl.change(&change(&[Write], &[], true)).unwrap();
        assert_eq!(acl, list(&[("user:shop/ann", &[Write], &[])]));
        acl.change(&change(&[], &[], true)).unwrap();
        assert_eq!(acl, Acl::default());
        assert!(acl.change(&change(&[Read], &[Read], false)).is_err());
    }

    #[test]
    fn what_names_nobody_is_refused_and_lists_are_bounded() {
        let change = |who: &str| Change { who: who.to_owned(), allow: [Read].into(), ..Change::default() };
        for who in
            ["", "ann", "user:ann", "user:/ann", "user:shop/", "user:*/ann", "user:s/a*", "node:s/1", "app:s/k k"]
        {
            assert!(matches!(Acl::default().change(&change(who)), Err(Refusal::Invalid(_))), "{who}");
        }
        assert!(Acl::default().change(&change(&format!("user:shop/{}", "x".repeat(MAX_WHO)))).is_err());
        let mut acl = Acl::default();
        for n in 0..MAX_ENTRIES {
            acl.change(&change(&format!("user:shop/{n}"))).unwrap();
        }
        assert!(acl.change(&change("user:shop/one-more")).is_err());
    }
}
