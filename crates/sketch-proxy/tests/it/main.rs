//! A real proxy before real small web servers, on loopback.

mod origins;
mod serving;
mod verifying;
