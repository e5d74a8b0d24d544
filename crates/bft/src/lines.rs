//! Lines from a client to every replica: connections that are made again, frames in and out.

use crate::frame::{LONGEST_ANSWER, TOGETHER, framed, next_frame};
use crate::greeting::{Challenge, GREETS, LONGEST_GREETING};
use crate::membership::{ClientSecrets, Membership};
use bytes::Bytes;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tidings_sketch::ReplicaId;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

/// Questions that wait to be written to one replica. More are dropped, and asked again later.
const MOST_QUESTIONS: usize = 4_096;

/// One replica, for whoever asks it.
pub(crate) struct Line {
    questions: mpsc::Sender<Bytes>,
    connected: watch::Receiver<bool>,
}

/// A question that found no room.
#[derive(Debug)]
pub(crate) struct Unsent;

impl Line {
    /// Has a question sent, with its length before it. It is lost if the connection breaks, or cannot be made.
    pub(crate) fn try_send(&self, question: Bytes) -> Result<(), Unsent> {
        self.questions.try_send(question).map_err(|_| Unsent)
    }

    /// Whether the replica is connected.
    pub(crate) fn is_connected(&self) -> bool {
        *self.connected.borrow()
    }
}

/// The other end of a line: who keeps it connected.
pub(crate) struct Ending {
    address: SocketAddr,
    questions: mpsc::Receiver<Bytes>,
    connected: watch::Sender<bool>,
}

/// Lines to all replicas of a group, in the order of their numbers. Nothing is connected before [`keep`].
pub(crate) fn draw(group: &Membership) -> (Vec<Line>, Vec<Ending>) {
    let line = |address| {
        let ((asks, questions), (tells, connected)) = (mpsc::channel(MOST_QUESTIONS), watch::channel(false));
        (Line { questions: asks, connected }, Ending { address, questions, connected: tells })
    };
    group.replicas().iter().map(|member| line(member.clients)).unzip()
}

/// Connects the lines as a client of a group, again whenever one breaks, until the tasks are dropped. `heard` is told each frame
/// and whose it is; its MAC is not verified.
pub(crate) fn keep(
    group: &Arc<Membership>,
    client: &ClientSecrets,
    endings: Vec<Ending>,
    pause: Duration,
    heard: impl Fn(ReplicaId, Bytes) + Clone + Send + Sync + 'static,
) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for (number, ending) in (0u16..).map(ReplicaId).zip(endings) {
        let (heard, group, id, key) = (heard.clone(), Arc::clone(group), client.id, client.mac(number));
        let greeted = move |challenge: Challenge| challenge.answered(&group, id, &key).encoded();
        tasks.spawn(stay_connected(ending, pause, greeted, move |frame| heard(number, frame)));
    }
    tasks
}

/// Waits until so many are connected.
pub(crate) async fn connected(lines: &[Line], replicas: usize) {
    let mut told: Vec<watch::Receiver<bool>> = lines.iter().map(|line| line.connected.clone()).collect();
    while told.iter().filter(|connected| *connected.borrow()).count() < replicas {
        let changes = told.iter_mut().map(|connected| Box::pin(connected.changed()));
        let _ = futures::future::select_all(changes).await;
    }
}

async fn stay_connected(
    mut ending: Ending,
    pause: Duration,
    greeted: impl Fn(Challenge) -> Bytes,
    heard: impl Fn(Bytes),
) {
    loop {
        let connected = tokio::time::timeout(GREETS, connect(ending.address, &greeted));
        if let Ok(Some((read, write))) = connected.await {
            ending.connected.send_replace(true);
            talk(read, write, &mut ending.questions, &heard).await;
            ending.connected.send_replace(false);
        }
        // What was asked meanwhile is asked again by its timer; a full queue would be told as a failure.
        while ending.questions.try_recv().is_ok() {}
        tokio::time::sleep(pause).await;
    }
}

/// A connection that has shown whose it is.
async fn connect(
    to: SocketAddr,
    greeted: impl Fn(Challenge) -> Bytes,
) -> Option<(BufReader<OwnedReadHalf>, OwnedWriteHalf)> {
    let stream = TcpStream::connect(to).await.ok()?;
    let _ = stream.set_nodelay(true);
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    let challenge = Challenge::read(next_frame(&mut read, LONGEST_GREETING).await?).ok()?;
    write.write_all(&framed(&greeted(challenge))).await.ok()?;
    Some((read, write))
}

/// Sends and hears until the connection breaks.
async fn talk(
    mut read: BufReader<OwnedReadHalf>,
    mut write: OwnedWriteHalf,
    questions: &mut mpsc::Receiver<Bytes>,
    heard: &impl Fn(Bytes),
) {
    let speaking = async {
        while let Some(first) = questions.recv().await {
            let mut together = first.to_vec();
            while together.len() < TOGETHER
                && let Ok(next) = questions.try_recv()
            {
                together.extend_from_slice(&next);
            }
            if write.write_all(&together).await.is_err() {
                return;
            }
        }
    };
    let hearing = async {
        while let Some(frame) = next_frame(&mut read, LONGEST_ANSWER).await {
            heard(frame);
        }
    };
    tokio::select! {
        () = speaking => {}
        () = hearing => {}
    }
}
