//! One of several processes leads; the others wait their turn.
//!
//! ```sh
//! cargo run -p tidings-client --example leader -- http://127.0.0.1:7400 "$(hostname):$$"
//! ```

use tidings_base::Error;
use tidings_client::cell::{Cell, Election, SessionEvent};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let server = arguments.next().unwrap_or_else(|| "http://127.0.0.1:7400".into());
    let name = arguments.next().unwrap_or_else(|| format!("process {}", std::process::id()));

    let cell = Cell::connect([server]).await?;
    let election = Election::new(&cell, "/leader");
    tokio::spawn(tell_who_leads(election.clone()));

    println!("session {}; waiting for a turn as {name}", cell.session());
    let leadership = election.campaign(&name).await?;
    println!("leading; {} proves it", leadership.sequencer());

    let mut events = cell.events();
    loop {
        tokio::select! {
            why = leadership.lost() => {
                println!("no longer leading: {why}");
                return Ok(());
            }
            Some(SessionEvent::Jeopardy) = events.next() => println!("no contact: work stops until it is safe"),
            _ = tokio::signal::ctrl_c() => {
                leadership.resign().await?;
                return cell.close().await;
            }
        }
    }
}

async fn tell_who_leads(election: Election) -> Result<(), Error> {
    let mut leaders = election.observe().await?;
    while let Some(leader) = leaders.next().await {
        match leader? {
            Some(leader) => println!("{} leads, generation {}", leader.identity, leader.generation),
            None => println!("nobody leads"),
        }
    }
    Ok(())
}
