//! Store and feed: traits, merge rules, the deterministic state, the front machine, the conformance suite.
