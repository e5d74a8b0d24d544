//! The agreed log by openraft, bound once behind our own interface.
