//! The applied state of store and feed kept in fjall.
