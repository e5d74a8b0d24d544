//! Bytes that were cut, changed or made up are refused, and never more than that.

use bytes::Bytes;
use tidings_base::{Incarnation, Seeded};
use tidings_bft::command::Signed;
use tidings_bft::frame::{Answer, Question, Reply, Word};
use tidings_bft::keys::{MacKey, Purpose, Signature};
use tidings_bft::kv::{KeyValue, Request, Response};
use tidings_bft::membership::{ClientSecrets, Membership, ReplicaSecrets};
use tidings_bft::snapshot::Snapshot;
use tidings_sketch::direct::{Digest, Remembered};
use tidings_sketch::replica::{Block, Command, Replica};
use tidings_sketch::sigma::Sigma;
use tidings_sketch::sketch::Sketch;

fn request() -> Bytes {
    Request::Put(Bytes::from_static(b"key"), Bytes::from_static(b"value")).encoded()
}

/// The bytes with one to four of them changed, and sometimes cut or longer.
fn spoilt(rng: &mut Seeded, bytes: &[u8]) -> Bytes {
    let mut spoilt = bytes.to_vec();
    for _ in 0..rng.between(1, 4) {
        let at = rng.below(spoilt.len() as u64) as usize;
        spoilt[at] = rng.below(256) as u8;
    }
    if rng.one_in(4) {
        spoilt.truncate(rng.below(spoilt.len() as u64) as usize);
    } else if rng.one_in(4) {
        spoilt.extend((0..rng.between(1, 40)).map(|_| 0xff));
    }
    Bytes::from(spoilt)
}

#[test]
fn spoilt_frames_are_refused_or_say_what_they_say() {
    let mut rng = Seeded::new(1);
    let command = Command { client: 1, nonce: 2, request: request() };
    let signed = Signed { command, signature: Signature([3; 64]) };
    let fast = Question::Fast { execute: true, signed: signed.clone() };
    let questions = [Question::Ask { purpose: Purpose::Order, whole: true, signed }, fast];
    let (key, sigma) = (MacKey([4; 32]), Sigma::new(Incarnation(1), 2, 3));
    let whole = Some(Bytes::from_static(b"whole"));
    let reply = Reply { group: 1, client: 1, nonce: 2, sigma, result: Sketch([5; 16]), whole: whole.clone() };
    let answer = Answer::Reply(reply.clone()).encoded(&key);
    let remembered = sigma.map(|sigma| Remembered { sketch: Digest([6; 32]), sigma });
    let word = Word { group: 1, client: 1, nonce: 2, remembered, response: whole };
    let said = Answer::Word(word.clone()).encoded(&key);
    for _ in 0..5_000 {
        for question in &questions {
            if let Ok(read) = Question::read(spoilt(&mut rng, &question.encoded())) {
                assert_eq!(Question::read(read.encoded()), Ok(read), "one value has one encoding");
            }
        }
        // Under the MAC nothing can be changed; the whole result is held against its hash by whoever reads it.
        if let Ok(Some(Answer::Reply(read))) = Answer::read(spoilt(&mut rng, &answer), &key) {
            assert_eq!(Reply { whole: None, ..read }, Reply { whole: None, ..reply.clone() });
        }
        if let Ok(Some(Answer::Word(read))) = Answer::read(spoilt(&mut rng, &said), &key) {
            assert!(read.response.is_some(), "it cannot be taken away");
            assert_eq!(Word { response: None, ..read }, Word { response: None, ..word.clone() });
        }
    }
}

#[test]
fn spoilt_states_requests_and_files_are_refused() {
    let mut rng = Seeded::new(2);
    let mut replica = Replica::new(Incarnation(1), [1], KeyValue::default());
    for height in 1..=5 {
        replica.execute(&Block { height, commands: vec![Command { client: 1, nonce: height, request: request() }] });
    }
    let snapshot = Snapshot::of(&replica);
    let files = [
        "name = \"g\"\nlife = 1\n[[replica]]\nkey = \"00\"\n",
        "id = 1\nsecret = \"00\"\n",
        "secret = \"0\"\n[macs]\n1 = \"0\"",
    ];
    for _ in 0..1_000 {
        let state = Snapshot::from_bytes(5, spoilt(&mut rng, &snapshot.bytes));
        assert!(state == snapshot || state.hash != snapshot.hash);
        let _ = state.replica(Incarnation(1), &KeyValue::default());
        let _ = Response::read(spoilt(&mut rng, &request()));
        replica.execute(&Block {
            height: replica.height() + 1,
            commands: vec![Command { client: 1, nonce: 10 + replica.height(), request: spoilt(&mut rng, &request()) }],
        });
        for file in files {
            let text = String::from_utf8_lossy(&spoilt(&mut rng, file.as_bytes())).into_owned();
            assert!(Membership::parse(&text).is_err());
            assert!(ClientSecrets::parse(&text).is_err() && ReplicaSecrets::parse(&text).is_err());
        }
    }
}
