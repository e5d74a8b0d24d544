//! Rule K, read your own writes: a session carries σ of its last write, signed, in a cookie of its own.
//!
//! It is signed so that a client cannot name a place that the group will not reach for years, and so have each of its
//! reads replicated. A token that does not verify is no session.

use crate::sigma::Sigma;
use crate::sketch::{Of, Sketching};
use tidings_base::Incarnation;

/// σ as a cookie's value.
pub fn seal(sketching: &Sketching, sigma: Sigma) -> String {
    let (life, height, index) = (sigma.incarnation().0, sigma.height(), sigma.index());
    format!("{life:x}.{height:x}.{index:x}.{}", signature(sketching, sigma))
}

/// σ of a cookie's value, if it was sealed here.
pub fn open(sketching: &Sketching, token: &str) -> Option<Sigma> {
    let mut parts = token.split('.');
    let mut number = || u64::from_str_radix(parts.next()?, 16).ok();
    let (life, height, index) = (number()?, number()?, number()?);
    let sigma = Sigma::new(Incarnation(life), height, u32::try_from(index).ok()?)?;
    let (signed, rest) = (parts.next()?, parts.next());
    (rest.is_none() && equal(signed.as_bytes(), signature(sketching, sigma).as_bytes())).then_some(sigma)
}

/// Looks at every byte, so that the time it takes does not tell how many of them were right.
fn equal(left: &[u8], right: &[u8]) -> bool {
    left.len() == right.len() && left.iter().zip(right).fold(0, |differ, (l, r)| differ | (l ^ r)) == 0
}

fn signature(sketching: &Sketching, sigma: Sigma) -> String {
    let mut pen = sketching.begin(Of::Session);
    pen.number(sigma.incarnation().0).number(sigma.height()).number(sigma.index().into());
    pen.finish().0.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_sealed_here_opens() {
        let ours = Sketching::new([1; 32]);
        let sigma = Sigma::new(Incarnation(3), 70_000, 12).unwrap();
        let token = seal(&ours, sigma);
        assert_eq!(open(&ours, &token), Some(sigma));
        assert_eq!(open(&Sketching::new([2; 32]), &token), None);
        for forged in [token.replacen("3.", "4.", 1), format!("{token}.0"), token[..token.len() - 1].into(), "".into()]
        {
            assert_eq!(open(&ours, &forged), None, "{forged}");
        }
    }
}
