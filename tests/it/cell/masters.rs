//! Three nodes under load while their master is killed (SIGKILL) or stopped (SIGSTOP): no acknowledged write is lost, no two
//! hold the lock at once, every session survives.

use crate::cell_load::Load;
use crate::cluster::{CELL, Cluster};
use crate::process::{Deadline, turn};

#[derive(Clone, Copy)]
enum Blow {
    Kill,
    Stop,
}

fn strike_masters_under_load(mut blows: impl Iterator<Item = Blow>) {
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start(dir.path());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let load = runtime.block_on(Load::start(&cluster.urls));
    runtime.block_on(load.goes_on());
    for blow in blows.by_ref() {
        let master = cluster.leader_of(CELL);
        match blow {
            Blow::Kill => {
                cluster.kill(master);
                runtime.block_on(load.goes_on());
                cluster.restart(master);
            }
            Blow::Stop => {
                cluster.node(master).stop();
                runtime.block_on(load.goes_on());
                // It comes back and takes itself for the master until it hears otherwise.
                cluster.node(master).go_on();
            }
        }
        runtime.block_on(load.goes_on());
    }
    let promised = runtime.block_on(load.stop());
    runtime.block_on(promised.assert_kept(&cluster.urls));

    cluster.kill_and_restart_all();
    runtime.block_on(promised.assert_kept(&cluster.urls));
}

#[test]
fn nothing_is_lost_when_masters_are_killed_and_stopped() {
    let _turn = turn();
    strike_masters_under_load([Blow::Kill, Blow::Stop, Blow::Kill].into_iter());
}

#[test]
#[ignore = "for as long as KILL_SECONDS says: scripts/kill.sh"]
fn kill_loop() {
    let _turn = turn();
    let deadline = Deadline::from_environment();
    let blows = [Blow::Kill, Blow::Stop].into_iter().cycle();
    strike_masters_under_load(blows.take_while(|_| !deadline.has_passed()));
}
