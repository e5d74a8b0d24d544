//! Commands and results between the front and the state: what goes through the agreed log.

use bytes::Bytes;
use prost::Message;
use tidings_base::{Class, Error};
use tidings_wire::v1;
use tidings_wire::v1::store_command::Command;
use tidings_wire::v1::store_result::Result as Outcome;

/// The command as the log carries it.
pub fn encode(command: Command) -> Bytes {
    v1::StoreCommand { command: Some(command) }.encode_to_vec().into()
}

/// Reads a command; `None` if it is not one this version knows. Names and values share the buffer.
pub fn decode(bytes: Bytes) -> Option<Command> {
    v1::StoreCommand::decode(bytes).ok()?.command
}

/// The state's answer as the log carries it.
pub fn encode_outcome(outcome: Outcome) -> Bytes {
    // The two answers of a busy store, without an allocation.
    match &outcome {
        Outcome::Applied(applied) if applied.failures.is_empty() => return Bytes::from_static(&[0x0a, 0]),
        Outcome::Acked(_) => return Bytes::from_static(&[0x2a, 0]),
        _ => {}
    }
    v1::StoreResult { result: Some(outcome) }.encode_to_vec().into()
}

/// Reads the state's answer; an error of the state comes out as one.
pub fn decode_outcome(bytes: Bytes) -> Result<Outcome, Error> {
    match v1::StoreResult::decode(bytes).ok().and_then(|r| r.result) {
        Some(Outcome::Error(error)) => Err(error.into()),
        Some(outcome) => Ok(outcome),
        None => Err(Error::new("store.malformed", Class::Failed, "The state's answer is not understood.")
            .hint("The members of the cluster run versions too far apart.")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_answers_are_what_the_encoder_would_write() {
        for outcome in [Outcome::Applied(v1::Applied::default()), Outcome::Acked(v1::Acked {})] {
            let long = v1::StoreResult { result: Some(outcome.clone()) }.encode_to_vec();
            assert_eq!(encode_outcome(outcome), long);
        }
    }

    #[test]
    fn an_error_survives_the_log() {
        for class in Class::ALL {
            let error = Error::new("store.fenced", class, "A sentence.").hint("Another.");
            assert_eq!(decode_outcome(encode_outcome(Outcome::Error(error.clone().into()))), Err(error));
        }
    }
}
