//! Tables' machines together, in a small deterministic world; and the rules that hold in it.

mod altering;
mod away;
mod client;
mod collecting;
mod copies;
mod devices;
mod dropping;
mod followers;
mod hard;
#[path = "../../../sim/src/checkers/history.rs"]
mod history;
mod holding;
mod leaving;
mod losses;
mod partitions;
mod rules;
mod slow;
mod strangers;
mod veiling;
mod watching;
mod world;
mod worlds;
