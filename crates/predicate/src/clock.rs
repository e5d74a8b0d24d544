//! Times and lengths of time as text: RFC 3339, and `1h30m`.

use crate::eval::Fault;

const SECOND: i64 = 1_000_000;
/// The first and the last moment that CEL's timestamps can name, in microseconds since 1970.
const FIRST: i64 = -62_135_596_800 * SECOND;
const LAST: i64 = 253_402_300_799 * SECOND + 999_999;

/// Microseconds since 1970 that a timestamp may have.
pub(crate) fn bounded(micros: i64) -> Result<i64, Fault> {
    if (FIRST..=LAST).contains(&micros) { Ok(micros) } else { Err(Fault::Overflow) }
}

/// A time from seconds since 1970, as CEL takes whole numbers.
pub(crate) fn from_seconds(seconds: i64) -> Result<i64, Fault> {
    bounded(seconds.checked_mul(SECOND).ok_or(Fault::Overflow)?)
}

/// Reads `2026-11-15T12:00:00.5Z`; digits beyond microseconds are dropped.
pub(crate) fn timestamp(text: &str) -> Result<i64, Fault> {
    read_timestamp(text.as_bytes()).ok_or(Fault::BadTime).and_then(bounded)
}

fn digits(text: &[u8], from: usize, length: usize) -> Option<i64> {
    let digits = text.get(from..from + length)?;
    digits.iter().try_fold(0, |number, digit| digit.is_ascii_digit().then(|| number * 10 + i64::from(digit - b'0')))
}

fn read_timestamp(text: &[u8]) -> Option<i64> {
    let marks = [(4, b'-'), (7, b'-'), (13, b':'), (16, b':')];
    if marks.iter().any(|(at, mark)| text.get(*at) != Some(mark)) || !matches!(text.get(10)?, b'T' | b't') {
        return None;
    }
    let (year, month, day) = (digits(text, 0, 4)?, digits(text, 5, 2)?, digits(text, 8, 2)?);
    let (hour, minute, second) = (digits(text, 11, 2)?, digits(text, 14, 2)?, digits(text, 17, 2)?);
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        2 => 28 + i64::from(leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    if year == 0 || day == 0 || day > days || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let mut zone = 19;
    let mut micros = 0;
    if text.get(zone) == Some(&b'.') {
        let fraction = text[zone + 1..].iter().take_while(|digit| digit.is_ascii_digit()).count();
        if fraction == 0 || fraction > 9 {
            return None;
        }
        for place in 0..6 {
            micros = micros * 10 + if place < fraction { digits(text, zone + 1 + place, 1)? } else { 0 };
        }
        zone += 1 + fraction;
    }
    let offset = match text.get(zone)? {
        b'Z' | b'z' if text.len() == zone + 1 => 0,
        sign @ (b'+' | b'-') if text.len() == zone + 6 && text[zone + 3] == b':' => {
            let (hours, minutes) = (digits(text, zone + 1, 2)?, digits(text, zone + 4, 2)?);
            if hours > 23 || minutes > 59 {
                return None;
            }
            let minutes = hours * 60 + minutes;
            if *sign == b'+' { minutes } else { -minutes }
        }
        _ => return None,
    };
    let seconds = days_since_1970(year, month, day) * 86_400 + hour * 3_600 + (minute - offset) * 60 + second;
    Some(seconds * SECOND + micros)
}

/// Days from 1970-01-01 in the Gregorian calendar, with years that begin in March so that leap days come last.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// Reads `1h30m`, `-1.5s`, `250ms`; what is below a microsecond is dropped.
pub(crate) fn duration(text: &str) -> Result<i64, Fault> {
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Ok(0);
    }
    let mut nanos = 0i128;
    if rest.is_empty() {
        return Err(Fault::BadTime);
    }
    while !rest.is_empty() {
        let (part, after) = read_part(rest).ok_or(Fault::BadTime)?;
        nanos = nanos.checked_add(part).ok_or(Fault::Overflow)?;
        rest = after;
    }
    let micros = nanos / 1_000;
    i64::try_from(if negative { -micros } else { micros }).map_err(|_| Fault::Overflow)
}

/// One number with its unit, in nanoseconds.
fn read_part(text: &str) -> Option<(i128, &str)> {
    let number = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, rest) = text.split_at(number);
    let unit = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
    let (unit, rest) = rest.split_at(unit);
    let nanos: i128 = match unit {
        "h" => 3_600_000_000_000,
        "m" => 60_000_000_000,
        "s" => 1_000_000_000,
        "ms" => 1_000_000,
        "us" | "µs" | "μs" => 1_000,
        "ns" => 1,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || whole.len() > 18 || fraction.len() > 18 || fraction.contains('.') {
        return None;
    }
    let parse = |digits: &str| if digits.is_empty() { Some(0) } else { digits.parse::<i128>().ok() };
    let scale = 10i128.pow(fraction.len() as u32);
    Some((parse(whole)? * nanos + parse(fraction)? * nanos / scale, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_read_as_rfc_3339_has_them() {
        assert_eq!(timestamp("1970-01-01T00:00:00Z"), Ok(0));
        assert_eq!(timestamp("2000-03-01T00:00:00.25Z"), Ok(951_868_800_250_000));
        assert_eq!(timestamp("2026-11-15T13:00:00+01:00"), timestamp("2026-11-15T12:00:00Z"));
        assert_eq!(timestamp("0001-01-01T00:00:00Z"), Ok(FIRST));
        assert_eq!(timestamp("9999-12-31T23:59:59.999999Z"), Ok(LAST));
        assert_eq!(timestamp("0001-01-01T00:00:00+01:00"), Err(Fault::Overflow));
        for bad in [
            "",
            "2026-11-15",
            "2026-02-29T00:00:00Z",
            "2026-01-01T24:00:00Z",
            "2026-01-01T00:00:00",
            "é026-01-01T00:00:00Z",
            "2026-01-01T00:00:00.Z",
            "2026-01-01T00:00:00+1:00",
        ] {
            assert_eq!(timestamp(bad), Err(Fault::BadTime), "{bad}");
        }
    }

    #[test]
    fn durations_are_read_with_their_units() {
        assert_eq!(duration("1h30m"), Ok(5_400 * SECOND));
        assert_eq!(duration("-1.5s"), Ok(-1_500_000));
        assert_eq!(duration("250ms"), Ok(250_000));
        assert_eq!(duration("0"), Ok(0));
        for bad in ["", "-", "5", "1.2.3s", "s", ".s", "1y", "1h 2m"] {
            assert_eq!(duration(bad), Err(Fault::BadTime), "{bad}");
        }
        assert_eq!(duration("999999999999999999h"), Err(Fault::Overflow));
    }
}
