//! Any bytes decode to a frame or to a named error, in both forms. The property tests of `codec.rs` check the same.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tidings_wire::codec::exercise(data));
