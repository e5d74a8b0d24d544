//! Numbers that stand for values: equal values have equal ones, and along an order they do not go back.

use crate::compare::as_int;
use crate::packed::{self, Val};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A power of two: multiplying by it is exact.
const SCALE: u32 = 1 << 20;
/// Two to the 90th, beyond every scaled i64.
const END: f64 = 1_237_940_039_285_380_274_899_124_224.0;

/// Makes one number of two, so that neither can be chosen to meet another's.
pub(crate) fn mix(left: u64, right: u64) -> u64 {
    let product = u128::from(left ^ 0x9e37_79b9_7f4a_7c15) * u128::from(right.rotate_left(32) ^ 0xd6e8_feb8_6659_fd93);
    (product as u64 ^ (product >> 64) as u64).wrapping_add(left.rotate_left(17) ^ right)
}

/// The same for all values that are equal (R12); none for what equals nothing.
pub(crate) fn hash(value: &Val<'_>, seed: u64) -> Option<u64> {
    let number = |kind: u64, number: u64| Some(mix(mix(seed, kind), number));
    match value {
        Val::Null => number(0, 0),
        Val::Bool(yes) => number(1, u64::from(*yes)),
        Val::Int(int) => number(2, *int as u64),
        Val::Float(float) if float.is_nan() => None,
        Val::Float(float) => match as_int(*float) {
            Some(int) => number(2, int as u64),
            None => number(3, float.to_bits()),
        },
        Val::Str(text) => Some(hash_text(text.as_bytes(), seed)),
        Val::Bytes(bytes) => Some(xxh3_64_with_seed(bytes, mix(seed, 5))),
        Val::Time(micros) => number(6, *micros as u64),
        Val::Span(micros) => number(7, *micros as u64),
        Val::List(contents) => {
            packed::items(contents).try_fold(mix(seed, 8), |sum, item| Some(mix(sum, hash(&item, seed)?)))
        }
        Val::Map(contents) => packed::entries(contents).try_fold(mix(seed, 9), |sum, (name, value)| {
            let (value, _) = packed::read(value)?;
            Some(mix(mix(sum, hash_text(name, seed)), hash(&value, seed)?))
        }),
    }
}

pub(crate) fn hash_text(text: &[u8], seed: u64) -> u64 {
    xxh3_64_with_seed(text, mix(seed, 4))
}

/// The numbers of all that `in` finds in a value.
pub(crate) fn members(holder: &Val<'_>, seed: u64) -> Option<Vec<u64>> {
    match holder {
        Val::List(contents) => Some(packed::items(contents).filter_map(|item| hash(&item, seed)).collect()),
        Val::Map(contents) => Some(packed::entries(contents).map(|(name, _)| hash_text(name, seed)).collect()),
        _ => None,
    }
}

/// The line that a value lies on, with all it can be compared with, and where: a greater value never lies before a
/// smaller one, but may lie at the same place.
pub(crate) fn lane(value: &Val<'_>) -> Option<(u8, u64)> {
    let signed = |number: i64| number as u64 ^ 1 << 63;
    let float = |number: f64| {
        let bits = (number + 0.0).to_bits();
        if bits >> 63 == 1 { !bits } else { bits | 1 << 63 }
    };
    match value {
        Val::Bool(yes) => Some((0, u64::from(*yes))),
        Val::Int(int) => Some((1, float(*int as f64))),
        Val::Float(number) if number.is_nan() => None,
        Val::Float(number) => Some((1, float(*number))),
        Val::Str(text) => Some((2, first_bytes(text.as_bytes(), 0))),
        Val::Bytes(bytes) => Some((3, first_bytes(bytes, 0))),
        Val::Time(micros) => Some((4, signed(*micros))),
        Val::Span(micros) => Some((5, signed(*micros))),
        Val::Null | Val::List(_) | Val::Map(_) => None,
    }
}

/// Where a line begins and ends: a bound there, or beyond, leaves out nothing that there is.
pub(crate) fn ends(line: u8) -> [u64; 2] {
    let of = |value: &Val<'_>| lane(value).map_or(0, |(_, at)| at);
    match line {
        0 => [0, 1],
        1 => [of(&Val::Int(i64::MIN)), of(&Val::Int(i64::MAX))],
        2 => [0, of(&Val::Str("\u{10ffff}".into()))],
        3 => [0, of(&Val::Bytes([0xff].as_slice().into()))],
        _ => [0, u64::MAX],
    }
}

/// The same on a line along which numbers keep their distances, so that intervals of one width are of one size.
pub(crate) fn scale(value: &Val<'_>) -> Option<(u8, i128)> {
    let (line, at) = lane(value)?;
    let at = match value {
        // Finer than a millionth; what is beyond every i64 lies at the ends.
        Val::Int(int) => i128::from(*int) << SCALE.ilog2(),
        Val::Float(float) => (float * f64::from(SCALE)).clamp(-END, END) as i128,
        _ => i128::from(at),
    };
    Some((line, at))
}

/// The places on the line of texts of all that begin with `prefix`.
pub(crate) fn prefix_lane(prefix: &str) -> [(u8, u64); 2] {
    [(2, first_bytes(prefix.as_bytes(), 0)), (2, first_bytes(prefix.as_bytes(), 0xff))]
}

fn first_bytes(bytes: &[u8], fill: u8) -> u64 {
    let mut first = [fill; 8];
    let length = bytes.len().min(8);
    first[..length].copy_from_slice(&bytes[..length]);
    u64::from_be_bytes(first)
}
