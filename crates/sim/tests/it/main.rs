//! The public surface of the simulator.

mod conformance;
mod kernel;
mod mutants;
mod scenario_store;
