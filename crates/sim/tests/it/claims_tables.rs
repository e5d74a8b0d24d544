//! Each claim about Tables is broken by the facts that break it, and by no others.

use tidings_predicate::Key;
use tidings_sim::clock::SimTime;
use tidings_sim::invariants::Sight;
use tidings_sim::kernel::HostId;
use tidings_sim::scenarios::tables::fact::{Fact, Level, Rows, SECRET, Shown, Told, key};
use tidings_sim::scenarios::tables::tables_claims;
use tidings_tables::names::{NetId, OperationId, PartitionId, Position, TableId};

const TABLE: TableId = TableId(7);

fn at(number: u64) -> Position {
    Position::from_u64(number).unwrap()
}

fn op(seq: u64) -> OperationId {
    OperationId { netid: NetId([1; 16]), seq }
}

/// A write of the value 10 · seq.
fn begins(seq: u64, shown: Shown) -> Fact {
    Fact::Begins { op: op(seq), client: 0, key: key(1), value: Some(10 * seq as i64), shown, forked: false }
}

fn ends(seq: u64, told: Told) -> Fact {
    Fact::Ends { op: op(seq), told, forked: false }
}

fn written(seq: u64, version: u64) -> Vec<Fact> {
    vec![begins(seq, Shown::Everybody), ends(seq, Told::Done(at(version)))]
}

fn shows(value: i64, version: u64) -> Fact {
    Fact::Shows { client: 0, teams: vec!['a'], key: key(1), version: at(version), value }
}

fn read(client: u32, level: Level, found: Option<(u64, i64)>, floor: u64) -> Vec<Fact> {
    let found = found.map(|(version, value)| (at(version), value));
    let (position, partition) = (at(9), PartitionId { table: TABLE, number: 0 });
    let id = 1;
    vec![
        Fact::Asks { client, id },
        Fact::Read { client, key: key(1), level, found, floor: at(floor), position, partition, id },
    ]
}

fn rows(value: i64, version: u64) -> Rows {
    Rows::from([(key(1), (at(version), value))])
}

fn cursor(client: u32, sealed: bool, rows: Rows) -> Fact {
    Fact::Cursor { client, sealed, exactly: Some(vec![1]), rows }
}

/// Shows facts one second apart; the claim that is broken, if one is.
fn judge(facts: Vec<Fact>) -> Option<String> {
    let mut claims = tables_claims();
    for (i, fact) in facts.iter().enumerate() {
        let sight = Sight { at: SimTime(i as u64 * 1_000_000_000), host: HostId(7), clock: &|_| None };
        if let Err(violation) = claims.observe(&sight, fact) {
            return Some(violation.invariant);
        }
    }
    claims.conclude().err().map(|violation| violation.invariant)
}

fn breaks(facts: Vec<Fact>, claim: &str) {
    assert_eq!(judge(facts.clone()).as_deref(), Some(claim), "{facts:?}");
}

fn holds(facts: Vec<Fact>) {
    assert_eq!(judge(facts.clone()), None, "{facts:?}");
}

#[test]
fn what_was_acknowledged_is_there_at_the_end() {
    let claim = "acknowledged_changes_are_kept";
    let both = [written(1, 5), written(2, 6)].concat();
    holds([both.clone(), vec![Fact::Last(rows(20, 6))]].concat());
    breaks([both.clone(), vec![Fact::Last(rows(10, 5))]].concat(), claim);
    breaks([both, vec![Fact::Last(Rows::new())]].concat(), claim);
    breaks(vec![Fact::Last(rows(10, 5))], claim);
}

#[test]
fn an_operation_has_one_outcome() {
    let claim = "an_operation_has_one_outcome";
    holds([written(1, 5), vec![ends(1, Told::Done(at(5))), shows(10, 5)]].concat());
    breaks([written(1, 5), vec![ends(1, Told::Done(at(6)))]].concat(), claim);
    breaks([written(1, 5), vec![shows(10, 6)]].concat(), claim);
    breaks(vec![begins(1, Shown::Everybody), shows(10, 5), shows(10, 6)], claim);
    breaks(vec![begins(1, Shown::Everybody), ends(1, Told::Conflict), shows(10, 5)], claim);
    breaks(vec![begins(1, Shown::Everybody), ends(1, Told::Refused("tables.outcome_unknown".to_owned()))], claim);
    let forked = |told| vec![Fact::Ends { op: op(1), told, forked: true }];
    holds([written(1, 5), forked(Told::Forked)].concat());
    breaks([written(1, 5), forked(Told::Done(at(5)))].concat(), claim);
}

