//! The binding as others see it, on simulated disks, clocks and network, under paused time: one seed decides a run.

mod clusters;
mod conformance;
mod disks;
mod harness;
mod leases;
mod members;
mod repeat;
mod snapshots;
