//! Words of replicas whose MACs are wrong do not count, for whichever way of asking: with two of four nobody is answered.

use crate::seats::{heard, say};
use crate::town::group;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tidings_base::Incarnation;
use tidings_bft::client::{Client, Options};
use tidings_bft::direct;
use tidings_bft::frame::{Answer, Question, Reply, Word};
use tidings_bft::greeting::Challenge;
use tidings_bft::keys::{MacKey, Purpose};
use tidings_bft::membership::Founded;
use tidings_sketch::direct::{Digest, Remembered};
use tidings_sketch::sigma::Sigma;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// What all of them say, as a replica writes it.
const SAID: Bytes = Bytes::from_static(b"\0red");

/// What a replica that agrees with all others answers.
fn answer(founded: &Founded, question: Question) -> Answer {
    let (group, sigma) = (founded.membership.number(), Sigma::new(Incarnation(1), 1, 1));
    match question {
        Question::Ask { purpose, signed, .. } => Answer::Reply(Reply {
            group,
            client: signed.command.client,
            nonce: signed.command.nonce,
            sigma: sigma.filter(|_| purpose == Purpose::Order),
            result: signed.sketch(&SAID),
            whole: Some(SAID),
        }),
        Question::Fast { execute, signed } => {
            let response = SAID.slice(1..);
            let sketch = Digest::of_response(Digest::of_request(&signed.command.request), &response);
            Answer::Word(Word {
                group,
                client: signed.command.client,
                nonce: signed.command.nonce,
                remembered: sigma.map(|sigma| Remembered { sketch, sigma }),
                response: execute.then_some(response),
            })
        }
        Question::Status { .. } => panic!("nobody asks how it is"),
    }
}

/// A replica that answers its client under this key.
async fn replica(founded: Arc<Founded>, number: usize, key: MacKey) {
    let listener = TcpListener::bind(founded.membership.replicas()[number].clients).await.unwrap();
    let mut lines = JoinSet::new();
    while let Ok((mut stream, _)) = listener.accept().await {
        let founded = Arc::clone(&founded);
        lines.spawn(async move {
            say(&mut stream, &Challenge([7; 32]).encoded()).await.unwrap();
            heard(&mut stream).await.unwrap();
            while let Ok(frame) = heard(&mut stream).await {
                let said = answer(&founded, Question::read(frame).unwrap());
                say(&mut stream, &said.encoded(&key)).await.unwrap();
            }
        });
    }
}

/// Whether each way of asking is answered: in the order, past it, and by what is remembered.
async fn answered(wrong: usize, key: fn(&Founded, usize) -> MacKey) -> [bool; 3] {
    let founded = Arc::new(group());
    let mut replicas = JoinSet::new();
    for number in 0..4 {
        let own = founded.replicas[number].macs[&1];
        let key = if number < wrong { key(&founded, number) } else { own };
        replicas.spawn(replica(Arc::clone(&founded), number, key));
    }
    // Where enough are right a machine that is busy has the time that it needs.
    let [give_up, read_give_up] = if wrong > 1 { [1, 1] } else { [60, 5] }.map(Duration::from_secs);
    let options = Options { resend: Duration::from_millis(200), give_up, read_give_up, ..Options::after(0) };
    let (membership, secrets) = (Arc::new(founded.membership.clone()), founded.clients[0].clone());
    let mut client = Client::start(Arc::clone(&membership), secrets.clone(), &options).unwrap();
    client.connected(4).await;
    let ask = Bytes::from_static(b"colour");
    let ordered = client.call(ask.clone()).await.is_ok_and(|answered| answered.result == SAID.slice(1..));
    let read = client.read(ask.clone()).await.is_ok_and(|answered| answered.sigma.is_none());
    let mut client = direct::Client::start(membership, secrets, &options).unwrap();
    client.connected(4).await;
    let fast = client.read(ask).await.is_ok_and(|answered| answered.how == direct::How::Fast);
    [ordered, read, fast]
}

#[tokio::test]
async fn what_is_under_another_key_does_not_count() {
    let keys: [fn(&Founded, usize) -> MacKey; 3] = [
        |founded, number| founded.replicas[number].macs[&2],
        |founded, number| founded.replicas[number + 1].macs[&1],
        |_, _| MacKey([0; 32]),
    ];
    let (one, two) = tokio::join!(
        futures::future::join_all(keys.map(|key| answered(1, key))),
        futures::future::join_all(keys.map(|key| answered(2, key))),
    );
    // Of four, three suffice. Fast reads have one of them execute, which may be the one whose word does not count.
    assert!(one.iter().all(|[ordered, read, _]| *ordered && *read), "{one:?}");
    assert_eq!(two, [[false; 3]; 3]);
}
