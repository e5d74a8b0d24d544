//! The deterministic simulator: virtual time, faults, invariants, scenarios.
