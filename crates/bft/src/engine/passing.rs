//! Commands that have waited long are passed on: a client may have reached one replica alone.

use super::Runtime;
use super::wires::{LONGEST_MESSAGE, Wire};
use crate::codec::Reader;
use crate::command::Signed;
use crate::seat::{Durable, Seat};
use bytes::{Buf, Bytes, BytesMut};
use commonware_p2p::{Receiver, Recipients, Sender};
use std::sync::Arc;
use std::time::Duration;

/// A command that is still here at the second look is passed on.
const LOOK: Duration = Duration::from_millis(500);

/// Passes on what waits here, and takes in what others pass on, until the network ends.
pub async fn pass_on<E: Runtime, S: Durable>(context: E, seat: Arc<Seat<S>>, (mut sender, mut receiver): Wire<E>) {
    loop {
        let look = context.sleep(LOOK);
        tokio::pin!(look);
        loop {
            tokio::select! {
                biased;
                () = &mut look => break,
                received = receiver.recv() => match received {
                    Ok((_, mut message)) => take_in(&seat, message.copy_to_bytes(message.remaining())),
                    Err(_) => return,
                },
            }
        }
        let overdue = seat.pool.overdue(LONGEST_MESSAGE);
        if !overdue.is_empty() {
            let mut out = BytesMut::new();
            overdue.iter().for_each(|signed| signed.put(&mut out));
            let _ = sender.send(Recipients::All, out.freeze(), false);
        }
    }
}

/// Whoever is honest passes on what it has verified alone: behind a command that nobody signed there is nothing to look for, and
/// a message has room for ten thousand of them.
fn take_in<S: Durable>(seat: &Seat<S>, bytes: Bytes) {
    let mut reader = Reader::new(bytes);
    while reader.left() > 0 {
        let Ok(signed) = Signed::read(&mut reader) else { return };
        if !seat.passed_on(signed) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Purpose;
    use crate::kv::KeyValue;
    use crate::mark::Start;
    use crate::membership::tests::group;
    use crate::snapshot::Shelf;
    use tidings_sketch::replica::Command;

    #[test]
    fn nothing_is_looked_at_behind_a_command_that_nobody_signed() {
        let (founded, directory) = (group("one"), tempfile::tempdir().unwrap());
        let (membership, secrets) = (Arc::new(founded.membership.clone()), founded.replicas[0].clone());
        let shelf = Shelf::open(directory.path()).unwrap();
        let seat = Seat::open(membership, secrets, Start::Born, shelf, KeyValue::default(), None).unwrap();
        let signed = |nonce| {
            let command = Command { client: 1, nonce, request: Bytes::from_static(b"put") };
            Signed::new(&founded.membership, &founded.clients[0].secret, Purpose::Order, command)
        };
        let mut forged = signed(3);
        forged.command.nonce = 4;
        let mut message = BytesMut::new();
        [signed(1), signed(2), signed(1), forged, signed(5)].iter().for_each(|signed| signed.put(&mut message));
        take_in(&seat, message.freeze());
        let waiting: Vec<u64> = (1..=5).filter(|nonce| seat.pool.knows(&signed(*nonce))).collect();
        assert_eq!(waiting, [1, 2]);
    }
}
