//! Live queries between nodes: what gateways ask of processors, and what processors tell gateways.
//!
//! One line for each node and direction keeps the order. Whatever a line cannot carry is lost: the machines notice, and say it
//! again (R3).

use super::convert::{self, News};
use super::hub::{Hub, Said};
use parking_lot::Mutex;
use prost::Message as _;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tidings_base::{Error, NodeId};
use tidings_tables::names::{GatewayId, PartitionId};
use tidings_tables::{gateway, processor};
use tidings_wire::v1::tables_message::Message;
use tidings_wire::{Body, v1};
use tokio::sync::mpsc;

/// How long another node may take to take what it is told.
const TAKES: Duration = Duration::from_secs(3);
/// Items, and bytes of them, that wait for one line; what comes beyond is lost.
const WAITING: usize = 4_096;
const WAITING_BYTES: usize = 64 << 20;
/// Bytes of one message, apart from its last item: with one of the largest size it fits a frame of nodes.
const BYTES: usize = 1 << 20;

/// What goes one way.
#[derive(Debug)]
enum Item {
    Ask(Box<v1::LiveAsk>),
    News(Box<v1::LiveNewsItem>),
}

impl Item {
    fn size(&self) -> usize {
        match self {
            Item::Ask(ask) => ask.encoded_len(),
            Item::News(news) => news.encoded_len(),
        }
    }
}

/// Where a line leads: to whoever serves at an address, or to a gateway.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum To {
    Owner(String),
    Gateway(GatewayId),
}

/// The lines, and where gateways are.
#[derive(Default)]
pub(super) struct Lines {
    lines: Mutex<BTreeMap<To, Line>>,
    /// Which node a gateway is, as it has said with its queries.
    gateways: Mutex<BTreeMap<GatewayId, u64>>,
}

/// The near end of a line.
struct Line {
    items: mpsc::Sender<Item>,
    /// Bytes that wait.
    bytes: Arc<AtomicUsize>,
}

impl Lines {
    pub(super) fn close(&self) {
        self.lines.lock().clear();
    }
}

impl Hub {
    /// Takes something to whoever owns a partition.
    pub(super) fn send_ask(self: &Arc<Self>, partition: PartitionId, input: processor::Input) {
        match self.owner_of(partition) {
            Some(address) if address == self.told.address => self.say(Said::Processor(input)),
            Some(address) => {
                if let Some(ask) = convert::ask_to(partition, input) {
                    self.put(To::Owner(address), Item::Ask(Box::new(ask)));
                }
            }
            None => {}
        }
    }

    /// Takes something to a gateway of another node.
    pub(super) fn send_news(self: &Arc<Self>, gateway: GatewayId, news: v1::LiveNewsItem) {
        self.put(To::Gateway(gateway), Item::News(Box::new(news)));
    }

    fn put(self: &Arc<Self>, to: To, item: Item) {
        let mut lines = self.lines.lines.lock();
        let line = lines.entry(to.clone()).or_insert_with(|| {
            let (sender, items) = mpsc::channel(WAITING);
            let bytes = Arc::<AtomicUsize>::default();
            self.spawn(run(self.clone(), to, items, bytes.clone()));
            Line { items: sender, bytes }
        });
        // What finds no room is lost.
        let size = item.size();
        let waiting = line.bytes.fetch_add(size, Ordering::Relaxed);
        if waiting + size > WAITING_BYTES || line.items.try_send(item).is_err() {
            line.bytes.fetch_sub(size, Ordering::Relaxed);
        }
    }

    /// A gateway elsewhere asks something of partitions here.
    pub(super) async fn asks(&self, asks: v1::LiveAsks) -> v1::LiveTaken {
        let gateway = GatewayId(asks.gateway);
        self.lines.gateways.lock().insert(gateway, asks.node);
        for input in asks.asks.into_iter().filter_map(|ask| convert::ask_of(gateway, ask)) {
            self.processor(input).await;
        }
        v1::LiveTaken { known: true }
    }

    /// A processor elsewhere tells the gateway here something, or a copy.
    pub(super) async fn news(&self, news: v1::LiveNews) -> v1::LiveTaken {
        if GatewayId(news.gateway) != self.gateway_id {
            return v1::LiveTaken { known: false };
        }
        for news in news.items.into_iter().filter_map(|item| convert::news_of(self.gateway_id, item)) {
            match news {
                News::Frame(query, frame) if query.is_copy() => {
                    self.processor(processor::Input::CopyHears { query, frame }).await;
                }
                News::Frame(query, frame) => self.gateway(gateway::Input::Frame { number: query.number, frame }).await,
                News::Progress(progress) => {
                    self.processor(processor::Input::CopyProgresses(progress.clone())).await;
                    self.gateway(gateway::Input::Progress(progress)).await;
                }
            }
        }
        v1::LiveTaken { known: true }
    }

    async fn carry(&self, to: &To, items: Vec<Item>) -> Result<bool, Error> {
        let (address, message) = match to {
            To::Owner(address) => {
                let asks = items.into_iter().filter_map(|item| match item {
                    Item::Ask(ask) => Some(*ask),
                    Item::News(_) => None,
                });
                let (node, gateway) = (self.told.node, self.gateway_id.0);
                (Some(address.clone()), Message::LiveAsks(v1::LiveAsks { node, gateway, asks: asks.collect() }))
            }
            To::Gateway(gateway) => {
                let items = items.into_iter().filter_map(|item| match item {
                    Item::News(news) => Some(*news),
                    Item::Ask(_) => None,
                });
                let node = self.lines.gateways.lock().get(gateway).copied();
                let address = node.and_then(|node| self.stored().ok()?.address_of(NodeId(node)));
                (address, Message::LiveNews(v1::LiveNews { gateway: gateway.0, items: items.collect() }))
            }
        };
        let Some(address) = address else { return Ok(false) };
        let body = Body::Tables(v1::TablesMessage { caller: None, partition: None, message: Some(message) });
        match self.peers()?.ask(&address, body, TAKES).await? {
            Body::Tables(v1::TablesMessage { message: Some(Message::LiveTaken(taken)), .. }) => Ok(taken.known),
            _ => Ok(true),
        }
    }
}

/// Carries what comes, in order, as much at once as fits.
async fn run(hub: Arc<Hub>, to: To, mut items: mpsc::Receiver<Item>, bytes: Arc<AtomicUsize>) {
    while let Some(first) = items.recv().await {
        let mut size = first.size();
        let mut batch = vec![first];
        while size < BYTES {
            let Ok(item) = items.try_recv() else { break };
            size += item.size();
            batch.push(item);
        }
        bytes.fetch_sub(size, Ordering::Relaxed);
        match hub.carry(&to, batch).await {
            Ok(true) => {}
            Ok(false) => {
                if let To::Gateway(gateway) = to {
                    hub.lines.gateways.lock().remove(&gateway);
                    hub.lines.lines.lock().remove(&to);
                    hub.processor(processor::Input::GatewayGone(gateway)).await;
                    return;
                }
            }
            Err(error) => tracing::debug!(%error, "tables: live queries were not told of to another node"),
        }
    }
}

/// What machines here have for each other, in order.
pub(super) async fn pass_on(hub: Arc<Hub>, mut saying: mpsc::UnboundedReceiver<Said>) {
    while let Some(said) = saying.recv().await {
        match said {
            Said::Processor(input) => hub.processor(input).await,
            Said::Gateway(input) => hub.gateway(input).await,
        }
    }
}
