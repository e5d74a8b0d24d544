//! Checksummed log segments with group commit and a strict recovery check.
