//! Places on Earth: distances, and the cells of a grid that a circle touches.

use crate::eval::Fault;
use crate::packed::{self, Val};

/// Mean radius of the Earth in metres.
const EARTH: f64 = 6_371_008.8;
/// The finest level of the grid: cells of about 20 metres.
pub(crate) const FINEST: u32 = 20;

/// Degrees north and east.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Place {
    pub lat: f64,
    pub lon: f64,
}

impl Place {
    /// Reads `[lat, lon]` or a map that has `lat` and `lon`.
    pub(crate) fn of(value: &Val<'_>) -> Result<Place, Fault> {
        let number = |value: Option<Val<'_>>| match value {
            Some(Val::Int(number)) => Ok(number as f64),
            Some(Val::Float(number)) => Ok(number),
            Some(_) => Err(Fault::WrongKind),
            None => Err(Fault::BadPlace),
        };
        let (lat, lon) = match value {
            Val::List(contents) => {
                let mut items = packed::items(contents);
                let both = (number(items.next())?, number(items.next())?);
                if items.next().is_some() {
                    return Err(Fault::BadPlace);
                }
                both
            }
            Val::Map(contents) => {
                let field = |name| number(packed::field(contents, name).and_then(packed::read).map(|(value, _)| value));
                (field("lat")?, field("lon")?)
            }
            _ => return Err(Fault::WrongKind),
        };
        if (-90.0..=90.0).contains(&lat) && (-180.0..=180.0).contains(&lon) {
            Ok(Place { lat, lon })
        } else {
            Err(Fault::BadPlace)
        }
    }

    /// Metres along the surface of a sphere (haversine).
    pub(crate) fn distance(self, other: Place) -> f64 {
        let (a, b) = (self.lat.to_radians(), other.lat.to_radians());
        let lat = ((b - a) / 2.0).sin();
        let lon = ((other.lon - self.lon).to_radians() / 2.0).sin();
        let h = lat * lat + a.cos() * b.cos() * lon * lon;
        2.0 * EARTH * h.clamp(0.0, 1.0).sqrt().asin()
    }

    /// The cell that this place lies in.
    pub(crate) fn cell(self, level: u32) -> Cell {
        let across = f64::from(1u32 << level);
        let last = (1u32 << level) - 1;
        let row = (((self.lat + 90.0) / 180.0 * across) as u32).min(last);
        let column = (((self.lon + 180.0) / 360.0 * across) as u32).min(last);
        Cell { level, row, column }
    }
}

/// A cell of the grid: at each level the Earth is cut into 2^level rows and as many columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    pub level: u32,
    pub row: u32,
    pub column: u32,
}

impl Cell {
    /// Where the cell's places lie on a line on which each cell of each level is one piece: its first and last number.
    pub(crate) fn on_line(self) -> (u64, u64) {
        let spread = |half: u32| {
            let mut bits = u64::from(half);
            for (shift, mask) in [
                (16, 0x0000_ffff_0000_ffff),
                (8, 0x00ff_00ff_00ff_00ff),
                (4, 0x0f0f_0f0f_0f0f_0f0f),
                (2, 0x3333_3333_3333_3333),
                (1, 0x5555_5555_5555_5555u64),
            ] {
                bits = (bits | bits << shift) & mask;
            }
            bits
        };
        let below = 2 * (FINEST - self.level);
        let first = (spread(self.row) << 1 | spread(self.column)) << below;
        (first, first + ((1u64 << below) - 1))
    }
}

/// Cells that together hold every place within `radius` metres of `centre`: at most five rows of at most five.
pub(crate) fn cover(centre: Place, radius: f64) -> Vec<Cell> {
    let whole = vec![Cell { level: 0, row: 0, column: 0 }];
    // A little more than computed, so that rounding never leaves a place out.
    let angle = radius.max(0.0) / EARTH * 1.000_001 + 1e-9;
    if !angle.is_finite() || angle >= 1.0 {
        return whole;
    }
    let lat = angle.to_degrees();
    let (south, north) = (centre.lat - lat, centre.lat + lat);
    if south <= -90.0 || north >= 90.0 {
        return whole;
    }
    let ratio = angle.sin() / centre.lat.to_radians().cos();
    if ratio >= 1.0 {
        return whole;
    }
    let lon = ratio.asin().to_degrees() * 1.000_001 + 1e-7;
    // The finest level at which the circle's box reaches over no more than four borders each way: with finer cells there
    // are more of them, with coarser ones more candidates in each.
    let share = (2.0 * lat / 180.0).max(2.0 * lon / 360.0);
    let level = (0..=FINEST).rev().find(|level| share * f64::from(1u32 << level) < 4.0).unwrap_or(0);
    let wrap = |lon: f64| (lon + 180.0).rem_euclid(360.0) - 180.0;
    let rows = Place { lat: south, lon: 0.0 }.cell(level).row..=Place { lat: north, lon: 0.0 }.cell(level).row;
    let west = Place { lat: 0.0, lon: wrap(centre.lon - lon) }.cell(level).column;
    let east = Place { lat: 0.0, lon: wrap(centre.lon + lon) }.cell(level).column;
    let across = 1u32 << level;
    let columns = (east + across - west) % across;
    // At coarse levels a box may begin and end in one column after going round the Earth.
    if level < 3 {
        return whole;
    }
    rows.flat_map(|row| (0..=columns).map(move |step| Cell { level, row, column: (west + step) % across })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn distances_are_those_of_the_sphere() {
        let zurich = Place { lat: 47.3769, lon: 8.5417 };
        let bern = Place { lat: 46.948, lon: 7.4474 };
        assert!((zurich.distance(bern) - 95_400.0).abs() < 500.0, "{}", zurich.distance(bern));
        let (east, west) = (Place { lat: 0.0, lon: 179.9 }, Place { lat: 0.0, lon: -179.9 });
        assert!(east.distance(west) < 23_000.0);
    }

    proptest! {
        #[test]
        fn a_cover_holds_every_place_of_its_circle(
            lat in -90.0f64..=90.0, lon in -180.0f64..=180.0, radius in prop_oneof![0.0f64..5_000.0, 0.0f64..3e7],
            up in -1.0f64..=1.0, right in -1.0f64..=1.0,
        ) {
            let centre = Place { lat, lon };
            let reach = radius / 111_000.0;
            let other = Place {
                lat: (lat + up * reach).clamp(-90.0, 90.0),
                lon: (lon + right * reach / lat.to_radians().cos().max(0.01) + 180.0).rem_euclid(360.0) - 180.0,
            };
            let cells = cover(centre, radius);
            prop_assert!(cells.len() <= 25);
            if centre.distance(other) <= radius {
                let held = cells.iter().any(|cell| other.cell(cell.level) == *cell);
                prop_assert!(held, "{centre:?} {radius} {other:?} {cells:?}");
                let at = other.cell(FINEST).on_line().0;
                let held = cells.iter().any(|cell| (cell.on_line().0..=cell.on_line().1).contains(&at));
                prop_assert!(held, "{centre:?} {radius} {other:?} {cells:?}");
            }
        }
    }
}
