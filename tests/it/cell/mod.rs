//! The cell as users meet it: commands, locks around programs, masters that die.

mod backup;
mod files;
mod histories;
mod lock_set;
mod locks;
mod masters;
mod members;
mod metrics;
