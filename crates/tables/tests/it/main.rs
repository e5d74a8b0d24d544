//! Tables' machines together, in a small deterministic world; and the rules that hold in it.

mod client;
mod rules;
mod world;
mod worlds;
