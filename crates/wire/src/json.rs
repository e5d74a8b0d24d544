//! The canonical JSON form of every message, as Protobuf's own mapping defines it: names in lowerCamelCase, 64-bit
//! numbers as strings, bytes in base64, default values left out. Unknown fields are ignored, here as in the binary form.

use crate::{DESCRIPTORS, error, limits, v1::Frame};
use prost::{Message, Name};
use prost_reflect::{DescriptorPool, DeserializeOptions, DynamicMessage, MessageDescriptor, SerializeOptions};
use std::sync::LazyLock;
use tidings_base::Error;

static POOL: LazyLock<DescriptorPool> =
    LazyLock::new(|| DescriptorPool::decode(DESCRIPTORS).expect("the descriptors were compiled with this crate"));

static FRAME: LazyLock<MessageDescriptor> = LazyLock::new(descriptor::<Frame>);

/// The descriptors of all messages.
pub fn pool() -> &'static DescriptorPool {
    &POOL
}

/// The JSON form of a frame.
pub fn frame_to_string(frame: &Frame) -> String {
    write(FRAME.clone(), frame)
}

/// Reads a frame from its JSON form, of at most `max_len` bytes.
pub fn frame_from_str(text: &str, max_len: usize) -> Result<Frame, Error> {
    read(FRAME.clone(), text, max_len)
}

/// The JSON form of any message of ours.
pub fn to_string<M: Message + Name>(message: &M) -> String {
    write(descriptor::<M>(), message)
}

/// The JSON form of any message of ours, as a value.
pub fn to_value<M: Message + Name>(message: &M) -> serde_json::Value {
    let dynamic = transcode(descriptor::<M>(), message);
    let written = dynamic.serialize_with_options(serde_json::value::Serializer, &SerializeOptions::new());
    written.expect("a message of ours has a JSON form")
}

/// Reads any message of ours from its JSON form, of at most `max_len` bytes.
pub fn from_str<M: Message + Name + Default>(text: &str, max_len: usize) -> Result<M, Error> {
    read(descriptor::<M>(), text, max_len)
}

fn descriptor<M: Name>() -> MessageDescriptor {
    POOL.get_message_by_name(&M::full_name()).expect("every generated message has a descriptor")
}

fn transcode(descriptor: MessageDescriptor, message: &impl Message) -> DynamicMessage {
    let mut dynamic = DynamicMessage::new(descriptor);
    dynamic.transcode_from(message).expect("a generated message matches its descriptor");
    dynamic
}

fn write(descriptor: MessageDescriptor, message: &impl Message) -> String {
    let dynamic = transcode(descriptor, message);
    let mut text = Vec::with_capacity(message.encoded_len() * limits::JSON_FACTOR + 64);
    dynamic
        .serialize_with_options(&mut serde_json::Serializer::new(&mut text), &SerializeOptions::new())
        .expect("a message of ours has a JSON form");
    String::from_utf8(text).expect("JSON is UTF-8")
}

fn read<M: Message + Default>(descriptor: MessageDescriptor, text: &str, max_len: usize) -> Result<M, Error> {
    if text.len() > max_len {
        return Err(error::too_large("the JSON text", text.len() as u64, max_len as u64));
    }
    check_depth(text)?;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let options = DeserializeOptions::new().deny_unknown_fields(false);
    let dynamic =
        DynamicMessage::deserialize_with_options(descriptor, &mut deserializer, &options).map_err(error::malformed)?;
    deserializer.end().map_err(error::malformed)?;
    dynamic.transcode_to().map_err(error::malformed)
}

/// Refuses text that nests deeper than any message of ours, before anything is built from it.
fn check_depth(text: &str) -> Result<(), Error> {
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => {
                depth += 1;
                if depth > limits::JSON_DEPTH {
                    return Err(error::malformed(format_args!("it nests deeper than {} levels", limits::JSON_DEPTH)));
                }
            }
            b'}' | b']' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::{self, frame::Body, store_message};
    use bytes::Bytes;

    fn get() -> Frame {
        let key = v1::RowKey { group: Bytes::from_static(b"g"), row: Bytes::from_static(b"\xff\x00") };
        let get = v1::Get { key: Some(key), columns: vec![] };
        let store = v1::StoreMessage { message: Some(store_message::Message::Get(get)) };
        Frame { op: u64::MAX, more: false, body: Some(Body::Store(store)) }
    }

    #[test]
    fn numbers_are_strings_and_bytes_are_base64() {
        let text = frame_to_string(&get());
        assert_eq!(text, r#"{"op":"18446744073709551615","store":{"get":{"key":{"group":"Zw==","row":"/wA="}}}}"#);
        assert_eq!(frame_from_str(&text, 1_000), Ok(get()));
        assert_eq!(to_value(&get()).to_string(), text);
    }

    #[test]
    fn liberal_forms_of_the_standard_are_read() {
        // The original field names, numbers as numbers, URL-safe base64 without padding, and null for a default.
        let text = r#"{"op":18446744073709551615,"more":null,"store":{"get":{"key":{"group":"Zw","row":"_wA"}}}}"#;
        assert_eq!(frame_from_str(text, 1_000), Ok(get()));
    }

    #[test]
    fn unknown_fields_are_ignored_and_unknown_bodies_stay_empty() {
        let frame = frame_from_str(r#"{"op":"3","later":{"a":[1,{"b":null}]},"more":true}"#, 1_000).unwrap();
        assert_eq!(frame, Frame { op: 3, more: true, body: None });
        let frame = frame_from_str(r#"{"op":"3","store":{"later":{}}}"#, 1_000).unwrap();
        assert_eq!(frame.body, Some(Body::Store(v1::StoreMessage { message: None })));
    }

    #[test]
    fn bad_text_is_named() {
        let deep = format!("{}{}", r#"{"x":"#.repeat(10_000), "}".repeat(10_000));
        for bad in ["", "{", "[]", "null", "{}{}", r#"{"op":-1}"#, r#"{"op":"x"}"#, r#"{"store":3}"#, &deep] {
            assert_eq!(frame_from_str(bad, 1 << 20).unwrap_err().code, "control.malformed", "{bad:.40}");
        }
        assert_eq!(frame_from_str(&" ".repeat(11), 10).unwrap_err().code, "control.too_large");
    }
}
