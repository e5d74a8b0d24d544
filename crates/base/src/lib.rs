//! Vocabulary that every part of Tidings shares.
//!
//! ```text
//!   shells      tidings · node · client · sim · consensus · store-local
//!   protocols   cell · placement · notify · tables · sketch
//!   foundation  base · wire · log · store
//! ```
//! This crate is the lowest stone: two kinds of time that never mix ([`time`]), the shape of all protocol logic
//! ([`machine`], [`timers`]), seeded randomness ([`rng`]), names and numbers ([`ids`], [`ring`], [`lease`]), the
//! interface of the agreed log ([`agreed`]) and of the disk beneath it ([`disk`]), errors as users meet them
//! ([`error`]), and collections that cannot grow without bound ([`bounded`]).
//!
//! What it deliberately does not do: read a clock, open a file or socket, draw randomness of its own, or know any
//! part by name.

pub mod agreed;
pub mod bounded;
pub mod disk;
pub mod error;
pub mod ids;
pub mod lease;
pub mod machine;
pub mod ring;
pub mod rng;
pub mod time;
pub mod timers;

pub use error::{Class, Error};
pub use ids::{Epoch, GroupId, Incarnation, LogIndex, NodeId, OpId};
pub use lease::LeaseNumber;
pub use machine::{Machine, Outbox};
pub use ring::{KeyHash, KeyRange};
pub use rng::Seeded;
pub use time::{Mono, Now, RHO, Wall};
pub use timers::Timers;
