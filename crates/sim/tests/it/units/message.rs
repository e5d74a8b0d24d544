//! Messages of the modelled log.

use bytes::Bytes;
use tidings_sim::model::message::*;

#[test]
fn messages_survive_the_network() {
    let entries = vec![(3, Bytes::from_static(b"one")), (4, Bytes::new())];
    for message in [
        Message::Vote { term: 1, pre: true, last: (2, 3) },
        Message::VoteReply { term: 9, pre: false, granted: true },
        Message::Append { term: 4, round: 8, prev: (3, 7), commit: 6, entries },
        Message::AppendReply { term: 4, round: 8, life: 1, learner: false, success: true, index: 9 },
        Message::Snapshot { term: 4, round: 8, last: (3, 7), picture: Bytes::from_static(b"state") },
        Message::TermQuery { nonce: 5, life: 1 },
        Message::TermReply { nonce: 5, term: 6, last: (4, 9) },
    ] {
        let bytes = message.encode();
        assert_eq!(Message::decode(bytes.clone()), Some(message.clone()));
        if !matches!(message, Message::Snapshot { .. }) {
            assert_eq!(Message::decode(bytes.slice(..bytes.len() - 1)), None);
        }
    }
}
