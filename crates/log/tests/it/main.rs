//! The public surface of the log, held against simple models on a disk that forgets and tears.

mod crashes;
mod damage;
mod group;
mod real;
mod small;
