//! The messages of the frame protocol, as generated from `crates/wire/proto` without protoc; use them as `wire::v1`.
//!
//! They are a crate of their own because they are most of what there is to compile: tests of `wire` must not compile them a
//! second time.

use std::borrow::Cow;
use tidings_base::{Class, Error};
use v1::ErrorClass;

/// The generated messages and the gRPC service.
#[allow(missing_docs, clippy::all, clippy::pedantic)]
pub mod v1 {
    tonic::include_proto!("tidings.v1");
}

/// The compiled descriptors of all messages, for reflection and canonical JSON.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/tidings.bin"));

impl From<Error> for v1::Error {
    fn from(error: Error) -> v1::Error {
        v1::Error {
            code: error.code.into_owned(),
            class: class_to_wire(error.class) as i32,
            message: error.message,
            hint: error.hint,
            redirect: error.redirect.unwrap_or_default(),
        }
    }
}

impl From<v1::Error> for Error {
    fn from(error: v1::Error) -> Error {
        Error {
            class: class_from_wire(error.class()),
            code: Cow::Owned(error.code),
            message: error.message,
            hint: error.hint,
            redirect: Some(error.redirect).filter(|address| !address.is_empty()),
        }
    }
}

fn class_to_wire(class: Class) -> ErrorClass {
    match class {
        Class::Invalid => ErrorClass::Invalid,
        Class::NotFound => ErrorClass::NotFound,
        Class::Refused => ErrorClass::Refused,
        Class::Unreachable => ErrorClass::Unreachable,
        Class::OutcomeUnknown => ErrorClass::OutcomeUnknown,
        Class::Failed => ErrorClass::Failed,
    }
}

/// A class that a later version added is a failure to us: nothing may be concluded from it.
fn class_from_wire(class: ErrorClass) -> Class {
    match class {
        ErrorClass::Invalid => Class::Invalid,
        ErrorClass::NotFound => Class::NotFound,
        ErrorClass::Refused => Class::Refused,
        ErrorClass::Unreachable => Class::Unreachable,
        ErrorClass::OutcomeUnknown => Class::OutcomeUnknown,
        ErrorClass::Failed | ErrorClass::Unspecified => Class::Failed,
    }
}
