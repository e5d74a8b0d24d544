//! The public surface of the simulator.

mod claims_cell;
mod conformance;
mod kernel;
mod linearizability_cell;
mod mutants;
mod mutants_cell;
mod scenario_cell;
mod scenario_store;
