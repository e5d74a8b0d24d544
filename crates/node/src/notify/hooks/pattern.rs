//! Patterns of names: `*` stands for any bytes, or none.

/// Whether a pattern matches a whole name.
pub(super) fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    // Where the last star was, and how far what it stands for goes.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(byte) if *byte == name[n] => (p, n) = (p + 1, n + 1),
            _ => match star {
                Some((at, until)) => {
                    star = Some((at, until + 1));
                    (p, n) = (at + 1, until + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_anything_and_nothing_else_does() {
        for (pattern, name, expected) in [
            ("prices", "prices", true),
            ("prices", "prices/eu", false),
            ("inbox/alice/*", "inbox/alice/1", true),
            ("inbox/alice/*", "inbox/alice/", true),
            ("inbox/alice/*", "inbox/alice", false),
            ("inbox/alice/*", "inbox/bob/alice/", false),
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-b-c-", false),
            ("**x", "xx", true),
            ("a?c", "abc", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), expected, "{pattern} {name}");
        }
    }
}
