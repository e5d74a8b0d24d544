//! A replica whose disk kept what it promised starts again, whatever it was interrupted in. Chaos knows which disks it
//! damaged beyond their promise; a start that is refused on any other breaks the claim.

/// The claim's name; checks are starts.
pub const NAME: &str = "sound_disks_are_accepted";
