//! The vectors in `golden/` pin the bytes and the JSON of every message that travels or lies on a disk.
//!
//! A vector is never changed or removed: what an older version wrote must be read for ever. A new field or message
//! needs new vectors, and this test fails until they are there; `TIDINGS_BLESS=1 cargo test -p tidings-wire golden`
//! appends them.

use prost::{Message, Name};
use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, ReflectMessage, Value};
use serde_json::json;
use std::collections::BTreeSet;
use std::path::PathBuf;
use tidings_wire::{json as wire_json, v1};

/// What is pinned, each in a file of its own: frames by part, and what lies on disks.
const PINNED: [(&str, Check, Samples); 33] = [
    ("control", check::<v1::Frame>, || frames("control")),
    ("cell", check::<v1::Frame>, || frames("cell")),
    ("placement", check::<v1::Frame>, || frames("placement")),
    ("notify", check::<v1::Frame>, || frames("notify")),
    ("tables", check::<v1::Frame>, || frames("tables")),
    // Choices within choices, which the frames above reach by turns alone.
    ("record_conflict", check::<v1::RecordConflict>, || variants::<v1::RecordConflict>()),
    ("live_from", check::<v1::LiveFrom>, || variants::<v1::LiveFrom>()),
    ("live_frame", check::<v1::LiveFrame>, || variants::<v1::LiveFrame>()),
    ("publication", check::<v1::Publication>, || variants::<v1::Publication>()),
    ("notify_token_body", check::<v1::NotifyTokenBody>, || variants::<v1::NotifyTokenBody>()),
    ("sealed_notify_token", check::<v1::SealedNotifyToken>, || variants::<v1::SealedNotifyToken>()),
    ("notify_client_state", check::<v1::NotifyClientState>, || variants::<v1::NotifyClientState>()),
    ("store", check::<v1::Frame>, || frames("store")),
    ("feed", check::<v1::Frame>, || frames("feed")),
    ("raft", check::<v1::Frame>, || frames("raft")),
    ("admin", check::<v1::Frame>, || frames("admin")),
    ("cell_command", check::<v1::CellCommand>, || variants::<v1::CellCommand>()),
    ("cell_result", check::<v1::CellResult>, || variants::<v1::CellResult>()),
    ("cell_record", check::<v1::CellRecord>, || variants::<v1::CellRecord>()),
    ("cell_backup_nodes", check::<v1::CellBackupNodes>, || variants::<v1::CellBackupNodes>()),
    ("sequencer_body", check::<v1::SequencerBody>, || variants::<v1::SequencerBody>()),
    ("signed_sequencer", check::<v1::SignedSequencer>, || variants::<v1::SignedSequencer>()),
    ("handle_body", check::<v1::HandleBody>, || variants::<v1::HandleBody>()),
    ("sealed_handle", check::<v1::SealedHandle>, || variants::<v1::SealedHandle>()),
    ("cell_kept_result", check::<v1::CellKeptResult>, || variants::<v1::CellKeptResult>()),
    ("placement_meta", check::<v1::PlacementMeta>, || variants::<v1::PlacementMeta>()),
    ("placement_owners", check::<v1::PlacementOwners>, || variants::<v1::PlacementOwners>()),
    ("placement_segment", check::<v1::PlacementSegment>, || variants::<v1::PlacementSegment>()),
    ("store_command", check::<v1::StoreCommand>, || variants::<v1::StoreCommand>()),
    ("store_result", check::<v1::StoreResult>, || variants::<v1::StoreResult>()),
    ("feed_topic", check::<v1::FeedTopic>, || variants::<v1::FeedTopic>()),
    ("raft_entry", check::<v1::RaftEntry>, || variants::<v1::RaftEntry>()),
    ("raft_position", check::<v1::RaftPosition>, || variants::<v1::RaftPosition>()),
];

type Check = fn(name: &str, bytes: &[u8], text: &serde_json::Value);
type Samples = fn() -> Vec<(String, DynamicMessage)>;

