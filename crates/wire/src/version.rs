//! Versions of the protocol: `Hello` says what the connecting side speaks, `Welcome` says what both speak.
//!
//! A new field or message needs no new version: unknown fields are ignored and unknown messages are answered with
//! `control.unsupported`. A version is for what cannot be told apart so, such as a changed rule.

use tidings_base::{Class, Error};

/// The newest version that this build speaks.
pub const CURRENT: u32 = 1;

/// The oldest version that this build speaks.
pub const OLDEST: u32 = 1;

/// The version for a connection whose connecting side speaks `min` to `max`: the newest that both speak.
pub fn negotiate(min: u32, max: u32) -> Result<u32, Error> {
    let common = max.min(CURRENT);
    if min <= max && common >= min.max(OLDEST) {
        return Ok(common);
    }
    let message = format!("this node speaks versions {OLDEST} to {CURRENT} of the protocol, the client {min} to {max}");
    let hint = if max < OLDEST { "Use a newer client." } else { "Use an older client, or upgrade the node." };
    Err(Error::new("control.version", Class::Invalid, message).hint(hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_common_version_is_taken() {
        assert_eq!(negotiate(1, 1), Ok(1));
        assert_eq!(negotiate(0, 7), Ok(1));
        for (min, max) in [(2, 7), (0, 0), (3, 1)] {
            assert_eq!(negotiate(min, max).unwrap_err().code, "control.version", "{min}..{max}");
        }
    }
}
