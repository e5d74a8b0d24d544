//! How load is spread: policies look at measured rates and say what should change. They decide nothing by themselves.

mod hottest;
mod paper;

pub use hottest::Hottest;
pub use paper::Paper;

use tidings_base::KeyHash;

/// An owner as a policy sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnerView {
    /// Its index in the table.
    pub index: u32,
    /// Requests a second.
    pub rate: f64,
    /// Its points on the ring.
    pub virtual_nodes: u32,
}

/// A range as a policy sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct RangeView {
    /// Its first point.
    pub start: KeyHash,
    /// Its last point.
    pub last: KeyHash,
    /// Who holds it.
    pub owner: u32,
    /// Requests a second, measured or estimated.
    pub rate: f64,
    /// It was moved not long ago, or is on its way, and stays where it is (dwell).
    pub settling: bool,
    /// It and the range before it are one lease of one owner: they could be one.
    pub mergeable: bool,
    /// The heaviest keys in it: point and rate.
    pub hot: Vec<(KeyHash, f64)>,
}

impl RangeView {
    /// Whether it is one point: it cannot be cut any more.
    pub fn is_point(&self) -> bool {
        self.start == self.last
    }
}

/// Everything that a policy may look at: owners that take ranges, and all ranges, in the ring's order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct View {
    /// Owners that take ranges.
    pub owners: Vec<OwnerView>,
    /// All ranges.
    pub ranges: Vec<RangeView>,
}

impl View {
    /// The mean rate of an owner.
    pub fn mean(&self) -> f64 {
        let total: f64 = self.owners.iter().map(|owner| owner.rate).sum();
        if self.owners.is_empty() { 0.0 } else { total / self.owners.len() as f64 }
    }
}

/// One thing that should change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// An owner's points on the ring become so many.
    Points {
        /// Whose.
        owner: u32,
        /// How many.
        points: u32,
    },
    /// A range begins at this point.
    Cut {
        /// Where.
        at: KeyHash,
    },
    /// The range that begins there becomes one with the range before it.
    Merge {
        /// Its first point.
        start: KeyHash,
    },
    /// The range that begins there goes to another owner and stays there, whatever the ring says.
    Move {
        /// Its first point.
        start: KeyHash,
        /// From whom.
        from: u32,
        /// To whom.
        to: u32,
        /// Its rate.
        rate: f64,
        /// It is a key that is alone on its owner from now on.
        isolates: bool,
    },
}

/// The largest rate of an owner over the mean, once steps are done.
pub fn max_over_mean(view: &View, steps: &[Step]) -> f64 {
    let mean = view.mean();
    if mean <= 0.0 {
        return 1.0;
    }
    let mut rates: Vec<(u32, f64)> = view.owners.iter().map(|owner| (owner.index, owner.rate)).collect();
    let mut shift = |owner: u32, by: f64| {
        if let Ok(at) = rates.binary_search_by_key(&owner, |(index, _)| *index) {
            rates[at].1 += by;
        }
    };
    for step in steps {
        match *step {
            Step::Move { from, to, rate, .. } => {
                shift(from, -rate);
                shift(to, rate);
            }
            // One point more or less carries what one of them carries on average.
            Step::Points { owner, points } => {
                let view = view.owners.iter().find(|view| view.index == owner);
                let each = view.map_or(0.0, |view| view.rate / f64::from(view.virtual_nodes.max(1)));
                let more = view.map_or(0.0, |view| f64::from(points) - f64::from(view.virtual_nodes));
                shift(owner, each * more);
            }
            Step::Cut { .. } | Step::Merge { .. } => {}
        }
    }
    let total: f64 = rates.iter().map(|(_, rate)| rate).sum();
    let most = rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    if total > 0.0 { most * rates.len() as f64 / total } else { 1.0 }
}

/// Spreads load. Pure: the same view gives the same steps.
pub trait Policy {
    /// What should change now, within one round's budget.
    fn plan(&self, view: &View) -> Vec<Step>;
}

/// Leaves everything where it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stay;

impl Policy for Stay {
    fn plan(&self, _view: &View) -> Vec<Step> {
        Vec::new()
    }
}

/// The policy of this name, if there is one; no name means `hottest`.
pub fn by_name(name: &str) -> Option<Box<dyn Policy>> {
    match name {
        "" | "hottest" => Some(Box::new(Hottest::default())),
        "paper" => Some(Box::new(Paper)),
        "none" => Some(Box::new(Stay)),
        _ => None,
    }
}
