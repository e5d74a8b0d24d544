//! What a replica remembers, and when.

use bytes::Bytes;
use tidings_base::Incarnation;
use tidings_sketch::ReplicaId;
use tidings_sketch::direct::replica::{Options, SPAN};
use tidings_sketch::direct::{Digest, Question, ReplicaSketcher};
use tidings_sketch::mutant::Mutant;
use tidings_sketch::replica::pages::{Pages, text};
use tidings_sketch::replica::{Block, Command, Replica};

const LIFE: Incarnation = Incarnation(1);

struct Desk {
    replica: Replica<Pages>,
    sketcher: ReplicaSketcher,
    nonce: u64,
}

fn options(mutant: Option<Mutant>) -> Options {
    Options { group: 7, id: ReplicaId(2), entries: 3, mutant }
}

fn request(text: &str) -> Bytes {
    Bytes::from(text.to_owned())
}

impl Desk {
    fn new(mutant: Option<Mutant>) -> Desk {
        let replica = Replica::new(LIFE, [1], Pages::default());
        Desk { replica, sketcher: ReplicaSketcher::new(options(mutant), LIFE, 0), nonce: 0 }
    }

    fn command(&mut self, text: &str) -> Command {
        self.nonce += 1;
        Command { client: 1, nonce: self.nonce, request: request(text) }
    }

    fn execute(&mut self, commands: Vec<Command>) {
        let height = self.replica.height() + 1;
        let done = self.replica.execute(&Block { height, commands });
        self.sketcher.executed(self.replica.service(), height, &done);
    }

    /// Orders these, each in a block of its own.
    fn order(&mut self, texts: &[&str]) {
        for text in texts {
            let command = self.command(text);
            self.execute(vec![command]);
        }
    }

    /// The version of a page that it remembers, and the height at which it was read.
    fn remembers(&mut self, page: u64) -> Option<(u64, u64)> {
        let asked = request(&format!("r {page}"));
        let remembered = self.sketcher.remembers(&asked)?;
        let is =
            |version: &u64| Digest::of_response(Digest::of_request(&asked), &text(page, *version)) == remembered.sketch;
        Some(((0..10).find(is).expect("it was some version"), remembered.sigma.height()))
    }
}

#[test]
fn reads_are_remembered_in_the_logs_order_and_writes_are_not() {
    let mut desk = Desk::new(None);
    desk.order(&["w 1 a"]);
    assert_eq!((desk.remembers(1), desk.sketcher.is_empty()), (None, true));
    desk.order(&["r 1", "w 1 b"]);
    assert_eq!(desk.remembers(1), Some((1, 2)), "a write leaves what was read");
    desk.order(&["r 1"]);
    assert_eq!(desk.remembers(1), Some((2, 4)));
    let block = ["r 1", "w 1 c", "r 1"].map(|text| desk.command(text));
    desk.execute(block.into());
    assert_eq!(desk.remembers(1), Some((3, 5)));
}

#[test]
fn who_executes_says_what_it_remembers_and_what_it_has() {
    let mut desk = Desk::new(None);
    desk.order(&["r 1", "w 1 a"]);
    let question = |execute, text| Question { client: 1, nonce: 5, execute, request: request(text) };
    let word = desk.sketcher.word(desk.replica.service(), &question(true, "r 1")).unwrap();
    assert_eq!((word.from, word.group, word.client, word.nonce), (ReplicaId(2), 7, 1, 5));
    assert_eq!((word.response, word.remembered.map(|r| r.sigma.height())), (Some(text(1, 1)), Some(1)));
    let word = desk.sketcher.word(desk.replica.service(), &question(false, "r 1")).unwrap();
    assert_eq!((word.response, word.remembered.is_some()), (None, true));
    assert_eq!(
        desk.sketcher.word(desk.replica.service(), &question(true, "w 1 b")),
        None,
        "a write passes by no order"
    );
}

#[test]
fn what_may_not_be_remembered_is_forgotten() {
    let mut desk = Desk::new(None);
    desk.order(&["w 1 a", "w 1 b", "w 1 c", "w 1 d", "r 1"]);
    assert_eq!(desk.remembers(1), Some((4, 5)));
    desk.order(&["w 1 e", "r 1"]);
    assert_eq!(desk.remembers(1), None, "the fifth version is an error");
}

