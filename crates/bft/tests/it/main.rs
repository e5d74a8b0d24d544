//! The group as a whole: seats, doors and clients over TCP, on a model of the order.

mod macs;
mod modelled;
mod nonsense;
#[path = "../../../../tests/shared/ports.rs"]
mod ports;
mod prophecy;
mod seats;
mod town;
