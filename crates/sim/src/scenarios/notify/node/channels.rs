//! Channels of devices. A node that restarts has none of them any more, and says so when it is asked.

use super::{Node, Out};
use crate::kernel::HostId;
use crate::scenarios::notify::letter::{Body, Letter, send};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::time::Duration;
use tidings_base::{Mono, Now};
use tidings_notify::names::Channel;
use tidings_wire::v1;

/// A channel on which nothing came for so long is closed.
const SILENCE: Duration = Duration::from_secs(9);
/// How often that is looked for.
const SWEEP: Duration = Duration::from_secs(3);

/// The channels of one process.
#[derive(Debug)]
pub struct Channels {
    /// The device at the other end, and when it was last heard.
    open: BTreeMap<u64, (HostId, Mono)>,
    last: u64,
    sweep: Option<Mono>,
}

impl Channels {
    /// None; numbers begin behind those of earlier processes.
    pub fn new(start: u64) -> Channels {
        Channels { open: BTreeMap::new(), last: start << 32, sweep: None }
    }

    /// When they want to be swept.
    pub fn deadline(&self) -> Option<Mono> {
        self.sweep
    }
}

impl Node {
    pub(super) fn device_said(&mut self, now: Now, from: HostId, bytes: &Bytes, out: &mut Out) {
        let Some((number, body)) = Letter::of(bytes) else { return };
        if body == Body::Open(true) {
            self.channels.last += 1;
            self.channels.open.insert(self.channels.last, (from, now.mono));
            self.channels.sweep.get_or_insert(now.mono + SWEEP);
            return send(out, from, number, Body::Opened(self.channels.last));
        }
        match self.channels.open.get_mut(&number) {
            Some((device, heard)) if *device == from => *heard = now.mono,
            _ => return send(out, from, number, Body::Gone(true)),
        }
        match body {
            Body::Up(up) => self.forward_up(from, number, up, out),
            Body::Ping(_) => send(out, from, number, Body::Pong(true)),
            Body::Close(_) => self.close(number, out),
            _ => {}
        }
    }

    /// A message for a channel of this node.
    pub(super) fn down_arrived(&mut self, from: HostId, channel: Channel, down: v1::NotifyDown, out: &mut Out) {
        match self.channels.open.get(&channel.number) {
            Some((device, _)) => send(out, *device, channel.number, Body::Down(down)),
            None => self.tell_closed(from, channel, out),
        }
    }

    fn close(&mut self, number: u64, out: &mut Out) {
        if let Some((device, _)) = self.channels.open.remove(&number) {
            self.forward_closed(device, number, out);
        }
    }

    pub(super) fn sweep_channels(&mut self, now: Now, out: &mut Out) {
        if self.channels.sweep.is_none_or(|at| now.mono < at) {
            return;
        }
        let silent = self.channels.open.iter().filter(|(_, (_, heard))| now.mono.since(*heard) > SILENCE);
        for number in silent.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.close(number, out);
        }
        self.channels.sweep = (!self.channels.open.is_empty()).then(|| now.mono + SWEEP);
    }

    /// F3: nothing that is stored says any more who is there.
    pub(super) fn close_channels(&mut self, out: &mut Out) {
        for (number, (device, _)) in std::mem::take(&mut self.channels.open) {
            send(out, device, number, Body::Gone(true));
            self.forward_closed(device, number, out);
        }
    }
}