#[test]
fn the_old_result_of_a_command_that_is_ordered_again_is_no_news() {
    for (mutant, then) in [(None, (1, 3)), (Some(Mutant::RepeatRemembered), (0, 1))] {
        let mut desk = Desk::new(mutant);
        let read = desk.command("r 1");
        desk.execute(vec![read.clone()]);
        desk.order(&["w 1 a", "r 1"]);
        desk.execute(vec![read]);
        assert_eq!(desk.remembers(1), Some(then), "{mutant:?}");
    }
}

#[test]
fn a_place_is_kept_for_a_span() {
    let mut desk = Desk::new(None);
    desk.order(&["r 1", "r 1", "r 1"]);
    assert_eq!(desk.remembers(1), Some((0, 1)));
    let mut late = Desk { sketcher: ReplicaSketcher::new(options(None), LIFE, 3), ..Desk::new(None) };
    (late.replica, late.nonce) = (desk.replica.clone(), desk.nonce);
    while desk.replica.height() < SPAN - 1 {
        desk.order(&["r 1"]);
        late.order(&["r 1"]);
    }
    assert_eq!((desk.remembers(1), late.remembers(1)), (Some((0, 1)), Some((0, 4))));
    desk.order(&["r 1", "r 1"]);
    late.order(&["r 1", "r 1"]);
    assert_eq!((desk.remembers(1), late.remembers(1)), (Some((0, SPAN)), Some((0, SPAN))), "they are equal again");
}

#[test]
fn what_is_executed_again_after_a_restart_is_not_remembered() {
    for (mutant, then) in [(None, None), (Some(Mutant::ReplayRemembered), Some((0, 1)))] {
        let mut desk = Desk::new(mutant);
        let block = |height, command: &Command| Block { height, commands: vec![command.clone()] };
        let read = desk.command("r 1");
        desk.execute(vec![read.clone()]);
        desk.order(&["w 1 a", "r 1"]);
        // Its state is lost and made again from the blocks; what it said at height 3 it must not take back.
        desk.replica = Replica::new(LIFE, [1], Pages::default());
        desk.sketcher = ReplicaSketcher::new(options(mutant), LIFE, 3);
        let done = desk.replica.execute(&block(1, &read));
        desk.sketcher.executed(desk.replica.service(), 1, &done);
        assert_eq!(desk.remembers(1), then, "{mutant:?}");
    }
}

#[test]
fn who_takes_a_state_over_begins_with_nothing() {
    for (mutant, then) in [(None, None), (Some(Mutant::TransferKeepsTable), Some((0, 1)))] {
        let (mut behind, mut ahead) = (Desk::new(mutant), Desk::new(None));
        behind.order(&["r 1"]);
        ahead.order(&["r 1", "w 1 a", "r 1"]);
        behind.replica = ahead.replica.clone();
        behind.sketcher.took_over(LIFE, 3);
        assert_eq!(behind.remembers(1), then, "{mutant:?}: it answers for the last read from its reply cache");
        behind.nonce = ahead.nonce;
        behind.order(&["r 1"]);
        assert_eq!(behind.remembers(1), Some((1, 4)));
    }
}

#[test]
fn a_block_that_it_was_not_told_of_may_have_been_read_in() {
    let mut desk = Desk::new(None);
    desk.order(&["r 1"]);
    let untold = desk.command("w 1 a");
    desk.replica.execute(&Block { height: 2, commands: vec![untold] });
    desk.order(&["r 2"]);
    assert_eq!((desk.remembers(1), desk.remembers(2)), (None, Some((0, 3))));
}

#[test]
fn the_least_used_goes() {
    let mut desk = Desk::new(None);
    desk.order(&["r 1", "r 2", "r 3"]);
    assert!(desk.remembers(1).is_some());
    desk.order(&["r 4"]);
    assert_eq!((desk.sketcher.len(), desk.remembers(2), desk.remembers(1)), (3, None, Some((0, 1))));
}
