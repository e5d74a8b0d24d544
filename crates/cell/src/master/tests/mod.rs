//! The master and the real namespace, with a log that applies what the test lets it.

mod caching;
mod harness;
mod leases;
mod locks;
mod nodes;
mod operating;
mod random;
mod takeover;

use super::Master;

impl Master {
    /// What a master without sessions should not remember.
    fn left_behind(&self) -> String {
        self.reign.as_ref().map_or_else(String::new, |reign| reign.left_behind())
    }
}

/// What 100,000 sessions cost is bounded where it is decided: a session with a handle, a watch and eight entries.
#[test]
fn a_session_is_small() {
    use super::{handles::Handle, sessions::Session};
    assert!(size_of::<Session>() <= 248, "{}", size_of::<Session>());
    assert!(size_of::<Handle>() <= 32, "{}", size_of::<Handle>());
}
