//! Durations as people write them: `"12s"`, `"250ms"`.

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A duration in a configuration file or flag: a whole number and one of the units `ms`, `s`, `m`, `h`, `d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub Duration);

const EXPECTED: &str = "a duration such as \"250ms\", \"12s\", \"5m\", \"1h\" or \"7d\"";

/// The units with their length in milliseconds, longest first so that printing finds the shortest text.
const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

impl Time {
    /// A number of seconds.
    pub const fn seconds(n: u64) -> Time {
        Time(Duration::from_secs(n))
    }

    /// A number of milliseconds.
    pub const fn millis(n: u64) -> Time {
        Time(Duration::from_millis(n))
    }
}

impl From<Time> for Duration {
    fn from(time: Time) -> Duration {
        time.0
    }
}

impl FromStr for Time {
    type Err = String;

    fn from_str(text: &str) -> Result<Time, String> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let unit = UNITS.iter().find(|(name, _)| *name == &text[digits..]);
        let millis = text[..digits].parse::<u64>().ok().zip(unit).and_then(|(n, (_, unit))| n.checked_mul(*unit));
        millis
            .map(Time::millis)
            .ok_or_else(|| format!("expected {EXPECTED}, found \"{}\"", crate::principal::clip(text)))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX);
        let whole = UNITS.iter().find(|(_, unit)| millis >= *unit && millis % unit == 0);
        let (name, unit) = whole.copied().unwrap_or(("ms", 1));
        write!(f, "{}{name}", millis / unit)
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Time, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Time;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(EXPECTED)
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Time, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_printed_as_people_write_them() {
        for (text, millis) in [("250ms", 250), ("12s", 12_000), ("5m", 300_000), ("1h", 3_600_000), ("7d", 604_800_000)]
        {
            let time: Time = text.parse().unwrap();
            assert_eq!((time, time.to_string().as_str()), (Time::millis(millis), text));
        }
        assert_eq!(Time::millis(0).to_string(), "0ms");
        for bad in ["", "12", "s", "-1s", "1.5s", "12 s", "99999999999999999999s", "18446744073709551615d", "1ß"] {
            assert!(bad.parse::<Time>().unwrap_err().contains("expected a duration such as"), "{bad}");
        }
    }
}
