//! Lines from a client to every replica: connections that are made again, frames in and out.

use crate::frame::{LONGEST_ANSWER, next_frame};
use crate::membership::Membership;
use bytes::Bytes;
use std::net::SocketAddr;
use std::time::Duration;
use tidings_sketch::ReplicaId;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
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

/// Connects the lines, again whenever one breaks, until the tasks are dropped. `heard` is told each frame and whose it is;
/// its MAC is not verified.
pub(crate) fn keep(
    endings: Vec<Ending>,
    pause: Duration,
    heard: impl Fn(ReplicaId, Bytes) + Clone + Send + Sync + 'static,
) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for (number, ending) in (0u16..).map(ReplicaId).zip(endings) {
        let heard = heard.clone();
        tasks.spawn(stay_connected(ending, pause, move |frame| heard(number, frame)));
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

async fn stay_connected(mut ending: Ending, pause: Duration, heard: impl Fn(Bytes)) {
    loop {
        if let Ok(stream) = TcpStream::connect(ending.address).await {
            let _ = stream.set_nodelay(true);
            ending.connected.send_replace(true);
            talk(stream, &mut ending.questions, &heard).await;
            ending.connected.send_replace(false);
        }
        // What was asked meanwhile is asked again by its timer; a full queue would be told as a failure.
        while ending.questions.try_recv().is_ok() {}
        tokio::time::sleep(pause).await;
    }
}

/// Sends and hears until the connection breaks.
async fn talk(stream: TcpStream, questions: &mut mpsc::Receiver<Bytes>, heard: &impl Fn(Bytes)) {
    let (read, mut write) = stream.into_split();
    let speaking = async {
        while let Some(question) = questions.recv().await {
            if write.write_all(&question).await.is_err() {
                return;
            }
        }
    };
    let hearing = async {
        let mut read = BufReader::new(read);
        while let Some(frame) = next_frame(&mut read, LONGEST_ANSWER).await {
            heard(frame);
        }
    };
    tokio::select! {
        () = speaking => {}
        () = hearing => {}
    }
}
