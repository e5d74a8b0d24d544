//! Dates as HTTP writes them (RFC 9110 §5.6.7): the usual form, and the two obsolete ones that must be understood.

const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Seconds since 1970 of a date like `Sun, 06 Nov 1994 08:49:37 GMT`, `Sunday, 06-Nov-94 08:49:37 GMT` or
/// `Sun Nov  6 08:49:37 1994`.
pub(super) fn date(value: &str) -> Option<u64> {
    let words: Vec<&str> = value.split([' ', '-']).filter(|word| !word.is_empty()).collect();
    let (day, month, year, clock) = match words.as_slice() {
        [name, day, month, year, clock, "GMT"] if name.ends_with(',') => (day, month, year, clock),
        [_, month, day, clock, year] => (day, month, year, clock),
        _ => return None,
    };
    let month = MONTHS.iter().position(|name| name == month)? as u64 + 1;
    let (day, year) = (number(day)?, number(year).map(|number| full_year(number, year.len()))?);
    let mut clock = clock.split(':').map(number);
    let (hours, minutes, seconds) = (clock.next()??, clock.next()??, clock.next()??);
    let proper = (1970..=9_999).contains(&year) && (1..=31).contains(&day) && clock.next().is_none();
    if !proper || hours > 23 || minutes > 59 || seconds > 60 {
        return None;
    }
    // Years that begin in March put the leap day at the end.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 + day - 1 - 719_468;
    Some(days * 86_400 + hours * 3_600 + minutes * 60 + seconds)
}

fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// Two digits are of 1970 to 2069.
fn full_year(year: u64, digits: usize) -> u64 {
    match digits {
        2 if year < 70 => 2_000 + year,
        2 => 1_900 + year,
        _ => year,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_seconds_since_1970() {
        assert_eq!(date("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
        assert_eq!(date("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777));
        assert_eq!(date("Sunday, 06-Nov-94 08:49:37 GMT"), Some(784_111_777));
        assert_eq!(date("Sun Nov  6 08:49:37 1994"), Some(784_111_777));
        assert_eq!(date("Tue, 29 Feb 2000 12:00:00 GMT"), Some(951_825_600));
        for wrong in [
            "",
            "now",
            "Sun, 06 Nov 1994 08:49:37",
            "Sun, 06 Nov 1994 24:00:00 GMT",
            "Sun, 06 Nov 1994 08:49:37:00 GMT",
            "Sun, +6 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 994 08:49:37 GMT",
        ] {
            assert_eq!(date(wrong), None, "{wrong}");
        }
    }
}
