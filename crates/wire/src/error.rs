//! Errors on the wire, and the errors of the connection itself.

use crate::v1::{Control, control, frame::Body};
use tidings_base::{Class, Error};

/// The body of a frame that carries an error.
pub fn body(error: Error) -> Body {
    control_body(control::Message::Error(error.into()))
}

/// The body of a frame of the connection itself.
pub(crate) fn control_body(message: control::Message) -> Body {
    Body::Control(Control { message: Some(message) })
}

/// Bytes that are no frame.
pub fn malformed(what: impl std::fmt::Display) -> Error {
    Error::new("control.malformed", Class::Invalid, format!("this is not a frame: {what}"))
        .hint("Send frames as crates/wire/proto describes them, one a message.")
}

/// A frame or operation over its limit.
pub fn too_large(what: &str, size: u64, limit: u64) -> Error {
    Error::new("control.too_large", Class::Invalid, format!("{what} has {size} bytes, and {limit} are allowed"))
        .hint("Split it; Welcome.limits names what is allowed.")
}

/// A frame against the rules of the protocol.
pub fn protocol(what: impl Into<String>) -> Error {
    Error::new("control.protocol", Class::Invalid, what)
}

/// A message of a later version than ours.
pub fn unsupported() -> Error {
    Error::new("control.unsupported", Class::Invalid, "this node does not know the message")
        .hint("It may be of a later version; upgrade the node, or use what its version offers.")
}

/// More operations than allowed.
pub fn too_many(limit: u32) -> Error {
    Error::new("control.busy", Class::Unreachable, format!("{limit} operations are open on this connection already"))
        .hint("Wait for some to end.")
}

/// The beginner gave the operation up.
pub fn cancelled() -> Error {
    Error::new("control.cancelled", Class::OutcomeUnknown, "the operation was cancelled")
}

/// The answer did not come in time; the request had been sent.
pub fn deadline() -> Error {
    Error::new("control.deadline", Class::OutcomeUnknown, "no answer came before the deadline")
        .hint("It may or may not have happened; look before trying again.")
}

/// The deadline passed before the request could be sent.
pub fn deadline_unsent() -> Error {
    Error::new("control.deadline", Class::Unreachable, "the deadline passed before the request could be sent")
        .hint("Nothing happened. Is the node running, and is the address right?")
}

/// The connection ended before the answer came.
pub fn lost(why: &Error) -> Error {
    Error::new(
        "control.lost",
        Class::OutcomeUnknown,
        format!("the connection ended before the answer: {}", why.message),
    )
    .hint("It may or may not have happened; look before trying again.")
}

/// The request was never sent, since the connection is closing or closed.
pub fn unsent(why: &Error) -> Error {
    Error::new("control.unsent", Class::Unreachable, format!("the request was not sent: {}", why.message))
        .hint("Nothing happened: try again, or ask another node.")
}

/// Nothing was heard of the other side for too long.
pub fn dead_peer() -> Error {
    Error::new("control.dead_peer", Class::Unreachable, "nothing was heard from the other side for too long")
        .hint("Look whether it runs, and at the network between.")
}

/// The other side closed the connection without a word.
pub fn closed() -> Error {
    Error::new("control.closed", Class::Unreachable, "the connection was closed")
}

/// The reader takes nothing.
pub fn slow_reader() -> Error {
    Error::new("control.slow_reader", Class::Refused, "the reader did not keep up with what it asked for")
        .hint("Read faster, or ask for less at a time.")
}

/// A frame sent beyond what the reader had granted.
pub fn beyond_credit() -> Error {
    Error::new("control.beyond_credit", Class::Invalid, "a frame was sent beyond what its reader had granted")
}

/// The node is about to stop.
pub fn going_away(redirect: Option<String>) -> Error {
    Error::new("control.going_away", Class::Unreachable, "the node is about to close this connection")
        .hint("Connect again, or to another node.")
        .redirect(redirect)
}

/// The handshake took too long.
pub fn slow_handshake() -> Error {
    Error::new("control.handshake", Class::Refused, "the handshake was not finished in time")
        .hint("Send Hello as the first frame.")
}

/// A handler went away without an answer.
pub fn unanswered() -> Error {
    Error::new("control.unanswered", Class::OutcomeUnknown, "the node stopped working on the operation")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1;

    #[test]
    fn errors_survive_the_wire() {
        for class in Class::ALL {
            let error = Error::new("store.fenced", class, "a sentence").hint("what to do");
            for error in [error.clone(), error.redirect(Some("10.0.0.1:7400".into()))] {
                assert_eq!(Error::from(v1::Error::from(error.clone())), error);
            }
        }
    }

    #[test]
    fn classes_have_the_wire_numbers_of_their_order() {
        for (i, class) in Class::ALL.into_iter().enumerate() {
            let there = v1::Error::from(Error::new("cell.some", class, ""));
            assert_eq!(there.class as usize, i + 1);
        }
        let later = v1::Error { code: "cell.later".into(), class: 99, ..Default::default() };
        assert_eq!(Error::from(later).class, Class::Failed);
    }
}