#[test]
fn golden_vectors_pin_every_message_and_cover_every_field() {
    for (file, check, samples) in PINNED {
        let mut vectors = load(file);
        for vector in &vectors {
            check(&vector.name, &vector.binary, &vector.json);
        }
        let missing: Vec<Vector> = samples()
            .into_iter()
            .map(|(name, sample)| Vector::of(name, &sample))
            .filter(|sample| !vectors.iter().any(|vector| vector.binary == sample.binary))
            .collect();
        if missing.is_empty() {
            continue;
        }
        let names: Vec<&str> = missing.iter().map(|vector| vector.name.as_str()).collect();
        assert!(
            std::env::var_os("TIDINGS_BLESS").is_some(),
            "golden/{file}.json lacks vectors for {names:?}: run `TIDINGS_BLESS=1 cargo test -p tidings-wire golden`"
        );
        vectors.extend(missing);
        save(file, &vectors);
    }
}

#[test]
fn every_part_of_a_frame_has_a_file() {
    let frame = descriptor("tidings.v1.Frame");
    let body = frame.oneofs().find(|oneof| oneof.name() == "body").unwrap();
    for field in body.fields() {
        assert!(PINNED.iter().any(|(file, ..)| *file == field.name()), "{} is not pinned", field.name());
    }
}

/// One pinned message.
struct Vector {
    name: String,
    binary: Vec<u8>,
    json: serde_json::Value,
}

impl Vector {
    fn of(name: String, sample: &DynamicMessage) -> Vector {
        Vector { name, binary: sample.encode_to_vec(), json: serde_json::to_value(sample).unwrap() }
    }
}

