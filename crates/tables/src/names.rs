//! Names and numbers of tables: partitions, terms, positions, operations, queries.

use std::fmt;
use std::str::FromStr;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);
    };
}

number! {
    /// Names a table for good: a table that is dropped and made again has another. The driver draws it.
    TableId
}
number! {
    /// Names a request that a driver brought, until it is answered.
    RequestId
}
number! {
    /// Names a gateway, and its life: a gateway that lost its memory has another.
    GatewayId
}

impl fmt::Display for TableId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A partition of a table: what placement leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionId {
    /// Its table.
    pub table: TableId,
    /// Its number in the table, never used again.
    pub number: u32,
}

impl fmt::Display for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.table, self.number)
    }
}

impl FromStr for PartitionId {
    type Err = ();
    fn from_str(text: &str) -> Result<PartitionId, ()> {
        let (table, number) = text.split_once('.').ok_or(())?;
        let table = TableId(u64::from_str_radix(table, 16).map_err(|_| ())?);
        Ok(PartitionId { table, number: number.parse().map_err(|_| ())? })
    }
}

/// R1: raised in the directory at every acquisition, move, split and merge; below 2²³.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct Term(u32);

impl Term {
    const BITS: u32 = 23;

    /// The term `n`, or `None` beyond 23 bits.
    pub fn new(n: u32) -> Option<Term> {
        (n < 1 << Self::BITS).then_some(Term(n))
    }

    /// The number itself.
    pub fn get(self) -> u32 {
        self.0
    }

    /// The term above this one; `None` when they are used up.
    pub fn next(self) -> Option<Term> {
        Term::new(self.0 + 1)
    }
}

/// R1: a place in a partition's history, and the version of the record that changed there: (term 23 bits, counter 40).
///
/// The counter belongs to the partition and goes on from term to term; 0 is before everything.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(u64);

impl Position {
    /// Before everything.
    pub const ZERO: Position = Position(0);
    /// Behind everything.
    pub const LAST: Position = Position((1 << 63) - 1);
    const COUNTER_BITS: u32 = 40;

    /// The position of a counter in a term; `None` when the counter is used up.
    pub fn new(term: Term, counter: u64) -> Option<Position> {
        (counter < 1 << Self::COUNTER_BITS).then_some(Position((u64::from(term.0) << Self::COUNTER_BITS) | counter))
    }

    /// The position as a number of 63 bits, as it stands in messages and as the store's timestamp.
    pub fn get(self) -> u64 {
        self.0
    }

    /// The position that a message names; `None` beyond 63 bits.
    pub fn from_u64(number: u64) -> Option<Position> {
        (number < 1 << 63).then_some(Position(number))
    }

    /// Its term.
    pub fn term(self) -> Term {
        Term((self.0 >> Self::COUNTER_BITS) as u32)
    }

    /// Its counter.
    pub fn counter(self) -> u64 {
        self.0 & ((1 << Self::COUNTER_BITS) - 1)
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.term().0, self.counter())
    }
}

impl fmt::Debug for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A client as operations are named by: drawn at random by the client, and drawn anew after a fork (R6).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NetId(pub [u8; 16]);

impl fmt::Debug for NetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// R6: the name of an operation, never used for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperationId {
    /// The client.
    pub netid: NetId,
    /// Which of its operations; from 1.
    pub seq: u64,
}

/// A live query, as its gateway and the processors name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueryId {
    /// The gateway that the client is connected to.
    pub gateway: GatewayId,
    /// Which of the gateway's queries; never used again.
    pub number: u64,
}

impl QueryId {
    /// From here on a number is that of a copy: of a feed of everything, which nodes alone ask for.
    const COPIES: u64 = 1 << 63;

    /// The `number`th copy that a node follows, beside the queries of its gateway.
    pub fn of_copy(gateway: GatewayId, number: u64) -> QueryId {
        QueryId { gateway, number: Self::COPIES | number }
    }

    /// R1: whether it is a copy that listens: it hears everything, with audiences.
    pub fn is_copy(&self) -> bool {
        self.number >= Self::COPIES
    }
}

/// Who is told through Notify when it is away: a device and an application on it (§5).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// The device.
    pub netid: NetId,
    /// The application.
    pub app: String,
}

/// How names of objects begin that tables publish through Notify: nobody else may.
pub const OBJECTS: &str = "tables/";

/// R3: an object of Notify that the owner of a partition publishes, in the application that the table belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Object {
    /// The partition.
    pub partition: PartitionId,
    /// The device that is told; none = everybody who listens to the partition.
    pub netid: Option<NetId>,
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{OBJECTS}{}", self.partition)?;
        self.netid.map_or(Ok(()), |netid| write!(f, "/{netid:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_order_by_term_and_fit_in_63_bits() {
        let (low, high) = (Term::new(3).unwrap(), Term::new(4).unwrap());
        let most = (1 << 40) - 1;
        assert!(Position::new(low, most).unwrap() < Position::new(high, 0).unwrap());
        assert_eq!((Position::new(low, most + 1), Term::new(1 << 23)), (None, None));
        let last = Position::new(Term::new((1 << 23) - 1).unwrap(), most).unwrap();
        assert_eq!((last.get(), last.counter(), last.term().get()), ((1 << 63) - 1, most, (1 << 23) - 1));
        assert_eq!(Position::from_u64(1 << 63), None);
    }

    #[test]
    fn partitions_are_named_as_they_print() {
        let partition = PartitionId { table: TableId(0xabc), number: 7 };
        assert_eq!(partition.to_string().parse(), Ok(partition));
        assert_eq!("abc".parse::<PartitionId>(), Err(()));
    }

    #[test]
    fn objects_of_notify_are_named_as_clients_name_them() {
        let partition = PartitionId { table: TableId(0xabc), number: 7 };
        let all = Object { partition, netid: None };
        assert_eq!(all.to_string(), "tables/0000000000000abc.7");
        let one = Object { netid: Some(NetId([0xf; 16])), ..all };
        assert_eq!(one.to_string(), format!("tables/0000000000000abc.7/{}", "0f".repeat(16)));
    }
}
