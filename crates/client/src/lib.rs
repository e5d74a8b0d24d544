//! The connection: one stream to any of several nodes, multiplexed, reconnecting.