/// The binary form and the JSON form are the same message, and each is written exactly as pinned.
fn check<M: Message + Name + Default>(name: &str, bytes: &[u8], text: &serde_json::Value) {
    let message = M::decode(bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(hex(&message.encode_to_vec()), hex(bytes), "{name}: its bytes changed");
    assert_eq!(&wire_json::to_value(&message), text, "{name}: its JSON changed");
    let read: M = wire_json::from_str(&text.to_string(), usize::MAX).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(hex(&read.encode_to_vec()), hex(bytes), "{name}: its JSON is read as something else");
}

/// A frame for each message of a part, with every field of it set.
fn frames(part: &str) -> Vec<(String, DynamicMessage)> {
    let frame = descriptor("tidings.v1.Frame");
    let body = frame.fields().find(|field| field.name() == part).unwrap();
    let Kind::Message(message) = body.kind() else { panic!("a body is a message") };
    let samples = variants_of(&message).into_iter().map(|(name, sample)| {
        let mut frame = DynamicMessage::new(frame.clone());
        // Some number that depends on nothing but the message itself.
        let number: u64 = name.bytes().map(u64::from).sum();
        frame.set_field_by_name("op", Value::U64(u64::MAX - number));
        frame.set_field_by_name("more", Value::Bool(number % 2 == 1));
        frame.set_field(&body, Value::Message(sample));
        (format!("{part}.{name}"), frame)
    });
    samples.collect()
}

fn variants<M: Name>() -> Vec<(String, DynamicMessage)> {
    variants_of(&descriptor(&M::full_name()))
}

/// Samples of a message: one for each choice of its first oneof, times each choice further down.
fn variants_of(message: &MessageDescriptor) -> Vec<(String, DynamicMessage)> {
    let choices: Vec<FieldDescriptor> = message
        .oneofs()
        .filter(|oneof| !oneof.is_synthetic())
        .flat_map(|oneof| oneof.fields().collect::<Vec<_>>())
        .collect();
    let mut samples: Vec<(String, DynamicMessage)> = Vec::new();
    let mut add = |name: String, sample: DynamicMessage| {
        if !samples.iter().any(|(_, other)| *other == sample) {
            samples.push((name, sample));
        }
    };
    for turn in 0..widest(message) {
        if choices.is_empty() {
            add(format!("{}/{turn}", message.name()), filled(message, turn));
        }
        for choice in &choices {
            let mut sample = filled(message, turn);
            sample.set_field(choice, value(choice, turn));
            add(format!("{}/{turn}", choice.name()), sample);
        }
    }
    samples
}

/// How many choices the widest oneof below this message has.
fn widest(message: &MessageDescriptor) -> usize {
    let below = message.fields().filter_map(|field| match field.kind() {
        Kind::Message(inner) => {
            let own = inner.oneofs().filter(|oneof| !oneof.is_synthetic()).map(|oneof| oneof.fields().len()).max();
            Some(widest(&inner).max(own.unwrap_or(1)))
        }
        _ => None,
    });
    below.max().unwrap_or(1)
}

/// A message with every field set, its oneofs by turns.
fn filled(message: &MessageDescriptor, turn: usize) -> DynamicMessage {
    let mut sample = DynamicMessage::new(message.clone());
    for field in message.fields() {
        let oneof = field.containing_oneof().filter(|oneof| !oneof.is_synthetic());
        let chosen = oneof.is_none_or(|oneof| oneof.fields().nth(turn % oneof.fields().len()).as_ref() == Some(&field));
        if chosen {
            sample.set_field(&field, value(&field, turn));
        }
    }
    sample
}

fn value(field: &FieldDescriptor, turn: usize) -> Value {
    if field.is_list() {
        return Value::List(vec![single(field, turn), single(field, turn + 1)]);
    }
    single(field, turn)
}

fn single(field: &FieldDescriptor, turn: usize) -> Value {
    let number = u64::from(field.number()) + 16 * turn as u64;
    match field.kind() {
        Kind::Message(message) => Value::Message(filled(&message, turn)),
        Kind::Bool => Value::Bool(true),
        Kind::Uint64 | Kind::Fixed64 => Value::U64(number * 1_000_000_007),
        Kind::Sint64 => Value::I64(-(number as i64) * 1_000_000_007),
        Kind::Double => Value::F64(number as f64 + 0.5),
        Kind::Uint32 | Kind::Fixed32 => Value::U32(number as u32 * 1_000_003),
        Kind::String => Value::String(format!("{} {turn} é", field.name())),
        Kind::Bytes => Value::Bytes([field.name().as_bytes(), &[0xff, turn as u8]].concat().into()),
        Kind::Enum(kind) => {
            let named = 1 + turn % (kind.values().len() - 1);
            Value::EnumNumber(kind.values().nth(named).unwrap().number())
        }
        other => panic!("teach this test about {other:?}"),
    }
}

#[test]
fn samples_set_every_field_there_is() {
    let mut set = BTreeSet::new();
    let mut all = BTreeSet::new();
    for (_, _, samples) in PINNED {
        for (_, sample) in samples() {
            note(&sample, &mut set);
            note_all(&sample.descriptor(), &mut all);
        }
    }
    let unset: Vec<&String> = all.difference(&set).collect();
    assert!(unset.is_empty() && all.len() > 100, "{} fields, never set: {unset:?}", all.len());
}

fn note(sample: &DynamicMessage, set: &mut BTreeSet<String>) {
    for (field, value) in sample.fields() {
        set.insert(field.full_name().to_owned());
        match value {
            Value::Message(inner) => note(inner, set),
            Value::List(items) => items.iter().filter_map(Value::as_message).for_each(|inner| note(inner, set)),
            _ => {}
        }
    }
}

fn note_all(message: &MessageDescriptor, all: &mut BTreeSet<String>) {
    for field in message.fields() {
        if all.insert(field.full_name().to_owned())
            && let Kind::Message(inner) = field.kind()
        {
            note_all(&inner, all);
        }
    }
}

fn descriptor(name: &str) -> MessageDescriptor {
    wire_json::pool().get_message_by_name(name).unwrap_or_else(|| panic!("no message {name}"))
}

fn path(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden").join(format!("{file}.json"))
}

fn load(file: &str) -> Vec<Vector> {
    let Ok(text) = std::fs::read_to_string(path(file)) else { return Vec::new() };
    let vectors: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    let parse = |vector: &serde_json::Value| Vector {
        name: vector["name"].as_str().unwrap().to_owned(),
        binary: unhex(vector["binary"].as_str().unwrap()),
        json: vector["json"].clone(),
    };
    vectors.iter().map(parse).collect()
}

fn save(file: &str, vectors: &[Vector]) {
    let vectors: Vec<serde_json::Value> =
        vectors.iter().map(|v| json!({"name": v.name, "binary": hex(&v.binary), "json": v.json})).collect();
    std::fs::write(path(file), serde_json::to_string_pretty(&vectors).unwrap() + "\n").unwrap();
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}
