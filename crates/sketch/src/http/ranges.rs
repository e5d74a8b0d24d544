//! Which bytes of a page a client asks for (RFC 9110 §14). Where the RFC leaves a choice, the one that nginx makes.

use std::ops::Range;

/// More ranges than this are answered with the whole: many small ones cost more than it does.
const MOST: usize = 64;

/// What `Range` asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ranges {
    These(Vec<Asked>),
    /// In bytes, but not as it should be written.
    Malformed,
}

/// One range of bytes as it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    From(u64, Option<u64>),
    Last(u64),
}

/// What is to be sent of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    Whole,
    Part(Range<u64>),
    Parts(Vec<Range<u64>>),
    Unsatisfiable,
}

impl Asked {
    fn of(self, length: u64) -> Range<u64> {
        match self {
            Asked::From(first, last) => first..last.map_or(length, |last| last.saturating_add(1)).min(length),
            Asked::Last(count) => length.saturating_sub(count)..length,
        }
    }
}

impl Ranges {
    /// What a header's value asks for; other units than bytes are none of ours, which gives the whole.
    pub(super) fn parse(value: &str) -> Option<Ranges> {
        let (unit, set) = value.split_at_checked("bytes=".len())?;
        if !unit.eq_ignore_ascii_case("bytes=") || set.is_empty() {
            return None;
        }
        let all: Option<Vec<Asked>> = set.split(',').map(|one| parse_one(one.trim())).collect();
        Some(all.map_or(Ranges::Malformed, Ranges::These))
    }

    /// What they come to, of a page of this length.
    pub(super) fn of(&self, length: u64) -> Cut {
        let Ranges::These(asked) = self else { return Cut::Unsatisfiable };
        if asked.len() > MOST {
            return Cut::Whole;
        }
        let (mut parts, mut total) = (Vec::new(), 0u64);
        for part in asked.iter().map(|one| one.of(length)) {
            match part.start < part.end {
                true => {
                    total = total.saturating_add(part.end - part.start);
                    parts.push(part);
                }
                // All of an empty page.
                false if part.start == 0 => return Cut::Whole,
                false => {}
            }
        }
        match parts.len() {
            0 => Cut::Unsatisfiable,
            // Ranges that overlap so much that the whole is shorter.
            _ if total > length => Cut::Whole,
            1 => Cut::Part(parts.remove(0)),
            _ => Cut::Parts(parts),
        }
    }
}

fn parse_one(text: &str) -> Option<Asked> {
    let (first, last) = text.split_once('-')?;
    // A number alone: `parse` would take a sign.
    let number = |text: &str| match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true => text.parse::<u64>().ok(),
        false => None,
    };
    match (first.trim(), last.trim()) {
        ("", last) => Some(Asked::Last(number(last)?)),
        (first, "") => Some(Asked::From(number(first)?, None)),
        (first, last) => Some(Asked::From(number(first)?, Some(number(last)?))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_they_are_written() {
        let these = |asked: &[Asked]| Some(Ranges::These(asked.to_vec()));
        assert_eq!(Ranges::parse("bytes=0-4"), these(&[Asked::From(0, Some(4))]));
        assert_eq!(Ranges::parse("Bytes=5-, -5"), these(&[Asked::From(5, None), Asked::Last(5)]));
        for other in ["lines=0-4", "bytes=", "bytes", ""] {
            assert_eq!(Ranges::parse(other), None, "{other}");
        }
        for wrong in ["bytes=x-", "bytes=-", "bytes=1", "bytes=0-1,", "bytes=+1-2", "bytes=0-99999999999999999999"] {
            assert_eq!(Ranges::parse(wrong), Some(Ranges::Malformed), "{wrong}");
        }
    }

    #[test]
    fn ranges_are_cut_out_of_what_there_is() {
        let cut = |value: &str, length| Ranges::parse(value).expect("it is in bytes").of(length);
        assert_eq!(cut("bytes=2-4", 10), Cut::Part(2..5));
        assert_eq!(cut("bytes=0-1, 4-5", 10), Cut::Parts(vec![0..2, 4..6]));
        assert_eq!(
            cut("bytes=4-5, 0-1", 10),
            Cut::Parts(vec![4..6, 0..2]),
            "in the order in which they were asked for"
        );
        assert_eq!(cut("bytes=0-1, 40-50", 10), Cut::Part(0..2), "one of them is there");
        assert_eq!(cut("bytes=0-8, 1-9", 10), Cut::Whole, "more than there is");
        assert_eq!(cut("bytes=0-", 0), Cut::Whole);
        for none in ["bytes=10-", "bytes=4-0", "bytes=-0", "bytes=x", "bytes=10-11, 20-21"] {
            assert_eq!(cut(none, 10), Cut::Unsatisfiable, "{none}");
        }
        let many = (0..=MOST).map(|at| format!("{at}-{at}")).collect::<Vec<_>>().join(",");
        assert_eq!(cut(&format!("bytes={many}"), 1_000), Cut::Whole);
    }
}