#[test]
fn levels_hold() {
    let claim = "reads_fit_the_definitions";
    let both = [written(1, 5), written(2, 6)].concat();
    holds([both.clone(), read(1, Level::Committed, Some((5, 10)), 0)].concat());
    breaks([both.clone(), read(1, Level::Latest, Some((5, 10)), 0)].concat(), claim);
    breaks([both.clone(), read(0, Level::Committed, Some((5, 10)), 0)].concat(), claim);
    breaks([both.clone(), read(1, Level::Committed, Some((7, 30)), 0)].concat(), claim);
    breaks([both.clone(), read(1, Level::Committed, Some((6, 20)), 10)].concat(), "reads_keep_their_floors");
    // A read of all records is judged by each of them.
    let all = read(1, Level::Latest, Some((6, 20)), 0);
    let old = read(1, Level::Latest, Some((5, 10)), 0).split_off(1);
    breaks([both, all, old].concat(), claim);
}

#[test]
fn whoever_is_away_is_told() {
    let claim = "whoever_is_away_is_told";
    let away = |knows, fresh| vec![Fact::Away { client: 0, knows, fresh }];
    holds(away(rows(10, 5), rows(10, 5)));
    breaks(away(rows(10, 5), rows(20, 6)), claim);
    breaks(away(rows(10, 5), Rows::new()), claim);
    let stayed = |missed| vec![Fact::Stayed { client: 0, missed }];
    holds(stayed(Vec::new()));
    breaks(stayed(vec![PartitionId { table: TABLE, number: 0 }]), claim);
}

#[test]
fn live_queries_tell_what_there_is_once() {
    let compared =
        |client, told, fresh, settling| vec![Fact::Compared { client, query: "all".to_owned(), told, fresh, settling }];
    let claim = "live_queries_equal_fresh_reads";
    holds(compared(0, rows(10, 5), rows(10, 5), false));
    breaks(compared(0, rows(10, 5), rows(20, 6), false), claim);
    breaks(compared(0, rows(10, 5), rows(10, 5), true), claim);
    let other = compared(2, rows(20, 6), rows(20, 6), false);
    breaks([compared(0, rows(10, 5), rows(10, 5), false), other].concat(), claim);
    let again = Fact::Repeats { client: 0, key: key(1), version: at(5), had: at(6) };
    breaks(vec![again], "live_queries_never_go_back");
    holds(vec![Fact::Clocked { refused: true }]);
    breaks(vec![Fact::Clocked { refused: false }], "live_queries_have_no_clock");
}

#[test]
fn cursors_say_what_is_there_to_those_alone_who_made_them() {
    holds(vec![cursor(0, true, rows(10, 5)), cursor(2, true, rows(10, 5))]);
    breaks(vec![cursor(0, true, rows(10, 5)), cursor(2, true, rows(20, 6))], "the_same_cursor_holds_the_same_rows");
    breaks(vec![cursor(0, false, Rows::new())], "cursors_are_sealed");
}

#[test]
fn hidden_records_are_shown_to_nobody() {
    let claim = "hidden_records_stay_hidden";
    holds(vec![begins(1, Shown::Team('a')), shows(10, 5)]);
    breaks(vec![begins(1, Shown::Team('b')), shows(10, 5)], claim);
    breaks(vec![begins(1, Shown::Nobody), shows(10, 5)], claim);
    holds(vec![Fact::Leaves { client: 0, key: key(1) }]);
    breaks(vec![Fact::Leaves { client: 0, key: Key::from(SECRET) }], claim);
}

#[test]
fn a_table_that_was_dropped_answers_nobody() {
    let (asks, answers) = (Fact::Asks { client: 0, id: 1 }, Fact::Passing { client: 0, id: 1, table: TABLE });
    // What was asked before may still be answered.
    holds(vec![asks.clone(), Fact::Dropped(TABLE), answers.clone()]);
    breaks(vec![Fact::Dropped(TABLE), asks, answers], "dropped_tables_stay_dropped");
}
