//! The protocol as others see it: pinned bytes.

mod golden;
