//! The mix of subscriptions that the index is measured with, fixed before it was built, and records that meet few of them.
//!
//! A quarter each: equality, range, place, and a hot equality that everybody shares with something else that differs.
//! However many subscriptions there are, a record is for about seven: one topic, two ranges, two places, one seller and
//! one threshold.

use crate::packed::{BadData, Packed};
use crate::value::{Key, Value};
use tidings_base::Seeded;

/// Prices are below this.
const PRICES: f64 = 1_000_000.0;
/// Metres within which somebody wants to know.
const RADIUS: f64 = 1_000.0;
const METRES_A_DEGREE: f64 = 111_195.0;

/// A stream of subscriptions and records.
#[derive(Clone, Debug)]
pub struct Mix {
    random: Seeded,
    quarter: f64,
}

/// One subscription of the mix.
#[derive(Clone, Debug)]
pub struct Subscription {
    /// Its predicate.
    pub text: String,
    /// Its reader's data.
    pub reader: Packed,
    /// Its reader's claims.
    pub claims: Packed,
}

impl Mix {
    /// The mix for this many subscriptions.
    pub fn new(subscriptions: u64, seed: u64) -> Mix {
        Mix { random: Seeded::new(seed), quarter: (subscriptions.max(4) / 4) as f64 }
    }

    fn share(&mut self) -> f64 {
        self.random.below(1 << 53) as f64 / (1u64 << 53) as f64
    }

    fn one_of(&mut self, many: f64) -> u64 {
        self.random.below(many.max(1.0) as u64)
    }

    /// Somewhere in an area so large that two circles lie over each of its places.
    fn place(&mut self) -> Value {
        let side = (self.quarter * std::f64::consts::PI * RADIUS * RADIUS / 2.0).sqrt() / METRES_A_DEGREE;
        let lat = (self.share() - 0.5) * side;
        Value::from(vec![lat, (self.share() - 0.5) * side])
    }

    /// The subscription of this number.
    pub fn subscription(&mut self, number: u64) -> Result<Subscription, BadData> {
        let text = match number % 4 {
            0 => format!("topic == 'topic-{}'", self.one_of(self.quarter)),
            1 => {
                let low = self.share() * PRICES;
                format!("price >= {low:?} && price < {:?}", low + 2.0 * PRICES / self.quarter)
            }
            2 => format!("distance(loc, reader.loc) < {RADIUS:?}"),
            _ if number % 8 == 3 => {
                format!("kind == 'sale' && seller == 'seller-{}'", self.one_of(self.quarter / 2.0))
            }
            _ => format!("kind == 'sale' && discount > {:?}", self.share()),
        };
        let reader = Packed::columns([("loc", self.place())])?;
        let claims = Packed::columns([("sub", Value::String(format!("user-{number}")))])?;
        Ok(Subscription { text, reader, claims })
    }

    /// A record that is for about seven subscriptions.
    pub fn record(&mut self) -> Result<(Key, Packed), BadData> {
        let number = self.one_of(1e12);
        let columns = [
            ("topic", Value::String(format!("topic-{}", self.one_of(self.quarter)))),
            ("price", Value::Float(self.share() * PRICES)),
            ("loc", self.place()),
            ("kind", Value::from("sale")),
            ("seller", Value::String(format!("seller-{}", self.one_of(self.quarter / 2.0)))),
            ("discount", Value::Float(self.share() * 4.0 / self.quarter)),
            ("title", Value::from("something that is for sale")),
        ];
        Ok((Key::String(format!("offer-{number}")), Packed::columns(columns)?))
    }
}
