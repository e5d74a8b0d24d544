//! The cell's refusals, each with a sentence that says what to do.
