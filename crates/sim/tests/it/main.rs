//! The public surface of the simulator.

mod claims_cell;
mod claims_notify;
mod claims_placement;
mod claims_sketch;
mod claims_tables;
mod conformance;
mod kernel;
mod linearizability_cell;
mod mutants;
mod mutants_cell;
mod mutants_notify;
mod mutants_placement;
mod mutants_sketch;
mod mutants_tables;
#[path = "../../../../tests/shared/register.rs"]
mod register;
mod scenario_cell;
mod scenario_notify;
mod scenario_placement;
mod scenario_sketch;
mod scenario_store;
mod scenario_tables;
mod scenario_wire;
mod units;
