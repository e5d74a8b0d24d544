//! Tables' machines together, in a small deterministic world; and the rules that hold in it.

mod client;
mod holding;
mod losses;
mod rules;
mod watching;
mod world;
mod worlds;
