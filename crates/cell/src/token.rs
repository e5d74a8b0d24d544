//! Handle tokens (MAC) and sequencers (signature), under keys that the cell has agreed on.
