//! What a command may change of what somebody may have cached.
//!
//! A node's entry shows its contents and stat, or that it is absent; a listing shows the directory's stat and the names
//! and stats of its children. So a change of a node's stat changes its own two entries and its parent's listing; a
//! creation or deletion changes its parent's stat too (R5).
//!
//! Who may know that a name is absent is decided by the nearest node above it. So when a node comes or goes, or its access
//! lists change, somebody else may know of the absent names *below* it.

use super::Namespace;
use crate::SessionId;
use crate::mutant::Mutant;
use crate::path::{CacheKey, NodePath, Place};
use std::sync::Arc;
use tidings_wire::v1;
use tidings_wire::v1::cell_command::Command;

/// What a command may change that somebody may have cached: a superset, fixed before it is proposed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Touched {
    /// These, and every absent name below these places.
    Keys {
        /// Nodes and listings.
        keys: Vec<CacheKey>,
        /// Who may know of what is absent there may change.
        below: Vec<Place>,
    },
    /// Anything of this application (an ACL file changed).
    App(Arc<str>),
    /// Anything at all.
    All,
}

impl Default for Touched {
    fn default() -> Touched {
        Touched::Keys { keys: Vec::new(), below: Vec::new() }
    }
}

impl Touched {
    /// Whether an entry is among them, whatever it shows.
    pub fn covers(&self, key: &CacheKey) -> bool {
        match self {
            Touched::Keys { keys, .. } => keys.contains(key),
            Touched::App(app) => *app == key.place.app,
            Touched::All => true,
        }
    }

    /// Whether the absence of a node is among them.
    pub fn covers_absence(&self, place: &Place) -> bool {
        match self {
            Touched::Keys { keys, below } => {
                keys.iter().any(|key| key.place == *place) || below.iter().any(|above| place.is_below(above))
            }
            Touched::App(app) => *app == place.app,
            Touched::All => true,
        }
    }

    /// Whether everything of another one is among them.
    pub fn covers_all(&self, other: &Touched) -> bool {
        match (self, other) {
            (Touched::All, _) => true,
            (_, Touched::Keys { keys, below }) => {
                keys.iter().all(|key| self.covers(key)) && below.iter().all(|place| self.covers_below(place))
            }
            (Touched::App(app), Touched::App(other)) => app == other,
            _ => false,
        }
    }

    fn covers_below(&self, place: &Place) -> bool {
        match self {
            Touched::Keys { below, .. } => below.iter().any(|above| place == above || place.is_below(above)),
            Touched::App(app) => *app == place.app,
            Touched::All => true,
        }
    }

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        matches!(self, Touched::Keys { keys, below } if keys.is_empty() && below.is_empty())
    }

    fn add(&mut self, key: CacheKey) {
        if let Touched::Keys { keys, .. } = self {
            keys.push(key);
        }
    }

    pub(super) fn clear(&mut self) {
        match self {
            Touched::Keys { keys, below } => {
                keys.clear();
                below.clear();
            }
            _ => *self = Touched::default(),
        }
    }

    /// What is absent below a node.
    fn absences(&mut self, place: &Place) {
        if let Touched::Keys { below, .. } = self {
            below.push(place.clone());
        }
    }

    /// The stat of a node, or its contents.
    pub(super) fn stat(&mut self, place: &Place) {
        if let Some(parent) = place.parent() {
            self.add(CacheKey::listing(parent));
        }
        self.add(CacheKey::node(place.clone()));
        self.add(CacheKey::listing(place.clone()));
    }

    /// The names of a node's access lists.
    pub(super) fn rights(&mut self, place: &Place) {
        self.stat(place);
        self.absences(place);
    }

    /// A node came or went.
    pub(super) fn existence(&mut self, place: &Place) {
        self.absences(place);
        self.add(CacheKey::node(place.clone()));
        self.add(CacheKey::listing(place.clone()));
        if let Some(parent) = place.parent() {
            self.stat(&parent);
        }
    }

    /// An access list changed: whatever anybody was allowed to cache may be forbidden now.
    pub(super) fn acl_file(&mut self, place: &Place) {
        if place.path.is_acl() && *self != Touched::All {
            *self = Touched::App(place.app.clone());
        }
    }
}

impl Namespace {
    /// What a command may change that somebody may have cached, whatever is applied before it; for the end of a
    /// session, whatever *others* do before it (`StopSession.gains` refuses the rest).
    pub fn touches(&self, command: &v1::CellCommand) -> Touched {
        let mut touched = Touched::default();
        let blind = self.mutant == Some(Mutant::LocksInvalidateNothing);
        match &command.command {
            Some(Command::StartSession(c)) => {
                let app: Arc<str> = c.caller.as_ref().map_or("", |caller| &caller.app).into();
                let root = Place { app: app.clone(), path: NodePath::root() };
                // Nothing but a restore takes an application's root away, and that ends whoever could cache it.
                if self.tree.at(&root).is_none() {
                    touched.existence(&root);
                    touched.existence(&Place { app, path: NodePath::acl_directory() });
                }
            }
            Some(Command::StopSession(c)) => self.end_touches(SessionId(c.session), blind, &mut touched),
            Some(Command::Open(c)) if c.create.is_some() => existence(&c.app, &c.path, blind, &mut touched),
            Some(Command::Close(c)) => closing(&c.app, &c.path, blind, &mut touched),
            Some(Command::RemoveNode(c)) => existence(&c.app, &c.path, blind, &mut touched),
            Some(Command::ReapEphemeral(c)) => existence(&c.app, &c.path, blind, &mut touched),
            Some(Command::WriteContents(c)) => {
                if let Some(place) = place(&c.app, &c.path) {
                    touched.stat(&place);
                    if self.mutant != Some(Mutant::ListsInvalidateNothing) {
                        touched.acl_file(&place);
                    }
                }
            }
            Some(Command::WriteAcl(c)) => place(&c.app, &c.path).iter().for_each(|place| touched.rights(place)),
            Some(Command::TakeLock(c)) if !blind => lock(&c.app, &c.path, &mut touched),
            Some(Command::FreeLock(c)) if !blind => lock(&c.app, &c.path, &mut touched),
            Some(Command::EndDelay(c)) if !blind => lock(&c.app, &c.path, &mut touched),
            Some(Command::RestorePiece(c)) if c.total > 0 => touched = Touched::All,
            _ => {}
        }
        if let (Some(Mutant::AbsencesStay), Touched::Keys { below, .. }) = (self.mutant, &mut touched) {
            below.clear();
        }
        touched
    }

    fn end_touches(&self, session: SessionId, blind: bool, touched: &mut Touched) {
        let Some(session) = self.sessions.get(session) else { return };
        for (place, _) in session.locks.iter().filter(|_| !blind) {
            touched.stat(place);
        }
        for (place, _) in &session.ephemerals {
            existence(&place.app, place.path.as_str(), blind, touched);
        }
    }
}

/// A path that is none changes nothing: the command will be refused.
fn place(app: &str, path: &str) -> Option<Place> {
    Place::parse(app, path).ok()
}

fn lock(app: &str, path: &str, touched: &mut Touched) {
    place(app, path).iter().for_each(|place| touched.stat(place));
}

fn existence(app: &str, path: &str, blind: bool, touched: &mut Touched) {
    let Some(place) = place(app, path) else { return };
    if blind {
        touched.add(CacheKey::node(place.clone()));
    } else {
        touched.existence(&place);
    }
    touched.acl_file(&place);
}

/// A lock is released, or an ephemeral file goes.
fn closing(app: &str, path: &str, blind: bool, touched: &mut Touched) {
    existence(app, path, blind, touched);
}
