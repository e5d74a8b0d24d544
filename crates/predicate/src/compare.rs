//! Equality and order of values (R12).

use crate::eval::Fault;
use crate::packed::{self, Val};
use std::cmp::Ordering;

/// 2⁶³, the first float beyond every i64.
const BEYOND: f64 = 9_223_372_036_854_775_808.0;

/// Compares a whole number with any number exactly; `None` for NaN.
fn int_float(int: i64, float: f64) -> Option<Ordering> {
    if float.is_nan() {
        None
    } else if float >= BEYOND {
        Some(Ordering::Less)
    } else if float < -BEYOND {
        Some(Ordering::Greater)
    } else {
        let fraction = float - float.trunc();
        Some(int.cmp(&(float.trunc() as i64)).then(0.0f64.total_cmp(&(fraction + 0.0))))
    }
}

/// The whole number that a float equals, if there is one.
pub(crate) fn as_int(float: f64) -> Option<i64> {
    let whole = float.trunc() == float && (-BEYOND..BEYOND).contains(&float);
    whole.then_some(float as i64)
}

/// R12: numbers compare as numbers, null equals only null, other kinds never equal one another, NaN equals nothing.
pub(crate) fn equal(left: &Val<'_>, right: &Val<'_>) -> bool {
    match (left, right) {
        (Val::Null, Val::Null) => true,
        (Val::Bool(a), Val::Bool(b)) => a == b,
        (Val::Int(a), Val::Int(b)) | (Val::Time(a), Val::Time(b)) | (Val::Span(a), Val::Span(b)) => a == b,
        (Val::Float(a), Val::Float(b)) => a == b,
        (Val::Int(int), Val::Float(float)) | (Val::Float(float), Val::Int(int)) => {
            int_float(*int, *float) == Some(Ordering::Equal)
        }
        (Val::Str(a), Val::Str(b)) => a == b,
        (Val::Bytes(a), Val::Bytes(b)) => a == b,
        (Val::List(a), Val::List(b)) => {
            let (mut left, mut right) = (packed::items(a), packed::items(b));
            loop {
                match (left.next(), right.next()) {
                    (None, None) => return true,
                    (Some(a), Some(b)) if equal(&a, &b) => {}
                    _ => return false,
                }
            }
        }
        // Names of packed maps are sorted.
        (Val::Map(a), Val::Map(b)) => {
            let (mut left, mut right) = (packed::entries(a), packed::entries(b));
            loop {
                match (left.next(), right.next()) {
                    (None, None) => return true,
                    (Some((a, x)), Some((b, y))) if a == b => match (packed::read(x), packed::read(y)) {
                        (Some((x, _)), Some((y, _))) if equal(&x, &y) => {}
                        _ => return false,
                    },
                    _ => return false,
                }
            }
        }
        _ => false,
    }
}

/// R12: the order of two values of comparable kinds; `None` if one of them is NaN, which every comparison denies.
pub(crate) fn order(left: &Val<'_>, right: &Val<'_>) -> Result<Option<Ordering>, Fault> {
    Ok(match (left, right) {
        (Val::Bool(a), Val::Bool(b)) => Some(a.cmp(b)),
        (Val::Int(a), Val::Int(b)) | (Val::Time(a), Val::Time(b)) | (Val::Span(a), Val::Span(b)) => Some(a.cmp(b)),
        (Val::Float(a), Val::Float(b)) => a.partial_cmp(b),
        (Val::Int(int), Val::Float(float)) => int_float(*int, *float),
        (Val::Float(float), Val::Int(int)) => int_float(*int, *float).map(Ordering::reverse),
        (Val::Str(a), Val::Str(b)) => Some(a.cmp(b)),
        (Val::Bytes(a), Val::Bytes(b)) => Some(a.cmp(b)),
        _ => return Err(Fault::WrongKind),
    })
}

/// An order of all values that may stand in a sort column: null, then false and true, numbers, strings, bytes, times,
/// lengths of time. NaN, lists and maps have no place in it.
pub(crate) fn sorted(left: &Val<'_>, right: &Val<'_>) -> Ordering {
    let rank = |value: &Val<'_>| match value {
        Val::Null => 0,
        Val::Bool(_) => 1,
        Val::Int(_) | Val::Float(_) => 2,
        Val::Str(_) => 3,
        Val::Bytes(_) => 4,
        Val::Time(_) => 5,
        Val::Span(_) => 6,
        Val::List(_) | Val::Map(_) => 7,
    };
    rank(left).cmp(&rank(right)).then_with(|| order(left, right).ok().flatten().unwrap_or(Ordering::Equal))
}

/// Whether a value may stand in a sort column or be a key of a group.
pub(crate) fn sortable(value: &Val<'_>) -> Result<(), Fault> {
    match value {
        Val::Float(number) if number.is_nan() => Err(Fault::NotANumber),
        Val::List(_) | Val::Map(_) => Err(Fault::WrongKind),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_and_floats_compare_exactly() {
        let cases = [
            (i64::MAX, BEYOND, Ordering::Less),
            (i64::MIN, -BEYOND, Ordering::Equal),
            (i64::MAX - 1, 9_223_372_036_854_774_784.0, Ordering::Greater),
            (9_007_199_254_740_993, 9_007_199_254_740_992.0, Ordering::Greater),
            (3, 3.0, Ordering::Equal),
            (0, -0.0, Ordering::Equal),
            (3, 3.5, Ordering::Less),
            (-3, -3.5, Ordering::Greater),
            (0, f64::NEG_INFINITY, Ordering::Greater),
        ];
        for (int, float, wanted) in cases {
            assert_eq!(int_float(int, float), Some(wanted), "{int} {float}");
            assert_eq!(as_int(float) == Some(int), wanted == Ordering::Equal, "{int} {float}");
        }
        assert_eq!(int_float(0, f64::NAN), None);
    }
}
