//! Replicas: the production one behind, a liar's tongue in front.

use bytes::Bytes;
use std::collections::BTreeMap;
use tidings_base::Incarnation;
use tidings_sketch::replica::Replica;
use tidings_sketch::replica::liar::Liar;
use tidings_sketch::replica::pages::Pages;
use tidings_sketch::sigma::Sigma;

pub struct Seat {
    pub replica: Replica<Pages>,
    pub liar: Option<Liar>,
    /// Until when it executes nothing.
    pub lags_until: u64,
    /// Who waits for a command: by client and nonce.
    pub waiting: BTreeMap<(u64, u64), (super::Where, tidings_sketch::CallId, bool)>,
}

impl Seat {
    /// What it says of a page, instead of the truth if it is a liar.
    pub fn speak(
        &mut self,
        awake: bool,
        truth: Bytes,
        page: u64,
        sigma: Option<Sigma>,
    ) -> Option<(Bytes, Option<Sigma>)> {
        let Some(liar) = &mut self.liar else { return Some((truth, sigma)) };
        liar.awake = awake;
        liar.speak(page, truth, sigma)
    }
}

/// The page of a request that was made here.
pub fn page_of(request: &[u8]) -> u64 {
    tidings_sketch::replica::pages::page_of(request).expect("requests are made here")
}

pub fn replica(clients: u64) -> Replica<Pages> {
    Replica::new(Incarnation(1), 0..clients, Pages::default())
}
