//! The public surface of the simulator.

mod conformance;
mod kernel;
