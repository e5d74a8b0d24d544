//! What every [`Ordering`] must do, engine or model: each check drives one and says what is broken.

use super::{Block, Command, Ordering};
use crate::ReplicaId;
use bytes::Bytes;

/// How often an engine is let work before something is taken for lost.
const PATIENCE: usize = 10_000;

/// Runs every check against an ordering of so many replicas that has ordered nothing yet.
pub fn check(ordering: &mut dyn Ordering, replicas: u16) -> Result<(), String> {
    let commands: Vec<Command> = (1..=40).map(command).collect();
    let first = order_all(ordering, replicas, &commands)?;
    all_see_the_same(ordering, replicas, &first)?;
    unexecuted_blocks_come_again(ordering, ReplicaId(0), first.len() as u64)
}

fn command(nonce: u64) -> Command {
    Command { client: 1, nonce, request: Bytes::from(format!("command {nonce}")) }
}

/// A command that is handed in again and again is ordered, and heights have no gaps.
fn order_all(ordering: &mut dyn Ordering, replicas: u16, commands: &[Command]) -> Result<Vec<Block>, String> {
    let mut blocks: Vec<Block> = Vec::new();
    for turn in 0..PATIENCE {
        let missing: Vec<&Command> = commands.iter().filter(|command| !contained(&blocks, command)).collect();
        if missing.is_empty() {
            return Ok(blocks);
        }
        let at = ReplicaId((turn % usize::from(replicas)) as u16);
        missing.into_iter().for_each(|command| ordering.submit(at, command.clone()));
        ordering.work();
        take(ordering, ReplicaId(0), &mut blocks)?;
    }
    Err("a command that was handed in again and again is never ordered".into())
}

fn contained(blocks: &[Block], command: &Command) -> bool {
    blocks.iter().any(|block| block.commands.contains(command))
}

/// Takes what has come for a replica; blocks that come again must be the same.
fn take(ordering: &mut dyn Ordering, at: ReplicaId, blocks: &mut Vec<Block>) -> Result<(), String> {
    while let Some(block) = ordering.next(at) {
        let height = block.height;
        match blocks.get((height as usize).wrapping_sub(1)) {
            Some(known) if *known != block => return Err(format!("block {height} came twice and differs")),
            Some(_) => {}
            None if height == blocks.len() as u64 + 1 => blocks.push(block),
            None => return Err(format!("block {height} follows block {}", blocks.len())),
        }
        ordering.executed(at, height);
    }
    Ok(())
}

/// Every replica gets the same blocks.
fn all_see_the_same(ordering: &mut dyn Ordering, replicas: u16, first: &[Block]) -> Result<(), String> {
    for replica in 1..replicas {
        let mut blocks = Vec::new();
        for _ in 0..PATIENCE {
            take(ordering, ReplicaId(replica), &mut blocks)?;
            if blocks.len() >= first.len() {
                break;
            }
            ordering.work();
        }
        if blocks.get(..first.len()) != Some(first) {
            return Err(format!("replica {replica} has {} blocks, not the first one's {}", blocks.len(), first.len()));
        }
    }
    Ok(())
}

/// What a replica had not executed when it stopped is delivered when it is back.
fn unexecuted_blocks_come_again(ordering: &mut dyn Ordering, at: ReplicaId, executed: u64) -> Result<(), String> {
    let late = command(1_000);
    let mut seen = None;
    for _ in 0..PATIENCE {
        ordering.submit(at, late.clone());
        ordering.work();
        seen = ordering.next(at).filter(|block| block.height > executed);
        if seen.is_some() {
            break;
        }
    }
    let Some(seen) = seen else { return Err("nothing new is ordered".into()) };
    ordering.restarted(at);
    for _ in 0..PATIENCE {
        if ordering.next(at).is_some_and(|block| block == seen) {
            return Ok(());
        }
        ordering.work();
    }
    Err(format!("block {} was not executed, and does not come again", seen.height))
}
