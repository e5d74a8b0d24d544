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

fn take_in<S: Durable>(seat: &Seat<S>, bytes: Bytes) {
    let mut reader = Reader::new(bytes);
    while reader.left() > 0 {
        let Ok(signed) = Signed::read(&mut reader) else { return };
        seat.passed_on(signed);
    }
}
