//! The service of tests and simulations: pages with versions.

use super::Service;
use crate::Answer;
use crate::direct::Reads;
use crate::mutant::Mutant;
use crate::sigma::Sigma;
use crate::sketch::{Of, Sketch, Sketching};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// Pages with versions. Every few versions of a page are errors, which nobody may remember.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pages {
    versions: BTreeMap<u64, u64>,
    written: BTreeSet<Bytes>,
    digest: u64,
    /// A write that took effect twice, if one did.
    pub twice: Option<Bytes>,
}

/// The page of a request: `r PAGE`, or `w PAGE NAME`.
pub fn page_of(request: &[u8]) -> Option<u64> {
    std::str::from_utf8(request).ok()?.split(' ').nth(1)?.parse().ok()
}

/// The page of an answer: `PAGE VERSION`, and `error` behind it if it is one.
pub fn page_of_answer(answer: &[u8]) -> Option<u64> {
    std::str::from_utf8(answer).ok()?.split(' ').next()?.parse().ok()
}

/// The version of an answer.
pub fn version_of(answer: &[u8]) -> u64 {
    let version = || std::str::from_utf8(answer).ok()?.split(' ').nth(1)?.parse().ok();
    version().unwrap_or(u64::MAX)
}

/// Whether an answer is an error.
pub fn is_error(answer: &[u8]) -> bool {
    answer.ends_with(b"error")
}

/// A page in a version.
pub fn text(page: u64, version: u64) -> Bytes {
    Bytes::from(format!("{page} {version}{}", if version % 6 == 5 { " error" } else { "" }))
}

/// s(q) of a page.
pub fn key(sketching: &Sketching, page: u64) -> Sketch {
    sketching.begin(Of::Request).number(page).finish()
}

/// What is made of a replica's response. Rule C: s(r) covers s(q).
pub fn answer(sketching: &Sketching, page: u64, response: Bytes, mutant: Option<Mutant>) -> Answer<Bytes> {
    let mut pen = sketching.begin(Of::Response);
    // Without it, and with pages that read alike, an answer to one request passes for one to another.
    match mutant {
        Some(Mutant::RequestUnbound) => pen.number(version_of(&response)),
        _ => pen.field(&key(sketching, page).0).field(&response),
    };
    Answer { sketch: pen.finish(), keep: !is_error(&response), response }
}

impl Pages {
    /// A page as it is.
    pub fn read(&self, page: u64) -> Bytes {
        text(page, self.versions.get(&page).copied().unwrap_or(0))
    }

    /// A digest of everything that was written, in its order.
    pub fn digest(&self) -> u64 {
        self.digest
    }
}

impl Service for Pages {
    fn execute(&mut self, _: Sigma, request: &Bytes) -> Bytes {
        let page = page_of(request).unwrap_or_default();
        if request.starts_with(b"w") {
            let version = self.versions.entry(page).or_default();
            *version += 1;
            // FNV: it need not withstand anybody.
            let mix = |digest: u64, byte: &u8| (digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
            self.digest = request.iter().fold(self.digest.rotate_left(7) ^ *version, mix);
            if !self.written.insert(request.clone()) {
                self.twice = Some(request.clone());
            }
        }
        self.read(page)
    }
}

impl Reads for Pages {
    fn is_read(&self, request: &Bytes) -> bool {
        request.starts_with(b"r")
    }

    fn read(&self, request: &Bytes) -> Bytes {
        Pages::read(self, page_of(request).unwrap_or_default())
    }

    fn keeps(&self, _: &Bytes, response: &Bytes) -> bool {
        !is_error(response)
    }
}
