//! The parts of the platform, by their wire ids.

use crate::v1::{Frame, frame::Body};
use std::fmt;

/// A part. Its wire id is for ever; the field that carries its message in a frame is 10 + the id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Part {
    /// The connection itself, and what every operation needs.
    Control = 0,
    /// Agreed files, locks, sessions, events.
    Cell = 1,
    /// Leases on key ranges.
    Placement = 2,
    /// Publications and registrations.
    Notify = 3,
    /// Synced tables and live queries.
    Tables = 4,
    /// Verified reads.
    Sketch = 5,
    /// Rows of timestamped cells.
    Store = 6,
    /// Topics and consumer groups.
    Feed = 7,
    /// Replication between members of a group.
    Raft = 8,
    /// What operators do.
    Admin = 9,
}

impl Part {
    /// All parts, in the order of their wire ids.
    pub const ALL: [Part; 10] = [
        Part::Control,
        Part::Cell,
        Part::Placement,
        Part::Notify,
        Part::Tables,
        Part::Sketch,
        Part::Store,
        Part::Feed,
        Part::Raft,
        Part::Admin,
    ];

    /// The wire id.
    pub fn id(self) -> u8 {
        self as u8
    }

    /// The part of a wire id, if there is one.
    pub fn from_id(id: u8) -> Option<Part> {
        Part::ALL.get(usize::from(id)).copied()
    }

    /// The number of the frame's field that carries this part's message.
    pub fn field(self) -> u32 {
        10 + u32::from(self.id())
    }

    /// The name as it stands in error codes, paths and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Part::Control => "control",
            Part::Cell => "cell",
            Part::Placement => "placement",
            Part::Notify => "notify",
            Part::Tables => "tables",
            Part::Sketch => "sketch",
            Part::Store => "store",
            Part::Feed => "feed",
            Part::Raft => "raft",
            Part::Admin => "admin",
        }
    }

    /// The part that a body belongs to.
    pub fn of(body: &Body) -> Part {
        match body {
            Body::Control(_) => Part::Control,
            Body::Cell(_) => Part::Cell,
            Body::Placement(_) => Part::Placement,
            Body::Notify(_) => Part::Notify,
            Body::Tables(_) => Part::Tables,
            Body::Store(_) => Part::Store,
            Body::Feed(_) => Part::Feed,
            Body::Raft(_) => Part::Raft,
            Body::Admin(_) => Part::Admin,
        }
    }

    /// The part that a frame belongs to; `None` if its body is of a later version than ours.
    pub fn of_frame(frame: &Frame) -> Option<Part> {
        frame.body.as_ref().map(Part::of)
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether a body holds a message of our version. One of a later version decodes to a body without a message.
pub fn is_known(body: &Body) -> bool {
    match body {
        Body::Control(m) => m.message.is_some(),
        Body::Cell(m) => m.message.is_some(),
        Body::Placement(m) => m.message.is_some(),
        Body::Notify(m) => m.message.is_some(),
        Body::Tables(m) => m.message.is_some(),
        Body::Store(m) => m.message.is_some(),
        Body::Feed(m) => m.message.is_some(),
        // Its binding decides: an empty one names the group and the sender.
        Body::Raft(_) => true,
        Body::Admin(m) => m.message.is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frame_carries_each_part_in_the_field_of_its_id() {
        let pool = prost_reflect::DescriptorPool::decode(crate::DESCRIPTORS).unwrap();
        let frame = pool.get_message_by_name("tidings.v1.Frame").unwrap();
        let body = frame.oneofs().find(|o| o.name() == "body").unwrap();
        let carried: Vec<(String, u32)> = body.fields().map(|f| (f.name().to_owned(), f.number())).collect();
        assert!(carried.len() >= 5);
        for (name, field) in carried {
            let part = Part::ALL.into_iter().find(|p| p.name() == name).expect("a body is named after its part");
            assert_eq!(part.field(), field, "{name}");
        }
    }

    #[test]
    fn ids_are_positions() {
        for (i, part) in Part::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(part.id()), i);
            assert_eq!(Part::from_id(part.id()), Some(part));
        }
        assert_eq!(Part::from_id(10), None);
    }
}
